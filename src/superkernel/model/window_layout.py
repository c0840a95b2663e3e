"""window_layout: ranks and bytes per slot -> where the words and slots of a window lie; the layout of window.h.

A window is the shared memory of one collective: a line of words for each rank, then the slots, two for each rank. The
slots of a round have its parity, so that a rank can store into one while others still read the one of the round before.
"""

from __future__ import annotations

from dataclasses import dataclass

RANK_LINE = 128  # bytes: adjacent-line prefetch, as between the words of cores
LINE, PAGE = 64, 4096
FAILED = 0xFFFFFFFF  # as the round at which a rank has arrived: the rank has failed
ALIGNMENT = PAGE  # of a window's beginning

# the words of a rank's line: offsets in bytes
ARRIVED, SLEEPERS, ROUND, PATIENCE_MS, GLOBAL_RANK, PROCESS, STRIDE = range(0, 28, 4)  # the stride has 8 bytes
THREAD = STRIDE + 8


@dataclass(frozen=True)
class WindowLayout:
    """The window of a group of `ranks` ranks, each of which stores up to `slot_bytes` bytes per round."""

    ranks: int
    slot_bytes: int

    @property
    def stride(self) -> int:
        """From one slot to the next: whole cache lines, and whole pages if it is larger than one."""
        unit = PAGE if self.slot_bytes > PAGE else LINE
        return max(unit, _round_up(self.slot_bytes, unit))

    @property
    def slots(self) -> int:
        """Where the slots begin."""
        return slots_offset(self.ranks, self.stride)

    @property
    def nbytes(self) -> int:
        return self.slots + 2 * self.ranks * self.stride

    def line(self, rank: int) -> int:
        """Where the words of a rank lie."""
        return RANK_LINE * rank

    def slot(self, round_number: int, rank: int) -> int:
        """Where a rank stores in a round."""
        return self.slots + ((round_number & 1) * self.ranks + rank) * self.stride


def slots_offset(ranks: int, stride: int) -> int:
    """Where the slots begin: behind the lines, and at a page if they are as large as one."""
    return _round_up(ranks * RANK_LINE, PAGE if stride >= PAGE else LINE)


def next_round(round_number: int) -> int:
    """Rounds are 32 bits wide and skip FAILED and 0, the round of a window that no rank has used.

    Two rounds in a row differ in parity, also where the numbers wrap.
    """
    return 2 if round_number == FAILED - 2 else (round_number + 1) & 0xFFFFFFFF


def has_arrived(arrived: int, round_number: int) -> bool:
    """Whether a rank whose last published round is `arrived` has published `round_number`: rounds wrap."""
    return arrived != FAILED and (arrived - round_number) & 0xFFFFFFFF < 1 << 31


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
