"""bench.core_speed: threads of arithmetic -> whether processors are cores: on virtual machines they may share one.

A virtual machine may have its processors on the hardware threads of one core; work of two threads then takes up to
twice as long, for every runner. What is measured on some number of cores waits for them, within limits.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

from .call_rate import clock

_STEPS = 200_000  # about a millisecond
_SAMPLES = 5
SHARED = 0.8  # threads together at less than this share of the speed of one alone do not have cores of their own


def share_of_alone(threads: int) -> float:
    """The speed of each of so many threads that compute at the same time, to that of one alone."""
    loop = clock().time_arithmetic
    loop.restype, loop.argtypes = ctypes.c_double, (ctypes.c_int64,)
    shares: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_SAMPLES):
            alone = loop(_STEPS)
            shares.append(alone / max(pool.map(loop, [_STEPS] * threads)))
    return median(shares)


@dataclass
class CoreWaits:
    """Waits for cores, and what they took."""

    cores: int
    seconds_left: float = 20.0  # for all waits
    longest: float = 8.0
    waited: float = 0.0
    shared: int = 0  # waits that ended without cores
    count: int = 0
    shares: list[float] = field(default_factory=list)

    def wait(self) -> None:
        if self.cores < 2:
            return
        begin = time.monotonic()
        end = begin + min(self.longest, self.seconds_left)
        while (share := share_of_alone(self.cores)) < SHARED and time.monotonic() < end:
            time.sleep(0.5)
        self.count += 1
        self.shared += share < SHARED
        self.shares.append(share)
        spent = time.monotonic() - begin
        if spent > 1:
            self.waited += spent
            self.seconds_left -= spent

    def note(self) -> str:
        return (
            f"before {self.count} rounds, each of {self.cores} threads of arithmetic had {median(self.shares):.2f} of "
            f"the speed of one alone (median; least {min(self.shares):.2f}); {self.waited:.0f} s were waited for cores "
            f"that are not shared, and {self.shared} rounds began without them"
        )
