"""Ops of several ranks on windows in plain memory, what they compute in numpy, and ranks as threads of one process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from targets.cpu.small import KERNELS

import superkernel as sk
from superkernel import Op, SubKernel
from superkernel.model import window_layout as layout
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.model.window_layout import WindowLayout, next_round
from superkernel.targets.buffers import aligned_empty

SOURCE = KERNELS / "ranks.cpp"
COUNT = 48
Array = np.ndarray[Any, np.dtype[Any]]
At = np.arange(COUNT)


def group_of(ranks: int, rank: int) -> RankGroup:
    return RankGroup("tp", tuple(range(10, 10 + ranks)), rank)


def window_of(ranks: int) -> WindowLayout:
    return WindowLayout(ranks, 8 * COUNT)


def rank_kernel(name: str, blocks: int, ranks: int) -> SubKernel:
    window = f"uint8[{window_of(ranks).nbytes}]"
    array = f"int64[{COUNT}]"
    numbers = ("scalar:count", "scalar:rank", "scalar:ranks", "scalar:stride")
    params = {
        "publish": (f"in:x:{array}", f"out:w:{window}", *numbers),
        "collect": (f"in:w:{window}", f"out:y:{array}", *numbers),
        "pass_on": (f"in:v:{window}", f"out:w:{window}", *numbers),
        "step": (f"in:x:{array}", f"in:y:{array}", f"out:z:{array}", "scalar:count"),
    }
    return SubKernel.from_source(str(SOURCE), name, block_dim=blocks, params=params[name], sync_all=False)


def sends(collective: str, group: RankGroup) -> RankSync:
    return RankSync(collective, group, f"w{collective}", True)


def awaits(collective: str, group: RankGroup) -> RankSync:
    return RankSync(collective, group, f"w{collective}", False)


def rank_ops(ranks: int, rank: int, blocks: int = 4) -> list[Op]:
    """Two collectives; the second hands on what all ranks have stored for the first. Ops between them overlap."""
    group, stride = group_of(ranks, rank), window_of(ranks).stride
    numbers = (COUNT, rank, ranks, stride)

    def kernel(name: str) -> SubKernel:
        return rank_kernel(name, blocks, ranks)

    return [
        Op(kernel("step"), ["a", "b", "x", COUNT], name="before"),
        Op(kernel("publish"), ["x", "wc", *numbers], name="publish", ranks=[sends("c", group)]),
        Op(kernel("step"), ["b", "x", "between", COUNT], name="overlapped"),
        Op(kernel("pass_on"), ["wc", "wd", *numbers], name="pass_on", ranks=[awaits("c", group), sends("d", group)]),
        Op(kernel("collect"), ["wc", "first", *numbers], name="collect_c", ranks=[awaits("c", group)]),
        Op(kernel("collect"), ["wd", "second", *numbers], name="collect_d", ranks=[awaits("d", group)]),
        Op(kernel("step"), ["first", "second", "y", COUNT], name="after"),
        Op(kernel("step"), ["between", "y", "b", COUNT], name="carry"),
    ]


def reference(inputs: Sequence[Mapping[str, Array]]) -> list[Array]:
    """What every rank returns in `y`; `b` of the inputs is updated."""

    def step(x: Array, y: Array) -> Array:
        return np.asarray(3 * x + y[::-1] + At)

    def mixed(slots: Sequence[Array], start: int) -> Array:
        value = np.full(COUNT, start)
        for slot in slots:
            value = value * 31 + slot[::-1]
        return value

    x = [step(each["a"], each["b"]) for each in inputs]
    between = [step(each["b"], own) for each, own in zip(inputs, x, strict=True)]
    passed = [mixed(x, rank) for rank in range(len(inputs))]
    y = [step(mixed(x, 0), mixed(passed, 0)) for _ in inputs]
    for each, early, result in zip(inputs, between, y, strict=True):
        each["b"][:] = step(early, result)
    return y


def make_windows(ranks: int, names: Sequence[str] = ("wc", "wd")) -> dict[str, Array]:
    windows = {name: aligned_empty((window_of(ranks).nbytes,), "uint8") for name in names}
    for window in windows.values():
        window[:] = 0
        for rank in range(ranks):
            word(window, rank, layout.GLOBAL_RANK).value = 10 + rank
            word(window, rank, layout.PROCESS).value = 1000 + rank
    return windows


def word(window: Array, rank: int, which: int) -> ctypes.c_uint32:
    """A word of a rank's line."""
    return ctypes.c_uint32.from_address(window.ctypes.data + layout.RANK_LINE * rank + which)


def begin_round(windows: Mapping[str, Array], rank: int) -> None:
    """What a host does before a segment."""
    for window in windows.values():
        current = word(window, rank, layout.ROUND)
        current.value = next_round(current.value)


def inputs_of(ranks: int, seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{name: rng.integers(-1000, 1000, COUNT) for name in ("a", "b")} for _ in range(ranks)]


def in_threads(tasks: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Runs the tasks at once, each in a thread; what each raised."""
    raised: list[BaseException | None] = [None] * len(tasks)

    def run(at: int) -> None:
        try:
            tasks[at]()
        except BaseException as error:
            raised[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def compile_ranks(ranks: int, cores: int, options: str = "", blocks: int = 4) -> list[sk.SuperKernel]:
    return [
        sk.compile(rank_ops(ranks, rank, blocks), f"rank{rank}", options, cores=cores, outputs=["y"])
        for rank in range(ranks)
    ]
