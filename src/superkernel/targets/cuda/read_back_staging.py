"""targets.cuda.read_back_staging: what goes into the rings of SMs, as the table says it, compared with the plan."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import zip_longest

from ...plan import Plan
from ...plan.steps import Call, StageWeights
from .numbering import CudaNumbering
from .table_bytes import PooledRegion, TableBytes, Words
from .task_layout import ARGUMENT_BYTES, STAGE_ENTRY_BYTES, WORD, StageWord

Chunk = tuple[str, int, int]  # buffer, first byte, number of bytes


def compare_staged(table: TableBytes, numbers: CudaNumbering, arguments: PooledRegion, offset: int, begin: int) -> int:
    """The end of the entries, which are at `offset` and should begin at `begin`."""
    if numbers.shape.slots != 1:
        table.wrong(f"weights are staged for {numbers.shape.slots} slots of an SM, which take them in no order")
    if offset != begin:
        table.wrong(f"the staged inputs are listed at {offset}, they should be at {begin}")
    entries = list(_entries(table, offset))
    inputs = [_input(table, numbers, arguments, words) for words in entries]
    for sm in range(numbers.shape.sms):
        found = (
            (name, base + place, nbytes)
            for (name, base), words in zip(inputs, entries, strict=True)
            for place, nbytes in _chunks(words, sm)
        )
        for number, (given, wanted) in enumerate(zip_longest(found, _planned(numbers.plan, sm))):
            if given != wanted:
                table.wrong(f"chunk {number} that SM {sm} stages is {given}, it should be {wanted}")
    return begin + STAGE_ENTRY_BYTES * (len(entries) + 1)


def _entries(table: TableBytes, offset: int) -> Iterator[Words]:
    while True:
        words = table.words(offset, STAGE_ENTRY_BYTES // WORD)
        if any(words[len(StageWord) :]) or (not words[StageWord.ARGUMENT] and any(words)):
            table.wrong(f"a staged input has the words {words}")
        if not words[StageWord.ARGUMENT]:
            return
        yield words
        offset += STAGE_ENTRY_BYTES


def _input(table: TableBytes, numbers: CudaNumbering, arguments: PooledRegion, words: Words) -> tuple[str, int]:
    names = {8 * place: name for name, place in numbers.buffer_place.items()}
    content = table.pooled(arguments, words[StageWord.ARGUMENT], ARGUMENT_BYTES)
    source, stride, addend = struct.unpack("<IIQ", content)
    if source not in names or stride or not words[StageWord.BLOCKS]:
        table.wrong(f"an input that is staged is {source}, {stride}, {addend}, for {words[StageWord.BLOCKS]} blocks")
    return names[source], addend


def _chunks(words: Words, sm: int) -> Iterator[tuple[int, int]]:
    """Of one SM: first byte, number of bytes; as the emitted code counts, without sign."""
    block = (sm - words[StageWord.FIRST]) % (1 << 32)
    if block >= words[StageWord.BLOCKS]:
        return
    for chunk in range(block, words[StageWord.CHUNKS], words[StageWord.BLOCKS]):
        ends = chunk + 1 == words[StageWord.CHUNKS]
        yield chunk * words[StageWord.BYTES], words[StageWord.LAST if ends else StageWord.BYTES]


def _planned(plan: Plan, core: int) -> Iterator[Chunk]:
    """Chunk by chunk, as the blocks of the core read them."""
    calls = {step.op: step for step in plan.steps if isinstance(step, Call)}
    for step in plan.steps:
        if not isinstance(step, StageWeights) or core not in step.cores:
            continue
        node, call = plan.graph.nodes[step.op], calls[step.op]
        staged = node.kernel.staged_input
        assert staged is not None
        ((total, offset),) = [(p.nbytes or 0, place.offset) for p, place in node.places() if p.name == staged.param]
        for block in range(call.cores.index(core), min(call.blocks, staged.blocks), len(call.cores)):
            for place in range(block * staged.chunk_bytes, total, staged.blocks * staged.chunk_bytes):
                yield step.name, offset + place, min(staged.chunk_bytes, total - place)
