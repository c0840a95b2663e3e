"""Ranks on one GPU, each in a process of its own: `-m targets.cuda.gpu_ranks PROGRAM RANK FOLDER`; prints JSON."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from targets.cuda.emulator.rank_kernels import Sums

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.model.ranks import RankGroup
from superkernel.targets.collectives import CollectiveKind
from superkernel.targets.cuda.kernels.collectives import Collective

CORES = "GPU_RANKS_CORES"  # the variable; unset: as many as the ops want


class Rank:
    """The kernel of this rank, on the GPU that all ranks use."""

    def __init__(self, rank: int, folder: Path, sums: Sums, timeout_s: float = 60.0) -> None:
        # a file for each: torch removes it when all ranks have dropped their store
        self.store = torch.distributed.FileStore(str(folder / f"store_{sums.count}"), sums.ranks)
        self.rank, self.sums = rank, sums
        written = folder / f"ptx_{rank}_{sums.count}"
        written.mkdir()
        cores: dict[str, Any] = {"cores": int(os.environ[CORES])} if CORES in os.environ else {}
        self.kernel = sk.compile(sums.ops(written, rank), f"rank{rank}", sums.options, "cuda", **cores)
        self.store.set(f"compiled {rank}", "")
        for other in range(sums.ranks):  # the time limit is short
            self.await_key(f"compiled {other}")
        sk.connect_ranks(self.kernel, self.store, timeout_s=timeout_s)

    def given(self, seed: int) -> tuple[Any, Any]:
        """The input of this rank, and what the ranks compute."""
        inputs = self.sums.inputs(seed)
        return torch.from_numpy(inputs[self.rank]["x"]).cuda(), torch.from_numpy(self.sums.expected(inputs)).cuda()

    def launch(self, seed: int) -> bool:
        x, expected = self.given(seed)
        y = torch.zeros_like(expected)
        self.kernel({"x": x, self.sums.last: y})
        self.kernel.synchronize()
        return bool(torch.equal(y, expected))

    def await_key(self, key: str) -> None:
        while not self.store.check([key]):
            time.sleep(0.01)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def refused(call: Callable[[], object]) -> None:
    begin = time.monotonic()
    try:
        call()
    except SuperKernelError as error:
        say(error=str(error), kind=type(error).__name__, seconds=time.monotonic() - begin)
    else:
        say(error="")


def sums(rank: int, folder: Path) -> None:
    """Small and large, launch after launch, each rank in its own time; then several launches on their way at once."""
    choice = random.Random(rank)
    for count in (200, 5_000, 100_000, 2_000_000):
        here = Rank(rank, folder, Sums(count))
        right = 0
        for seed in range(20):
            time.sleep(choice.random() * 0.004)
            right += here.launch(seed)
        x, expected = here.given(1)
        y = torch.zeros_like(expected)
        launches = 50
        here.kernel({"x": x, here.sums.last: y})
        here.kernel.synchronize()
        begin = time.monotonic()
        for _ in range(launches):
            here.kernel({"x": x, here.sums.last: y})
        here.kernel.synchronize()
        seconds = time.monotonic() - begin
        say(
            count=count,
            right=right,
            last=bool(torch.equal(y, expected)),
            sms=here.kernel.executable.sms,  # type: ignore[attr-defined]
            us_per_launch=round(1e6 * seconds / launches, 1),
            us_per_collective=round(1e6 * seconds / launches / here.sums.stages, 1),
        )
        here.kernel.close()


def killed(rank: int, folder: Path) -> None:
    """Rank 1 ends while rank 0 waits for it."""
    here = Rank(rank, folder, Sums(5_000))
    say(right=here.launch(0))
    if rank == 1:
        here.await_key("launched")
        os._exit(9)
    x, _ = here.given(1)
    here.kernel({"x": x})
    here.store.set("launched", "")
    refused(here.kernel.synchronize)
    refused(lambda: here.launch(2))
    here.kernel.close()


def late(rank: int, folder: Path) -> None:
    """Rank 1 launches when rank 0 has given up."""
    here = Rank(rank, folder, Sums(5_000), timeout_s=2.0)
    if rank == 1:
        here.await_key("given up")
    refused(lambda: here.launch(0))
    if rank == 0:
        here.store.set("given up", "")
    refused(lambda: here.launch(0))
    here.kernel.close()


def shipped(rank: int, folder: Path) -> None:
    """Every collective that the target ships, all in one super kernel, launch after launch."""
    group = RankGroup("world", (0, 1), rank)
    counts = {"float32": 200, "bfloat16": 5_000, "int32": 100_000}
    for dtype, count in counts.items():
        ops = []
        for kind in CollectiveKind:
            ops += Collective(kind, count, group, dtype, root=1).ops("x", f"y_{kind}", f"w_{kind}")
        cores: dict[str, Any] = {"cores": int(os.environ[CORES])} if CORES in os.environ else {}
        kernel = sk.compile(ops, f"rank{rank}", target="cuda", **cores)
        store = torch.distributed.FileStore(str(folder / f"store_{dtype}"), 2)
        sk.connect_ranks(kernel, store, timeout_s=120.0)
        right = 0
        for seed in range(10):
            given = [_values(seed, place, count, dtype) for place in range(2)]
            results = {f"y_{kind}": value for kind, value in _expected(given, rank).items()}
            outputs = {name: torch.zeros_like(value) for name, value in results.items()}
            kernel({"x": given[rank], **outputs})
            kernel.synchronize()
            right += all(torch.equal(outputs[name], value) for name, value in results.items())
        say(dtype=dtype, right=right)
        kernel.close()


def _values(seed: int, place: int, count: int, dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2 * seed + place)
    return torch.randint(-50, 50, (count,), generator=generator).to(getattr(torch, dtype)).cuda()


def _expected(given: list[torch.Tensor], rank: int) -> dict[CollectiveKind, torch.Tensor]:
    total = given[0] + given[1]
    return {
        CollectiveKind.ALL_REDUCE: total,
        CollectiveKind.ALL_GATHER: torch.cat(given),
        CollectiveKind.REDUCE_SCATTER: total.chunk(2)[rank].contiguous(),
        CollectiveKind.ALL_TO_ALL: torch.cat([each.chunk(2)[rank] for each in given]),
        CollectiveKind.BROADCAST: given[1],
    }


if __name__ == "__main__":
    program, number, given = sys.argv[1:]
    {each.__name__: each for each in (sums, shipped, killed, late)}[program](int(number), Path(given))
