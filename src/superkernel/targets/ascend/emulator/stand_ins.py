"""targets.ascend.emulator.stand_ins: an emitted kernel whose sub-kernels cannot run here -> what stands in for each.

A stand-in reads every input, waits, meets and arrives as its metadata say, and stores numbers that depend on all it
read. Each core of an op is one worker: it stores its chunk of every output, and its word of the op's footprint, which
the ops that must follow read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from superkernel.model.binary import Form
from superkernel.model.graph import Graph
from superkernel.model.hazards import Edge, Hazard
from superkernel.model.node import Node
from superkernel.model.op import place_of
from superkernel.model.options import Options
from superkernel.model.params import Kind
from superkernel.plan.steps import FenceWhen

from ..archive import foreign_member
from ..calling_convention import SyncProtocol
from ..core_types import OpClass
from ..facts import facts_of
from ..kernel_description import EmittedKernel, EmittedOp
from ..operators.describe_op import is_described
from ..schedule import fenced

PATTERN_BYTES = 1024  # of a buffer that stand-ins touch, and the size of a buffer that is not passed
WORD_BYTES = 4
_LINE_WORDS = 64 // WORD_BYTES
_MOST_BARRIERS = 3


class Reads(Enum):
    """What a worker reads of a parameter; as in stand_ins.h."""

    NOTHING = 0
    SCALAR = 1
    WHOLE = 2
    BLOCK = 3  # the equal part of its block
    CHUNK = 4  # what it stores itself


@dataclass(frozen=True)
class Touch:
    """What an op does with one parameter: `words` words of `buffer`, from byte `first` on."""

    slot: int  # from the first slot of the op
    buffer: str | None  # None: a scalar
    reads: Reads
    writes: bool = False
    per_block: bool = False  # a block touches an equal part
    first: int = 0
    skip: int = 0  # bytes from the address in the slot to `first`: words begin at multiples of their size
    words: int = 0
    grain: int = 1  # words that one worker has to itself
    cached_in: bool = False  # through the data cache, which the entry maintains
    cached_out: bool = False

    @property
    def span(self) -> tuple[str | None, int, int]:
        return self.buffer, self.first, self.first + WORD_BYTES * self.words

    def overlaps(self, other: Touch) -> bool:
        (name, begin, end), (other_name, other_begin, other_end) = self.span, other.span
        return name is not None and name == other_name and begin < other_end and other_begin < end

    def same_chunks(self, other: Touch) -> bool:
        return (self.span, self.per_block, self.grain) == (other.span, other.per_block, other.grain)


@dataclass(frozen=True)
class Follow:
    """An op that must have come before."""

    op: int
    own_worker: bool  # the same core of it is enough


@dataclass(frozen=True)
class StandIn:
    op: int
    name: str
    workers_per_block: int
    most_blocks: int
    barriers: int
    waits: bool  # inside itself
    sets: bool
    always_sets: bool  # whatever the entry says, as objects that CANN built do
    touches: tuple[Touch, ...]
    follows: tuple[Follow, ...]
    keys: tuple[tuple[str, int], ...]  # function -> its tiling key

    @property
    def most_workers(self) -> int:
        return self.workers_per_block * self.most_blocks

    @property
    def footprint(self) -> str:
        """The name of the region that holds one word per worker."""
        return f"the footprint of op {self.name!r}"

    @property
    def meeting(self) -> str:
        """The name of the region that holds one word per barrier and worker."""
        return f"the meeting of op {self.name!r}"

    def areas(self) -> Iterator[tuple[str, int]]:
        """Memory that it needs beside its buffers: names and bytes."""
        yield self.footprint, WORD_BYTES * self.most_workers
        if self.barriers:
            yield self.meeting, WORD_BYTES * self.most_workers * self.barriers


def cannot_run_here(emitted: EmittedKernel) -> str | None:
    """The first sub-kernel without code for this machine, and why; None: there is none."""
    for kernel in dict.fromkeys(op.kernel for op in emitted.ops):
        if is_described(kernel):
            return f"sub-kernel {kernel.name!r} has no code"
        if kernel.binary.form is Form.OBJECT and foreign_member(kernel.binary.path) is not None:
            return f"sub-kernel {kernel.name!r} is compiled for another processor ({kernel.binary.path})"
    return None


def make_stand_ins(
    emitted: EmittedKernel, graph: Graph, options: Options, sizes: Mapping[str, int], seed: int
) -> tuple[StandIn, ...]:
    """One per op, in the user's order. `sizes` are the bytes of the buffers; the seed decides how often cores meet."""
    choose = random.Random(seed)
    return tuple(
        StandIn(
            op=op.index,
            name=op.name,
            workers_per_block=1 + op.kernel_type.vectors_per_cube if op.kernel_type.op_class is OpClass.MIX else 1,
            most_blocks=op.blocks,
            barriers=choose.randint(1, _MOST_BARRIERS) if node.kernel.sync_all else 0,
            waits=bool(node.kernel.waits_inside),
            sets=bool(node.kernel.signals_inside),
            always_sets=_always_sets(node),
            touches=_touches(node, options, sizes),
            follows=tuple(_follows(graph, node)),
            keys=tuple(_keys(op)),
        )
        for op, node in zip(emitted.ops, graph.nodes, strict=True)
    )


