"""targets.cpu.runtime.launch_sequence: loaded kernels -> launches in order, started by one C call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...protocol import SequencedLaunch, TimedLaunch
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
            self.launch_timed(values, sizes, [])
        else:
            self._launch_all(values, sizes, None, None)

    def launch_timed(self, values: Any, sizes: Any, times: list[TimedLaunch]) -> None:
        pairs = (ctypes.c_uint64 * (2 * self._count))()
        buffers = [kernel.stamp_buffer() if kernel.recorded else None for kernel in self._kernels]
        rooms = None
        if self._recorded:
            addresses = (None if buffer is None else ctypes.addressof(buffer) for buffer in buffers)
            rooms = (ctypes.c_void_p * self._count)(*addresses)
        try:
            self._launch_all(values, sizes, pairs, rooms)
        finally:
            for i, (kernel, buffer) in enumerate(zip(self._kernels, buffers, strict=True)):
                if pairs[2 * i + 1] or (buffer is not None and buffer[0]):  # it completed
                    stamps = None if buffer is None else kernel.keep_stamps(buffer)
                    times.append((pairs[2 * i], pairs[2 * i + 1], stamps))

    def _launch_all(self, values: Any, sizes: Any, times: Any, rooms: Any) -> None:
        self._kernels[0].check_process()
        outcome = self._call(self._first, self._count, values, sizes, may_interrupt(), times, rooms)
        if outcome:
            failed = 0 if outcome < 0 else self._kernels[0].host.gil_released.sk_launch_position(outcome)
            raise self._kernels[failed].stopped(outcome, op_label=self._launches[failed].op_label)


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
