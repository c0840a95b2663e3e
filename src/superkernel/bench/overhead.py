"""bench.overhead: what looking costs: a decode step plain, with profiling=1, and under a profile; a script."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..observe.profiling import profile
from .decode_models import decode_step
from .measure import measure
from .peers import threads, with_own_code

CORES, ROUNDS = 2, 31


def main(width: int = 288) -> int:
    torch.manual_seed(0)
    workload = decode_step(width)

    def compiled(**options: Any) -> Callable[[], Any]:
        call = torch.compile(
            with_own_code(workload.model),
            backend="superkernel",
            options={"profit_gate": 0, **options},
            fullgraph=True,
            dynamic=False,
        )
        call(*workload.inputs)
        return lambda: call(*workload.inputs)

    with threads(CORES), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        plain, recorded = compiled(), compiled(profiling=1)
        if not torch.equal(plain(), recorded()):
            print("profiling=1 gives another result", file=sys.stderr)
            return 1
        timings = measure({"plain": plain, "profiling=1": recorded}, ROUNDS, budget_s=0.02)
        with profile(Path(folder, "p")):
            timings |= measure({"under sk.profile": plain}, ROUNDS, budget_s=0.02)
    for timing in timings.values():
        print(f"{timing}   {100 * (timing.median / timings['plain'].median - 1):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
