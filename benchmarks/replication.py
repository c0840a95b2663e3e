"""replication: what copies of small ops gain: a decode step of six layers with copies and without, in turns."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from superkernel import Op, SubKernel, SuperKernel
from superkernel import compile as compile_ops
from superkernel.plan.machine import Machine
from superkernel.targets.cpu.target import CpuPlanner
from superkernel.tools import bench

KERNELS = Path(bench.__file__).parent / "kernels.cpp"
LAYERS = 6
HIDDEN, INNER, EXPERTS = 512, 2048, 8


def decode_ops(cores: int) -> list[Op]:
    """Norm, two matmuls, norm, router, two matmuls per layer."""

    def kernel(name: str, blocks: int, *params: str, pure: bool = False) -> SubKernel:
        return SubKernel.from_source(KERNELS, name, block_dim=blocks, params=params, pure=pure)

    hidden, inner = f"float32[{HIDDEN}]", f"float32[{INNER}]"
    norm = kernel("rms_norm_512", 1, f"in:x:{hidden}", f"in:g:{hidden}", f"out:y:{hidden}", pure=True)
    router = kernel("router_512_8", 1, f"in:x:{hidden}", "in:w", f"out:y:float32[{EXPERTS}]", pure=True)
    square = kernel("gemv_512_512", cores, f"in:x:{hidden}", "in:w", f"out:y:{hidden}")
    up = kernel("gemv_512_2048", cores, f"in:x:{hidden}", "in:w", f"out:y:{inner}")
    weigh = kernel("weigh_2048", cores, f"in:x:{inner}", f"in:gate:float32[{EXPERTS}]", f"out:y:{inner}")
    down = kernel("gemv_2048_512", cores, f"in:x:{inner}", "in:w", f"out:y:{hidden}")
    ops = []
    for i in range(LAYERS):
        ops += [
            Op(norm, [f"x{i}", "g", f"n{i}"], f"norm{i}"),
            Op(square, [f"n{i}", "square", f"q{i}"], f"qkv{i}"),
            Op(square, [f"q{i}", "square", f"a{i}"], f"project{i}"),
            Op(norm, [f"a{i}", "g", f"m{i}"], f"norm2_{i}"),
            Op(router, [f"m{i}", "router", f"r{i}"], f"router{i}"),
            Op(up, [f"m{i}", "up", f"u{i}"], f"up{i}"),
            Op(weigh, [f"u{i}", f"r{i}", f"v{i}"], f"weigh{i}"),
            Op(down, [f"v{i}", "down", f"x{i + 1}"], f"down{i}"),
        ]
    return ops


@contextmanager
def replicating(wanted: bool) -> Iterator[None]:
    """Plan for a machine on which copies pay, or for one that makes none."""
    before = CpuPlanner.machine

    def machine(planner: CpuPlanner, cores: int) -> Machine:
        found = before(planner, cores)
        return replace(found, replicates=wanted, costs=replace(found.costs, sync_ns=1e4) if wanted else found.costs)

    with patch.object(CpuPlanner, "machine", machine):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/replication.py", description=__doc__)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--calls", type=int, default=3000, help="of each")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    arrays = {
        "x0": rng.standard_normal(HIDDEN, np.float32),
        "g": np.ones(HIDDEN, np.float32),
        "square": rng.standard_normal(HIDDEN * HIDDEN, np.float32) / 32,
        "router": rng.standard_normal(EXPERTS * HIDDEN, np.float32) / 32,
        "up": rng.standard_normal(INNER * HIDDEN, np.float32) / 32,
        "down": rng.standard_normal(INNER * HIDDEN, np.float32) / 64,
    }
    kernels: dict[bool, SuperKernel] = {}
    with compile_ops(decode_ops(asked.cores), name="decode", cores=asked.cores) as chosen:
        print(f"the planner's own choice: {'; '.join(chosen.plan.notes)}")
    for wanted in (False, True):
        with replicating(wanted):
            kernels[wanted] = compile_ops(decode_ops(asked.cores), name="decode", cores=asked.cores)
            for line in kernels[wanted].plan.summary:
                print(line)
    results = {wanted: np.empty(HIDDEN, np.float32) for wanted in kernels}
    taken: dict[bool, list[float]] = {wanted: [] for wanted in kernels}
    for number in range(asked.calls):
        for wanted in (False, True) if number % 2 else (True, False):
            buffers = {**arrays, f"x{LAYERS}": results[wanted]}
            began = time.perf_counter()
            kernels[wanted](buffers)
            taken[wanted].append((time.perf_counter() - began) * 1e6)
    if not np.array_equal(results[False], results[True]):
        print("copies give another result", file=sys.stderr)
        return 1
    for name, share in (("fastest twentieth", 0), ("lower quartile", 4), ("median", 9)):
        without, copied = (statistics.quantiles(taken[wanted], n=20)[share] for wanted in (False, True))
        print(f"{name}: {without:.1f} us without copies, {copied:.1f} us with: {without / copied:.3f}x; equal bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
