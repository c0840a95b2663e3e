"""targets.cpu.series: several super kernels and where their values come from -> launches in a row, from one C call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...protocol import SequencedLaunch
from . import host_library as hostlib
from .launch import CpuExecutable, may_interrupt


class CpuLaunchSequence:
    """One launch after the other, each with a state and a parallel region of its own; Python is left once."""

    def __init__(self, legs: Sequence[SequencedLaunch]) -> None:
        self._legs = legs
        self._executables = [_of_this_target(leg) for leg in legs]
        self._recorded = any(executable.recorded for executable in self._executables)
        self._keep = [_as_seen_by_c(leg, executable) for leg, executable in zip(legs, self._executables, strict=True)]
        self._array = (hostlib.SequencedLaunch * len(legs))(*self._keep)
        self._call = self._executables[0].host.unconverted("sk_call_series")
        self._first, self._count = ctypes.c_void_p(ctypes.addressof(self._array)), len(legs)

    def launch_values(self, values: Any, sizes: Any) -> None:
        if self._recorded:
            self._launch_each(values, sizes, [])
            return
        self._launch_all(values, sizes, None)

    def launch_timed(self, values: Any, sizes: Any, moments: list[tuple[int, int]]) -> None:
        if self._recorded:
            self._launch_each(values, sizes, moments)
            return
        times = (ctypes.c_uint64 * (2 * self._count))()
        try:
            self._launch_all(values, sizes, times)
        finally:
            moments += [(times[2 * i], times[2 * i + 1]) for i in range(self._count) if times[2 * i + 1]]

    def _launch_all(self, values: Any, sizes: Any, moments: Any) -> None:
        self._executables[0].check_process()
        outcome = self._call(self._first, self._count, values, sizes, may_interrupt(), moments)
        if outcome:
            leg = 0 if outcome < 0 else self._executables[0].host.free.sk_launch_leg(outcome)
            raise self._executables[leg].stopped(outcome, op_label=self._legs[leg].op_label)

    def _launch_each(self, values: Any, sizes: Any, moments: list[tuple[int, int]]) -> None:
        """The time stamps of a launch are collected before the next one."""
        for leg, executable in zip(self._legs, self._executables, strict=True):
            own_values, own_sizes = executable.argument_arrays()
            for i, origin in enumerate(leg.origins):
                own_values[i] = origin.addend + (0 if origin.place is None else values[origin.place])
                own_sizes[i] = 0 if origin.place is None else max(0, sizes[origin.place] - origin.addend)
            executable.launch_values(own_values, own_sizes, leg.op_label)
            moments.append(executable.last_launch())


def _of_this_target(leg: SequencedLaunch) -> CpuExecutable:
    assert isinstance(leg.executable, CpuExecutable)
    return leg.executable


def _as_seen_by_c(leg: SequencedLaunch, executable: CpuExecutable) -> hostlib.SequencedLaunch:
    count = len(leg.origins)
    places = (-1 if origin.place is None else origin.place for origin in leg.origins)
    addends = (origin.addend for origin in leg.origins)
    return hostlib.SequencedLaunch(
        executable.program, count, (ctypes.c_int32 * count)(*places), (ctypes.c_uint64 * count)(*addends)
    )
