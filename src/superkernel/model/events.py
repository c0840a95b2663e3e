"""events: a 64-bit word that a launch waits for or sets, shared with Python threads, C code and other launches."""

from __future__ import annotations

import ctypes
import math
import time

from ..errors import GraphError, LaunchError, shown
from .plain_values import plain_number

SIGNALLED = 1
_SPINS = 200
_SLEEP_S = 50e-6


class Event:
    """1 means signalled. Set and wait from Python; `address` gives the word to C or to another kernel."""

    __slots__ = ("__weakref__", "_storage", "_word", "name")

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise GraphError(f"the name of an event is {shown(name)}; a text or None is needed")
        self.name = name
        # a separate cache line, so that polling causes no false sharing
        self._storage = ctypes.create_string_buffer(128)
        start = (ctypes.addressof(self._storage) + 63) & ~63
        self._word = ctypes.c_int64.from_address(start)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._word)

    def set(self) -> None:
        self._word.value = SIGNALLED

    def clear(self) -> None:
        self._word.value = 0

    def is_set(self) -> bool:
        return bool(self._word.value == SIGNALLED)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the event is signalled; False when `timeout` seconds pass first."""
        end = None if timeout is None else time.monotonic() + self._seconds(timeout)
        spins = 0
        while self._word.value != SIGNALLED:
            if end is not None and time.monotonic() >= end:
                return False
            spins += 1
            time.sleep(0 if spins < _SPINS else _SLEEP_S)
        return True

    def _seconds(self, timeout: object) -> float:
        seconds = plain_number(timeout)
        if isinstance(seconds, int) or (isinstance(seconds, float) and not math.isnan(seconds)):
            return float(min(max(seconds, -1), 2**40))
        raise LaunchError(f"event {shown(self.name)}: timeout is {shown(timeout)}; give seconds, or None to wait")

    def __repr__(self) -> str:
        return f"Event({shown(self.name)}, {'set' if self.is_set() else 'clear'})"
