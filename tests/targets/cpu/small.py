"""The kernels of kernels/*.cpp as sub-kernels, what each computes in numpy, and how launches are compared."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import superkernel as sk
from superkernel import SubKernel, SuperKernel
from superkernel.model.params import Kind
from superkernel.runtime.built_kernel import BuiltKernel
from superkernel.runtime.unfused import Unfused
from superkernel.targets.cpu.build import entry_name, host_library, link, name_symbols
from superkernel.targets.cpu.executable import CpuExecutable
from superkernel.targets.cpu.numbering import number
from superkernel.targets.cpu.runtime.launch import DELAYS, CpuLoadedKernel
from superkernel.targets.cpu.target import CpuPrepared

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
ROOT = HERE.parents[2]
N = 48
ARRAY = f":int64[{N}]"
Array = np.ndarray[Any, np.dtype[np.int64]]
At = np.arange(N)

PARAMS = {
    "scale": (f"in:x{ARRAY}@block", f"out:z{ARRAY}@block"),
    "mix": (f"in:x{ARRAY}", f"in:y{ARRAY}", f"out:z{ARRAY}"),
    "blend": (f"in:x{ARRAY}", f"in:y{ARRAY}", f"in:w{ARRAY}", f"out:z{ARRAY}"),
    "fold": (f"inout:x{ARRAY}", f"in:y{ARRAY}"),
    "chain": (f"in:x{ARRAY}", f"out:z{ARRAY}"),
    "late": (f"in:x{ARRAY}@block", f"out:z{ARRAY}@block", "scalar:times"),
    "early": (f"in:x{ARRAY}", f"in:w{ARRAY}", f"out:z{ARRAY}"),
    "seldom": (f"in:x{ARRAY}", f"out:z{ARRAY}"),
    "hasty": (f"in:x{ARRAY}", f"out:z{ARRAY}"),
    "shy": (f"in:x{ARRAY}", f"inout:z{ARRAY}", "scalar:work"),
    "total": (f"in:x{ARRAY}", f"workspace:part{ARRAY}", f"out:z{ARRAY}"),
    "twice": (f"in:x{ARRAY}", f"inout:z{ARRAY}"),
    "gather": (f"in:x{ARRAY}", f"workspace:part{ARRAY}", f"out:z{ARRAY}"),
}


def scale(x: Array, z: Array) -> None:
    z[:] = 5 * x + 1


def mix(x: Array, y: Array, z: Array) -> None:
    z[:] = 3 * x + y[::-1] + At


def blend(x: Array, y: Array, w: Array, z: Array) -> None:
    z[:] = 3 * x + 5 * np.roll(y, -1) + 7 * np.roll(w, -2)


def fold(x: Array, y: Array) -> None:
    x[:] = 7 * x + y[(5 * At + 1) % N]


def chain(x: Array, z: Array) -> None:
    with np.errstate(over="ignore"):
        number = np.int64(17)
        for i in range(N):
            z[i] = number = np.int64(31) * number + x[i]


def late(x: Array, z: Array, times: int) -> None:
    z[:] = 9 * x + 4


def early(x: Array, w: Array, z: Array) -> None:
    z[:] = 2 * np.roll(x, -7) + 3 * w


def seldom(x: Array, z: Array) -> None:
    z[:] = 11 * x[::-1] + 2


def hasty(x: Array, z: Array) -> None:
    z[:] = 13 * np.roll(x, -1)


def shy(x: Array, z: Array, work: int) -> None:
    if work:
        z[:] = 3 * x


def total(x: Array, part: Array, z: Array) -> None:
    z[:] = 3 * x + (x * (At + 1)).sum()


def twice(x: Array, z: Array) -> None:
    z[:] = 2 * x + z


def thrice(x: Array, z: Array) -> None:
    z[:] = 3 * x[::-1] + z


def gather(x: Array, part: Array, z: Array) -> None:
    z[:] = x + x.sum()


_KERNELS = (scale, mix, blend, fold, chain, late, early, seldom, hasty, shy, total, twice, thrice, gather)
REFERENCE: dict[str, Callable[..., None]] = {one.__name__: one for one in _KERNELS}


def small(name: str, blocks: int = 2, **more: Any) -> SubKernel:
    """A kernel of small.cpp."""
    return SubKernel.from_source(KERNELS / "small.cpp", name, block_dim=blocks, params=PARAMS[name], **more)


def broken(name: str, blocks: int = 1, *params: str, **more: Any) -> SubKernel:
    """A kernel of broken.cpp."""
    listed = params or ("inout:z:int64[48]",)
    return SubKernel.from_source(KERNELS / "broken.cpp", name, block_dim=blocks, params=listed, **more)


def numbers(*names: str, seed: int = 1) -> dict[str, Array]:
    """Arrays by name, filled with numbers that depend on the seed."""
    random = np.random.default_rng(seed)
    return {name: random.integers(-(2**40), 2**40, N) for name in names}


def expected(kernel: SuperKernel, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What numpy makes of the ops, one after the other."""
    memory = {name: arrays[name].copy() if name in arrays else np.zeros(N, np.int64) for name in kernel.graph.buffers}
    with np.errstate(over="ignore"):
        for index in kernel.graph.order:
            node = kernel.graph.nodes[index]
            name, blocks = node.kernel.name, 1
            if node.op.tiling is not None:
                key, blocks = node.op.tiling({arg: memory[arg] for p, arg in node.arguments() if p.kind.reads})
                name = dict(node.kernel.tiling_variants)[key]
            if blocks:
                REFERENCE[name](*(memory[arg] if isinstance(arg, str) else arg for arg in node.op.args))
    return memory


