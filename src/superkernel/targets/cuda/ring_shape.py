"""targets.cuda.ring_shape: staged sub-kernels -> the ring of weights of an SM, and where its parts lie.

The ring is at the beginning of the slot's shared memory, as the staged sub-kernels have it there when they fill it
themselves: chunks, then two barriers for each (full, empty), then the word that says how many were taken. The shared
memory of other sub-kernels begins behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...model.subkernel import SubKernel
from .task_layout import SLOT_ALIGNMENT

BARRIER_BYTES = 8
STAGING_THREADS = 128  # that fill the ring
_TAKEN_BYTES = 16


@dataclass(frozen=True)
class RingShape:
    slots: int
    slot_bytes: int  # room for a chunk
    flying: int  # chunks on their way at a time
    arrivals: int  # that make a slot empty again

    @property
    def full_offset(self) -> int:
        """Of the barriers that a copy completes on, from the beginning of the ring."""
        return self.slots * self.slot_bytes

    @property
    def empty_offset(self) -> int:
        """Of the barriers at which the readers of a chunk arrive."""
        return self.full_offset + BARRIER_BYTES * self.slots

    @property
    def taken_offset(self) -> int:
        return self.empty_offset + BARRIER_BYTES * self.slots

    @property
    def nbytes(self) -> int:
        """Where the shared memory of other sub-kernels begins."""
        return -(-(self.taken_offset + _TAKEN_BYTES) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def ring_of(kernels: Iterable[SubKernel]) -> RingShape | None:
    """The ring that these staged sub-kernels share; None: there are none."""
    found = [kernel.staged_input for kernel in kernels if kernel.staged_input is not None]
    if not found:
        return None
    first = found[0]
    return RingShape(first.slots, first.slot_bytes, min(staged.flying for staged in found), first.arrivals)
