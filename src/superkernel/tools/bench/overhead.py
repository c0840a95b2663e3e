"""bench.overhead: what time stamps cost: a decode step plain and with profiling=1, call by call in turns; a script."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from .peers import compile_anew, threads
from .workloads import decode_step

WAYS: dict[str, dict[str, Any]] = {"plain": {"profit_gate": 0}, "profiling=1": {"profit_gate": 0, "profiling": 1}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m superkernel.tools.bench.overhead", description=__doc__)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--calls", type=int, default=1500, help="of each")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    workload = decode_step(288)
    with threads(arguments.cores), torch.no_grad():
        calls = {way: compile_anew(workload.model, "superkernel", options) for way, options in WAYS.items()}
        results = [call(*workload.inputs) for call in calls.values()]
        if not all(torch.equal(results[0], result) for result in results):
            print("profiling=1 gives another result", file=sys.stderr)
            return 1
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(arguments.calls):
            for way, call in calls.items():
                began = time.perf_counter()
                call(*workload.inputs)
                taken[way].append((time.perf_counter() - began) * 1e6)
    for name, share in (("fastest twentieth", 0), ("median", 9)):  # other load disturbs the first least
        plain, recorded = (statistics.quantiles(taken[way], n=20)[share] for way in WAYS)
        more = 100 * (recorded / plain - 1)
        print(f"{name}: {plain:.1f} us plain, {recorded:.1f} us with profiling=1: {more:+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
