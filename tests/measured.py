"""Limits on measured time that hold on a machine that does other things as well, and numbers of costly examples.

Other work can only add time. So a limit counts as missed after several measurements, each of which missed it; the first
that keeps it is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

TRIES = 8


def examples(count: int) -> int:
    """How many examples a property test has whose examples are compiled: a quarter of `count` in the `quick` profile of
    hypothesis, five times as many in `long`, which is for `make conformance`."""
    return max(1, count * settings().max_examples // 200)


def sample(values: Iterable[object], count: int = 1) -> list[Any]:
    """Parameters of a test: the first `count` in every run, the others in `make conformance`."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.conformance][: at >= count])
        for at, value in enumerate(values)
    ]


def processor_seconds(work: Callable[[], object]) -> float:
    """What the calling thread computed meanwhile, whatever other threads and processes did."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def least(measure: Callable[[], float], limit: float, tries: int = TRIES) -> float:
    """The first measurement under the limit; if there is none among so many, the least."""
    smallest = float("inf")
    for _ in range(tries):
        smallest = min(smallest, measure())
        if smallest < limit:
            break
    return smallest


def grows_by(small: Callable[[], object], large: Callable[[], object], limit: float, room: float = 0.0) -> float:
    """How many times the processor time of `small` that of `large` is, both at their least; `room` is subtracted."""
    times = [float("inf"), float("inf")]
    for _ in range(TRIES):
        for which, work in enumerate((small, large)):
            times[which] = min(times[which], processor_seconds(work))
        if times[1] - room < limit * times[0]:
            break
    return (times[1] - room) / times[0]
