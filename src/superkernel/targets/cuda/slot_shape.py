"""targets.cuda.slot_shape: the slots of an SM -> their threads, and where their shared memory lies."""

from __future__ import annotations

from dataclasses import dataclass

from .ring_shape import STAGING_THREADS, RingShape
from .task_layout import TABLE_ALIGNMENT, TASK_BYTES, WORD, shared_words_offset

WARP = 32


@dataclass(frozen=True)
class SlotShape:
    """The slots of an SM."""

    slots: int
    threads: int  # of a slot: those of the widest sub-kernel, in whole warps
    shared_bytes: int  # of a slot
    delays: bool = False  # waits and signals are delayed, for tests
    streams: bool = False  # one more warp asks for the inputs of later ops
    clusters: bool = False  # SMs of a cluster raise words in each other's shared memory
    ring: RingShape | None = None  # more warps fill it with the weights of later ops; in the only slot

    @property
    def slot_threads(self) -> int:
        """Of all slots."""
        return self.slots * self.threads

    @property
    def block_threads(self) -> int:
        return self.staging_thread + (STAGING_THREADS if self.ring else 0)

    @property
    def staging_thread(self) -> int:
        """The first of the threads that fill the ring."""
        return self.slot_threads + (WARP if self.streams else 0)

    @property
    def keeps_identity(self) -> bool:
        """Whether threads keep what they are in registers, from task to task."""
        return self.slots == 1

    @property
    def control_offset(self) -> int:
        """Where the words behind the shared memory of the slots begin."""
        return self.slots * self.shared_bytes

    def total_shared(self, words: int) -> int:
        """Bytes of shared memory of a launch with so many counters among the cores of an SM."""
        return self.control_offset + shared_words_offset(self.slots) + WORD * words

    def shared_with_table(self, words: int, copy_bytes: int) -> int:
        """The same with what is copied of the task table behind the counters; the task behind its end is asked for."""
        return aligned(self.total_shared(words)) + aligned(copy_bytes) + TASK_BYTES


def aligned(size: int) -> int:
    return -(-size // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
