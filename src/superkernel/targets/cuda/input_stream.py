"""targets.cuda.input_stream: steps of a plan that ask for inputs ahead of their ops -> entries of the table, and back.

Requests go to the L2 cache, which all SMs share: they change no value, whenever they are made.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ...plan import Plan
from ...plan.steps import Call, PrefetchWeights
from .task_layout import NO_GATE, STREAM_ENTRY_BYTES, StreamWord

_LINE = 128


@dataclass(frozen=True)
class StreamEntry:
    """A part of an input, asked for by all SMs together."""

    gate: int  # tasks that the first slot of the SM has begun by then
    late: int  # with more than these it is no longer needed
    name: str
    begin: int  # bytes
    share: int  # of an SM
    end: int

    def packed(self, argument: int) -> bytes:
        words = {
            StreamWord.GATE: self.gate,
            StreamWord.LATE: self.late,
            StreamWord.ARGUMENT: argument,
            StreamWord.BEGIN: self.begin,
            StreamWord.SHARE: self.share,
            StreamWord.END: self.end,
        }
        return struct.pack(f"<{len(StreamWord)}I", *(words[word] for word in StreamWord)).ljust(
            STREAM_ENTRY_BYTES, b"\0"
        )


LAST_ENTRY = struct.pack("<I", NO_GATE).ljust(STREAM_ENTRY_BYTES, b"\0")
MOST_BYTES = 1 << 32  # of an input: places are words


def stream_of(plan: Plan, program: Sequence[int], calls: Sequence[bool]) -> Iterator[StreamEntry]:
    """The entries of an SM, from the steps of its first core; `calls`: which tasks of that core run a sub-kernel.

    The gate opens when the task behind the last call before the step begins; a part is late when the task behind the
    last call up to that of its op has begun.
    """
    places = [0, *(number + 1 for number, runs in enumerate(calls) if runs)]  # behind so many calls
    call_of = {step.op: number for number, step in enumerate(plan.steps) if isinstance(step, Call)}
    own = [number for number in program if isinstance(plan.steps[number], Call)]
    for number in program:
        step = plan.steps[number]
        if isinstance(step, PrefetchWeights) and step.part is not None and step.part[1] < MOST_BYTES:
            begin, end = step.part
            share = -(-(end - begin) // len(step.cores) // _LINE) * _LINE
            gate = 1 + places[bisect_left(own, number)]
            late = places[bisect_right(own, call_of[step.op])]
            yield StreamEntry(gate, late, step.names[0], begin, share, end)


def read_stream(
    words_at: Callable[[int, int], tuple[int, ...]],
    offset: int,
    name_of: Callable[[int], str],
    unknown: Callable[[tuple[int, ...]], NoReturn],
) -> Iterator[StreamEntry]:
    """The entries of a table from `offset` on; `name_of`: the input whose address is an argument.

    `unknown` raises for words that mean nothing.
    """
    while True:
        words = words_at(offset, STREAM_ENTRY_BYTES // 4)
        if words[StreamWord.GATE] == NO_GATE:
            return
        if any(words[len(StreamWord) :]):
            unknown(words)
        name = name_of(words[StreamWord.ARGUMENT])
        begin, share, end = (words[word] for word in (StreamWord.BEGIN, StreamWord.SHARE, StreamWord.END))
        yield StreamEntry(words[StreamWord.GATE], words[StreamWord.LATE], name, begin, share, end)
        offset += STREAM_ENTRY_BYTES