def _always_sets(node: Node) -> bool:
    """Flags of an object that CANN built cannot be switched off."""
    facts = facts_of(node.kernel)
    return bool(node.kernel.signals_inside) and facts.flags_declared and facts.protocol is SyncProtocol.CANN


def _keys(op: EmittedOp) -> Iterator[tuple[str, int]]:
    for variants in op.variants.values():
        for variant in variants:
            yield from ((function, variant.key) for function in variant.functions)


def _touches(node: Node, options: Options, sizes: Mapping[str, int]) -> tuple[Touch, ...]:
    found: list[Touch] = []
    for slot, (param, argument) in enumerate(zip(node.kernel.params, node.op.args, strict=True)):
        if param.kind is Kind.SCALAR or isinstance(argument, int | float):
            found.append(Touch(slot, None, Reads.SCALAR))
            continue
        place = place_of(argument)
        first = -(-place.offset // WORD_BYTES) * WORD_BYTES
        words = max(0, min(sizes[place.name] - first, PATTERN_BYTES)) // WORD_BYTES
        touch = Touch(
            slot, place.name, _reads(param.kind, param.block), param.kind.writes, param.block, first,
            first - place.offset, words,
        )  # fmt: skip
        found.append(_with_cache(touch, node, options))
    return tuple(_without_conflict(touch, found) for touch in found)


def _reads(kind: Kind, per_block: bool) -> Reads:
    if kind is Kind.IN:
        return Reads.BLOCK if per_block else Reads.WHOLE
    return Reads.CHUNK if kind is Kind.INOUT else Reads.NOTHING


def _with_cache(touch: Touch, node: Node, options: Options) -> Touch:
    """Where the entry maintains the data cache for an op, its loads and stores go through it.

    Not those that the entry's maintenance cannot cover: behind a wait or before an arrival inside the sub-kernel.
    """
    if touch.first % (WORD_BYTES * _LINE_WORDS):
        return touch
    cleaned = [fenced(node, options, when) for when in (FenceWhen.BEFORE, FenceWhen.AFTER)]
    if not any(cleaned):
        return touch
    before, after = cleaned
    cached_in, cached_out = before and not node.kernel.waits_inside, after and not node.kernel.signals_inside
    return replace(touch, grain=_LINE_WORDS, cached_in=cached_in, cached_out=cached_out)


def _without_conflict(touch: Touch, others: list[Touch]) -> Touch:
    """Workers of one op are not ordered: none reads or stores what another one stores."""
    written = [other for other in others if other is not touch and other.writes and touch.overlaps(other)]
    if not written:
        return touch
    if not all(touch.same_chunks(other) for other in written):
        first = touch.writes and all(other.slot > touch.slot for other in written)
        return replace(touch, reads=Reads.NOTHING, writes=first)
    return replace(touch, reads=touch.reads if touch.reads is Reads.NOTHING else Reads.CHUNK)


def _follows(graph: Graph, node: Node) -> Iterator[Follow]:
    """The ops that it depends on; an event stands for all that its sender's stream did before."""
    full: dict[int, None] = {}
    own: dict[int, None] = {}
    for edge in graph.incoming[node.index]:
        (own if _same_cores(graph, edge) else full)[edge.producer] = None
        if any(reason.hazard is Hazard.EVENT for reason in edge.reasons):
            sender = graph.nodes[edge.producer]
            before = graph.order[: graph.order.index(sender.index)]
            full |= dict.fromkeys(op for op in before if graph.nodes[op].stream == sender.stream)
    yield from (Follow(op, False) for op in sorted(full))
    yield from (Follow(op, True) for op in sorted(own.keys() - full.keys()))


def _same_cores(graph: Graph, edge: Edge) -> bool:
    """Whether each consumer core needs only what it stored itself."""
    producer, consumer = graph.nodes[edge.producer], graph.nodes[edge.consumer]
    classes = [facts_of(node.kernel).op_class for node in (producer, consumer)]
    if classes[0] is not classes[1] or classes[0] is OpClass.MIX:
        return False
    return edge.block_local or producer.blocks == consumer.blocks == 1
