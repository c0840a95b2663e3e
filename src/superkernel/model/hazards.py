"""hazards: ops in a legal order -> dependency edges: which op must follow which, and on which buffer or event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from .node import Node
from .params import Param


class Hazard(Enum):
    READ_AFTER_WRITE = "read-after-write"
    WRITE_AFTER_READ = "write-after-read"
    WRITE_AFTER_WRITE = "write-after-write"
    EVENT = "event"


@dataclass(frozen=True)
class Reason:
    """Why one op must follow another: the hazard, and the buffer or event it is on."""

    hazard: Hazard
    on: str
    block_local: bool = False  # both sides promise @block with equal parts
    before_wait: bool = False  # the consumer touches the buffer before its wait point
    # Both sides promise @block on equal shapes with unequal block counts: block i of C consumer blocks needs only the
    # producer blocks floor(i P / C) to ceil((i + 1) P / C) - 1 of P.
    ranged: bool = False

    def __str__(self) -> str:
        return f"{self.hazard.value} on {self.on!r}"


@dataclass(frozen=True)
class Edge:
    """`consumer` needs `producer`; an event edge needs everything before the sender in its stream as well."""

    producer: int
    consumer: int
    reasons: tuple[Reason, ...]

    @property
    def block_local(self) -> bool:
        return all(reason.block_local for reason in self.reasons)

    @property
    def before_wait(self) -> bool:
        return any(reason.before_wait for reason in self.reasons)

    @property
    def whole_stream(self) -> bool:
        return any(reason.hazard is Hazard.EVENT for reason in self.reasons)


@dataclass
class _Access:
    """The accesses to one buffer since, and including, its last write."""

    writer: tuple[int, Param | None] | None = None  # op, and its parameter if it promises @block
    readers: list[tuple[int, Param | None]] = field(default_factory=list)


def find_edges(nodes: tuple[Node, ...], order: tuple[int, ...], pairs: list[tuple[int, int, str]]) -> tuple[Edge, ...]:
    received: dict[int, list[tuple[int, str]]] = {}
    for sender, receiver, label in pairs:
        received.setdefault(receiver, []).append((sender, label))
    accesses: dict[str, _Access] = {}
    edges: list[Edge] = []
    for index in order:
        found: dict[int, list[Reason]] = {}
        for name, params in _by_name(nodes[index]).items():
            for producer, reason in _hazards(nodes, index, name, params, accesses.setdefault(name, _Access())):
                found.setdefault(producer, []).append(reason)
        for sender, label in received.get(index, ()):
            found.setdefault(sender, []).append(Reason(Hazard.EVENT, label))
        edges += [Edge(producer, index, tuple(dict.fromkeys(found[producer]))) for producer in sorted(found)]
    return tuple(edges)


def with_wait_points(nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """The edges with what the sub-kernels of the nodes access before their wait points."""
    early = {node.index: _accessed_early(node) for node in nodes}
    return tuple(_with_early(edge, early[edge.consumer]) for edge in edges)


def _with_early(edge: Edge, early: set[str]) -> Edge:
    reasons = tuple(
        reason if reason.hazard is Hazard.EVENT else replace(reason, before_wait=reason.on in early)
        for reason in edge.reasons
    )
    return edge if reasons == edge.reasons else replace(edge, reasons=reasons)


def _accessed_early(node: Node) -> set[str]:
    """The buffers that an op accesses before its wait point."""
    names = node.kernel.read_before_wait
    return {name for param, name in node.arguments() if param.name in names} if names else set()


def _by_name(node: Node) -> dict[str, list[Param]]:
    by_name: dict[str, list[Param]] = {}
    for param, name in node.arguments():
        by_name.setdefault(name, []).append(param)
    return by_name


def _hazards(
    nodes: tuple[Node, ...], index: int, name: str, params: list[Param], access: _Access
) -> Iterable[tuple[int, Reason]]:
    """The hazards of one op on one buffer; updates `access`."""
    kernel = nodes[index].kernel
    reads, writes = any(p.kind.reads for p in params), any(p.kind.writes for p in params)
    part = params[0] if all(p.block and p.shape == params[0].shape for p in params) else None
    before_wait = any(p.name in kernel.read_before_wait for p in params)

    def reason(hazard: Hazard, access: tuple[int, Param | None]) -> tuple[int, Reason]:
        producer, producer_part = access
        first, second = nodes[producer], nodes[index]
        parts = part is not None and producer_part is not None and part.shape == producer_part.shape
        parts = parts and not first.dynamic and not second.dynamic
        equal = first.blocks == second.blocks
        # Without a shape the promise does not say where a part ends, so parts of unequal counts cannot be compared.
        ranged = parts and not equal and part is not None and part.shape is not None
        return producer, Reason(hazard, name, parts and equal, before_wait, ranged)

    if reads and access.writer is not None:
        yield reason(Hazard.READ_AFTER_WRITE, access.writer)
    if writes:
        yield from [reason(Hazard.WRITE_AFTER_READ, reader) for reader in access.readers if reader[0] != index]
        if access.writer is not None and not access.readers:
            yield reason(Hazard.WRITE_AFTER_WRITE, access.writer)
        access.writer, access.readers = (index, part), []
    elif reads:
        access.readers.append((index, part))
