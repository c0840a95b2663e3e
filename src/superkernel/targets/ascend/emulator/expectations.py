"""targets.ascend.emulator.expectations: an emitted kernel and its graph -> what every launch of it must keep.

The emulator checks these while cores run, by what cores have learned from flags and words: see order.cpp and words.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from superkernel.model.graph import Graph
from superkernel.model.options import PreloadCode

from ..core_types import KernelType
from ..kernel_description import EmittedKernel, EmittedOp
from ..parameter_block import word_names
from .library import OpDescription

TYPES = {kind: number for number, kind in enumerate(KernelType)}  # as in machine.h
UNKNOWN = -1  # blocks of a dynamic op before its tiling is known


class WordKind(Enum):
    """What a word is for; as in machine.h."""

    NOTIFY = 0  # the kernel sets it to 1, once, when its ops have stored
    WAIT = 1  # an agent sets it to 1; the kernel sees that before its ops begin, and resets it
    LOCK = 2  # the kernel asks with 2, an agent answers with 1, the kernel resets it
    GO = 3  # the kernel sets it to 1, once, before its op; the copy engine takes it
    TELL = 4  # the kernel sets it to 1, once, when its ops have stored; the kernel of another rank takes it


@dataclass(frozen=True)
class ExpectedWord:
    slot: int
    kind: WordKind
    ops: tuple[int, ...]


@dataclass(frozen=True)
class Need:
    """What must have been stored before an op passes its wait point, or begins."""

    producer: int
    consumer: int
    block_local: bool
    before_wait: bool


def needs_of(graph: Graph) -> Iterator[Need]:
    """An event orders all that its sender's stream did before."""
    for edge in graph.edges:
        producer = graph.nodes[edge.producer]
        yield Need(edge.producer, edge.consumer, edge.block_local, edge.before_wait)
        if edge.whole_stream:
            for node in graph.nodes[: producer.index]:
                if node.stream == producer.stream:
                    yield Need(node.index, edge.consumer, False, False)


def words_of(emitted: EmittedKernel) -> Iterator[ExpectedWord]:
    """One per word; an event that several ops use has one."""
    indices = {op.name: op.index for op in emitted.ops}
    events: dict[str, ExpectedWord] = {}
    for event in emitted.events:
        told = WordKind.TELL if event.between_ranks else WordKind.NOTIFY
        kind = told if event.sent else WordKind.WAIT
        ops = _sent_by(emitted.ops, indices[event.op]) if event.sent else (indices[event.op],)
        known = events.get(event.label)
        events[event.label] = ExpectedWord(event.slot, kind, (*known.ops, *ops) if known else ops)
    yield from events.values()
    for tiling in emitted.tilings:
        yield ExpectedWord(tiling.lock_slot, WordKind.LOCK, (indices[tiling.op],))
    for prefetch in emitted.prefetches:
        yield ExpectedWord(prefetch.go_slot, WordKind.GO, (indices[prefetch.op],))


def _sent_by(ops: tuple[EmittedOp, ...], sender: int) -> tuple[int, ...]:
    """The sender first, then all that its stream did before."""
    before = [op.index for op in ops[:sender] if op.stream == ops[sender].stream]
    return (sender, *before)


def functions_text(op: EmittedOp, key: int | None = None) -> bytes:
    """The functions that may be called for an op, of one tiling key or of all, as the library takes them."""
    variants = [v for of_class in op.variants.values() for v in of_class if key is None or v.key == key]
    return "\n".join(["", *(name for variant in variants for name in variant.functions), ""]).encode()


def describe(
    calls: ctypes.CDLL, machine: int, emitted: EmittedKernel, graph: Graph, addresses: Mapping[int, int]
) -> None:
    """Tell the emulated chip; `addresses`: slot -> the word it points to."""
    for op in emitted.ops:
        calls.sk_emu_op(machine, ctypes.byref(_description(op, emitted.preload_code)))
    for need in needs_of(graph):
        calls.sk_emu_need(machine, need.producer, need.consumer, need.block_local, need.before_wait)
    names = word_names(emitted)
    for word in words_of(emitted):
        address = addresses[word.slot]
        calls.sk_emu_word(machine, address, names[word.slot].encode(), word.kind.value)
        for index in dict.fromkeys(word.ops):
            calls.sk_emu_word_op(machine, address, index)


def data_words(emitted: EmittedKernel) -> Iterable[int]:
    """Slots of words that an agent writes before it sets a lock: they are read like buffers."""
    return [slot for tiling in emitted.tilings for slot in (tiling.key_slot, tiling.blocks_slot)]


def _description(op: EmittedOp, preload_code: PreloadCode) -> OpDescription:
    return OpDescription(
        name=op.name.encode(),
        functions=functions_text(op),
        first_slot=op.first_slot,
        blocks=UNKNOWN if op.dynamic else op.blocks,
        stream=op.stream,
        copies=op.copies,
        type=TYPES[op.kernel_type],
        dynamic=op.dynamic,
        preloaded=preload_code is PreloadCode.PER_FUNC,
    )
