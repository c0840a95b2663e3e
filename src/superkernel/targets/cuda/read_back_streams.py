"""targets.cuda.read_back_streams: what SMs ask for ahead of their ops, as the table says it, compared with the plan."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NoReturn

from ...plan import steps
from ...plan.steps import Call
from .input_stream import MOST_BYTES, StreamEntry, read_stream
from .numbering import CudaNumbering
from .table_bytes import PooledRegion, TableBytes, Words
from .task_layout import ARGUMENT_BYTES, STREAM_ENTRY_BYTES, WORD, PartWord

_LINE = 128


class StreamComparison:
    """What SMs ask for ahead of their ops."""

    def __init__(self, table: TableBytes, numbers: CudaNumbering, arguments: PooledRegion) -> None:
        self.table, self.numbers, self.arguments = table, numbers, arguments
        self.call_of = {step.op: number for number, step in enumerate(numbers.plan.steps) if isinstance(step, Call)}

    def compare(self, parts: Sequence[Words], begin: int, calls: Mapping[int, Sequence[bool]]) -> int:
        """The end of the entries, which begin at `begin`. `calls`: of the tasks of a core, which run a sub-kernel."""
        known: dict[int, tuple[StreamEntry, ...]] = {}
        for sm, part in enumerate(parts):
            offset, end = part[PartWord.INPUTS], part[PartWord.INPUTS_END]
            if offset not in known:
                if offset != begin:
                    self.table.wrong(f"SM {sm} asks for what is listed at {offset}, it should at {begin}")
                known[offset] = tuple(read_stream(self.table.words, offset, self._name, self._unknown))
                begin += STREAM_ENTRY_BYTES * (len(known[offset]) + 1)
                last = self.table.words(begin - STREAM_ENTRY_BYTES, STREAM_ENTRY_BYTES // WORD)
                if any(last[1:]):
                    self.table.wrong(f"the end of a list of inputs has the words {last}")
            if end != offset + STREAM_ENTRY_BYTES * (len(known[offset]) + 1):
                self.table.wrong(f"what SM {sm} asks for is listed from {offset} to {end}")
            self._compare_sm(sm, known[offset], calls[sm])
        return begin

    def _unknown(self, words: Words) -> NoReturn:
        self.table.wrong(f"a part of an input has the words {words}")

    def _name(self, offset: int) -> str:
        content = self.table.pooled(self.arguments, offset, ARGUMENT_BYTES)
        names = {8 * place: name for name, place in self.numbers.buffer_place.items()}
        source, stride, addend = struct.unpack("<IIQ", content)
        if source not in names or stride or addend:
            self.table.wrong(f"an input that is asked for is {source}, {stride}, {addend}")
        return names[source]

    def _compare_sm(self, sm: int, entries: tuple[StreamEntry, ...], calls: Sequence[bool]) -> None:
        """Every part once, in order; from the task behind the calls that precede it in the plan, until its op ends."""
        plan = self.numbers.plan
        behind_call = [0, *(place + 1 for place, runs in enumerate(calls) if runs)]
        own = {number for number in self.numbers.programs[sm] if isinstance(plan.steps[number], Call)}
        calls_before = list(accumulate((number in own for number in range(len(plan.steps))), initial=0))
        given = iter(entries)
        for number in self.numbers.programs[sm]:
            step = plan.steps[number]
            if not isinstance(step, steps.PrefetchWeights) or step.part is None or step.part[1] >= MOST_BYTES:
                continue
            entry = next(given, None)
            if entry is None or (entry.name, entry.begin, entry.end) != (step.names[0], *step.part):
                self.table.wrong(f"SM {sm} asks for {entry}, it should {plan.describe(step)}")
            ended = calls_before[self.call_of[step.op] + 1]
            gates = 1 + behind_call[calls_before[number]], behind_call[ended]
            rest = entry.share * len(step.cores) - (entry.end - entry.begin)
            if (entry.gate, entry.late) != gates or entry.share % _LINE or not 0 <= rest < _LINE * len(step.cores):
                self.table.wrong(f"SM {sm} asks for {entry}, it should between {gates}, in equal shares")
        if next(given, None) is not None:
            self.table.wrong(f"SM {sm} asks for more than the plan says")
