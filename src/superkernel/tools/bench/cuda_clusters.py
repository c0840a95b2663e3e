"""bench.cuda_clusters: chains of kernels of a few blocks -> their times in clusters of SMs, without, and in graphs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ...runtime.compile import compile
from ...targets.cuda.device import device_fields, find_device
from .cuda_chains import OURS, Oracle, time_chain
from .cuda_device import measure_device
from .cuda_workloads import few_blocks_chain
from .measure import Figure, Result, Timing

BLOCKS = 4, 8
WITHOUT = f"{OURS}, without clusters"


def time_few_blocks(torch: Any, result: Result, rounds: int, rate: float) -> None:
    """Ops of 4 and of 8 blocks: each SM runs one block; in clusters, if these were measured to be faster."""
    for blocks in BLOCKS:
        chain = few_blocks_chain(torch, blocks)
        ours = time_chain(result, chain, rounds, rate)[OURS]
        with tempfile.TemporaryDirectory() as folder:
            chip = Path(folder) / "chip.json"
            chip.write_text(json.dumps({**device_fields(find_device(None)), "largest_cluster": 1}))
            with compile(chain.ops, name="chain", target="cuda", chip=chip) as kernel:
                launch = kernel.bind({name: chain.buffers[name] for name in kernel.graph.buffers})
                result.checks[f"{chain.name}: {WITHOUT}"] = Oracle(chain).same_bits(launch)
                without = measure_device({WITHOUT: launch}, rounds)[WITHOUT]
        result.timings.append(Timing(f"{chain.name}: {WITHOUT}", without.median, without.low, without.high))
        ratio = without.median / ours.median
        result.figures.append(Figure(f"{chain.name}, clusters against counters", ratio, 1.0, True))