def compared(kernel: SuperKernel) -> list[str]:
    """The names whose contents a launch defines: not the work spaces."""
    kinds: dict[str, set[Kind]] = {}
    for node in kernel.graph.nodes:
        for param, name in node.arguments():
            kinds.setdefault(name, set()).add(param.kind)
    return [name for name, used in kinds.items() if Kind.WORKSPACE not in used]


def launched(
    run: SuperKernel | Unfused, kernel: SuperKernel, arrays: Mapping[str, Array], inside: Collection[str] = ()
) -> dict[str, Array]:
    """One launch on copies: every name but those that the launch allocates inside, as it is afterwards."""
    passed = [name for name in kernel.graph.buffers if name not in inside]
    memory = {name: arrays[name].copy() if name in arrays else np.zeros(N, np.int64) for name in passed}
    assert run(memory) == {}
    return memory


def assert_same(kernel: SuperKernel, arrays: Mapping[str, Array], launches: int = 2) -> None:
    """Fused, unfused and numpy agree to the last bit, and so does every launch that follows."""
    wanted = expected(kernel, arrays)
    found = [launched(kernel, kernel, arrays) for _ in range(launches)]
    found.append(launched(kernel.unfused(), kernel, arrays))
    if not any(node.dynamic for node in kernel.graph.nodes):  # with few blocks they leave memory as it was
        found.append(launched(kernel, kernel, arrays, kernel.graph.inner))
    for memory in found:
        for name in [name for name in compared(kernel) if name in memory]:
            np.testing.assert_array_equal(memory[name], wanted[name], err_msg=f"{name} of {kernel.name}")


def differs(kernel: SuperKernel, arrays: Mapping[str, Array], launches: int) -> bool:
    """Does any of so many launches give something else than numpy?"""
    wanted = expected(kernel, arrays)
    for _ in range(launches):
        memory = launched(kernel, kernel, arrays)
        if any(not np.array_equal(memory[name], wanted[name]) for name in compared(kernel)):
            return True
    return False


def binary_of(kernel: SuperKernel) -> Path:
    return kernel.executable.binary


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(work: Callable[[], object], times: int) -> int:
    """Bytes that the process has more in memory afterwards: those of a leak each time, those of other threads once."""
    gc.collect()
    before = resident()
    for _ in range(times):
        work()
    gc.collect()
    return resident() - before


def planted(kernel: SuperKernel, edit: Callable[[str], str], host: Path | None = None) -> SuperKernel:
    """The same super kernel, linked by the same functions from source that was edited by hand."""
    plan, executable, prepared = kernel.plan, kernel.executable, kernel._prepared
    assert isinstance(prepared, CpuPrepared)
    source = edit(executable.source)
    used = {node.kernel for node in plan.graph.nodes}
    parts = list(name_symbols([c for c in prepared.compiled.values() if c.kernel in used], 1).values())
    flags = ["-DSK_TEST_DELAYS"] if os.environ.get(DELAYS) else []
    binary = link({entry_name(kernel.name): source}, parts, flags, prepared.context)
    faulty = CpuExecutable(plan, number(plan), source, binary, host or host_library(prepared.context), ())
    built = BuiltKernel(plan.cores, plan, faulty, CpuLoadedKernel(faulty))
    return SuperKernel(kernel.graph, kernel.options, kernel.target, built, True, prepared)


def without(pattern: str) -> Callable[[str], str]:
    """An edit that drops every line with a match, except in the function that runs the whole plan on one core."""

    def edit(source: str) -> str:
        lanes, mark, rest = source.partition("// the whole plan on one core")
        kept = [line for line in lanes.splitlines(keepends=True) if not re.search(pattern, line)]
        assert len(kept) < len(lanes.splitlines()), f"nothing matches {pattern}:\n{lanes}"
        return "".join(kept) + mark + rest

    return edit


def child(
    code: str,
    *,
    timeout: float = 600,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the package and the modules of the tests at hand."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def compile_ops(ops: Sequence[sk.Op], name: str, options: str = "", cores: int | None = 2) -> SuperKernel:
    return sk.compile(ops, name, options, cores=cores)
