"""targets.cuda.emulator.emulated_memory: buffers -> ranges of emulated global memory, with room between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .decode import BUFFERS
from .program import Array, DeviceVariable

_ALIGNMENT = 256  # as the driver aligns
_ROOM = 1024  # bytes between two ranges, so that a step over an end is seen


@dataclass(frozen=True, eq=False)
class MemoryRange:
    """A piece of emulated memory. `tracked`: warps write it, so that accesses are checked for races."""

    name: str
    address: int
    content: Array  # bytes
    tracked: bool = True
    readable: bool = True
    writable: bool = True
    outside: bool = False  # the host may change it at any time
    late: bool = False  # not to be touched before griddepcontrol.wait
    part: int = 0  # block i may touch bytes i * part to (i + 1) * part; 0: all
    shared: bool = False  # other devices see it under the same address


@dataclass
class EmulatedMemory:
    ranges: dict[str, MemoryRange] = field(default_factory=dict)
    _next: int = BUFFERS

    def add(self, name: str, content: Array, *, offset: int = 0, **flags: bool | int) -> MemoryRange:
        """Memory with this content; its address is `offset` bytes behind a multiple of the usual alignment."""
        place = MemoryRange(name, self._next + offset % _ALIGNMENT, content, **flags)  # type: ignore[arg-type]
        self._next = -(-(place.address + content.size + _ROOM) // _ALIGNMENT) * _ALIGNMENT
        self.ranges[name] = place
        return place

    def add_variables(self, variables: Iterable[DeviceVariable]) -> None:
        for variable in variables:
            content = np.frombuffer(variable.content, np.uint8).copy()
            name = f"variable {variable.name}"
            self.ranges[name] = MemoryRange(name, variable.address, content)
