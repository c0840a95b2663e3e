"""targets.cpu.runtime.launch_sequence: loaded kernels -> launches in order, started by one C call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...protocol import SequencedLaunch
from .host_library import LaunchStructure
from .launch import CpuLoadedKernel, may_interrupt


class CpuLaunchSequence:
    """Launches in order, each with its own state and parallel region; the interpreter is left once."""

    def __init__(self, launches: Sequence[SequencedLaunch]) -> None:
        self._launches = launches
        self._kernels = [_cpu_kernel(launch) for launch in launches]
        self._recorded = any(kernel.recorded for kernel in self._kernels)
        # kept: they own the arrays that the C array points to
        self._structures = [_structure(launch, kernel) for launch, kernel in zip(launches, self._kernels, strict=True)]
        self._array = (LaunchStructure * len(launches))(*self._structures)
        self._call = self._kernels[0].host.unconverted("sk_call_sequence")
        self._first, self._count = ctypes.c_void_p(ctypes.addressof(self._array)), len(launches)

    def launch_values(self, values: Any, sizes: Any) -> None:
        if self._recorded:
            self._launch_each(values, sizes, [])
            return
        self._launch_all(values, sizes, None)

    def launch_timed(self, values: Any, sizes: Any, times: list[tuple[int, int]]) -> None:
        if self._recorded:
            self._launch_each(values, sizes, times)
            return
        pairs = (ctypes.c_uint64 * (2 * self._count))()
        try:
            self._launch_all(values, sizes, pairs)
        finally:
            times += [(pairs[2 * i], pairs[2 * i + 1]) for i in range(self._count) if pairs[2 * i + 1]]

    def _launch_all(self, values: Any, sizes: Any, times: Any) -> None:
        self._kernels[0].check_process()
        outcome = self._call(self._first, self._count, values, sizes, may_interrupt(), times)
        if outcome:
            failed = 0 if outcome < 0 else self._kernels[0].host.gil_released.sk_launch_position(outcome)
            raise self._kernels[failed].stopped(outcome, op_label=self._launches[failed].op_label)

    def _launch_each(self, values: Any, sizes: Any, times: list[tuple[int, int]]) -> None:
        """The time stamps of a launch are collected before the next launch."""
        for launch, kernel in zip(self._launches, self._kernels, strict=True):
            kernel_values, kernel_sizes = kernel.argument_arrays()
            for i, source in enumerate(launch.sources):
                kernel_values[i] = source.addend + (0 if source.place is None else values[source.place])
                kernel_sizes[i] = 0 if source.place is None else max(0, sizes[source.place] - source.addend)
            kernel.launch_values(kernel_values, kernel_sizes, launch.op_label)
            times.append(kernel.last_launch())


def _cpu_kernel(launch: SequencedLaunch) -> CpuLoadedKernel:
    assert isinstance(launch.kernel, CpuLoadedKernel)
    return launch.kernel


def _structure(launch: SequencedLaunch, kernel: CpuLoadedKernel) -> LaunchStructure:
    count = len(launch.sources)
    places = (-1 if source.place is None else source.place for source in launch.sources)
    addends = (source.addend for source in launch.sources)
    return LaunchStructure(
        kernel.program, count, (ctypes.c_int32 * count)(*places), (ctypes.c_uint64 * count)(*addends)
    )
