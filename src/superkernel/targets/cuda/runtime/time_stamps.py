"""targets.cuda.runtime.time_stamps: %globaltimer values of a launch -> the time of every mark on the host's clock."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_uint64, c_void_p, pointer
from dataclasses import dataclass
from functools import cache
from time import monotonic, monotonic_ns
from typing import Any

import numpy as np

from ....errors import LaunchError
from ....plan.spans import StepTime
from .device import CudaDevice
from .driver_functions import CuLaunchConfig

_READ_TIMER = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry sk_read_timer(.param .u64 out)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, %globaltimer;
    st.global.u64 [%rd1], %rd2;
    ret;
}
\0"""
_ROUNDS = 8
_VALID_S = 10.0  # the two clocks drift apart


@dataclass(frozen=True)
class CudaTimeStamps:
    """The stamps of one launch, as the cores wrote them."""

    stamps: np.ndarray[Any, np.dtype[np.uint64]]  # per core
    steps: Sequence[Sequence[int]]  # per core: the step of the plan of each stamp
    offset_ns: int  # to add to %globaltimer

    def step_times(self) -> list[StepTime]:
        return [
            StepTime(core, step, float(int(ns) + self.offset_ns))
            for core, steps in enumerate(self.steps)
            for step, ns in zip(steps, self.stamps[core].tolist(), strict=False)
        ]


class DeviceClock:
    """The difference between %globaltimer of a device and the host's monotonic clock, measured now and then."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._function: int | None = None
        self._address = 0
        self._offset: tuple[float, int] | None = None  # when it was measured, and the value
        self._useless = False  # the driver cannot compile the kernel that reads the timer

    def offset_ns(self, stamps: np.ndarray[Any, np.dtype[np.uint64]], completed_ns: int) -> int:
        """What added to %globaltimer gives monotonic nanoseconds. The device is current.

        Without a measurement the last stamp of the launch counts as the moment of its completion.
        """
        if not self._useless and (self._offset is None or monotonic() - self._offset[0] > _VALID_S):
            try:
                self._offset = monotonic(), self._measure()
            except LaunchError:
                self._useless = True
        if self._offset is not None:
            return self._offset[1]
        return completed_ns - int(stamps.max(initial=0))

    def _measure(self) -> int:
        """The shortest of several round trips: the timer was read in the middle of it."""
        device, doing = self._device, "reading the timer of the GPU"
        if self._function is None:
            module = device.driver.handle(doing, "cuModuleLoadData", _READ_TIMER)
            self._function = device.driver.handle(doing, "cuModuleGetFunction", module, b"sk_read_timer")
            self._address = device.allocate(8, doing)
        parameter, value = c_uint64(self._address), c_uint64()
        parameters = (c_void_p * 1)(addressof(parameter))
        config = CuLaunchConfig((1, 1, 1), (1, 1, 1), 0, device.side_stream, None, 0)
        trips = []
        for _ in range(_ROUNDS):
            begin = monotonic_ns()
            device.driver.check(doing, "cuLaunchKernelEx", pointer(config), self._function, parameters, None)
            device.finish(device.side_stream, doing)
            end = monotonic_ns()
            device.download(addressof(value), self._address, 8, doing)
            trips.append((end - begin, (begin + end) // 2 - value.value))
        return min(trips)[1]


@cache
def device_clock(device: CudaDevice) -> DeviceClock:
    return DeviceClock(device)
