"""targets.cpu.runtime.time_stamps: the record of a launch, as the library wrote it -> the time of every mark."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....plan.spans import StepTime

_STAMP = np.dtype([("ticks", np.uint64), ("step", np.uint32), ("unused", np.uint32)])  # as in state.h
_CLOCK = 4  # words before the counts: nanoseconds and ticks at the begin and end of the launch


def stamp_buffer(cores: int, marks: int) -> Callable[[], Any]:
    """A function that gives memory for the record of one launch, as sk_launch_record writes it."""
    kind: Callable[[], Any] = ctypes.c_uint64 * (_CLOCK + cores + 2 * cores * marks)
    return kind


@dataclass(frozen=True)
class CpuTimeStamps:
    """The record of one launch, as it was written."""

    cores: int
    raw: Any

    def step_times(self) -> Sequence[StepTime]:
        """Ticks to nanoseconds, by the two clock readings of the launch."""
        words = np.frombuffer(self.raw, np.uint64)
        began_ns, ended_ns, began_ticks, ended_ticks = (int(word) for word in words[:_CLOCK])
        rate = (ended_ns - began_ns) / max(1, ended_ticks - began_ticks)
        counts = [int(count) for count in words[_CLOCK : _CLOCK + self.cores]]
        stamps = words[_CLOCK + self.cores :].view(_STAMP)
        times, at = [], 0
        for core, count in enumerate(counts):
            taken = stamps[at : at + count]
            at += count
            since = (taken["ticks"] - np.uint64(began_ticks)).astype(np.int64) * rate
            times += [
                StepTime(core, step, began_ns + ns)
                for step, ns in zip(taken["step"].tolist(), since.tolist(), strict=True)
            ]
        return times
