"""graph: a list of ops -> named ops in a legal order, buffers by name, and the dependency edges between ops."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..errors import GraphError, PlanError, counted, nearest, shown
from .collectives import Collective, find_collectives
from .events import Event
from .gc_pause import without_collection
from .hazards import Edge, find_edges, with_wait_points
from .node import Node
from .op import EventId, Op, Place
from .params import Kind, Param, check_name
from .subkernel import ShownFacts, SubKernel


@dataclass(frozen=True)
class Buffer:
    """A name used by ops: memory, or a scalar passed by name."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    scalar: bool
    read: bool
    written: bool
    produced: bool  # written by something else than a workspace parameter
    needs_value: bool  # some op reads it before any op has written it
    reach: int = 0  # the largest offset at which an op takes it, in bytes
    least_bytes: int = 0  # where the last of the parts ends that ops take by offset
    window: bool = False  # memory that other ranks see: the caller passes it

    @property
    def typed(self) -> bool:
        return self.dtype is not None and self.shape is not None

    @property
    def nbytes(self) -> int | None:
        return Param(Kind.IN, self.name, self.dtype, self.shape).nbytes

    @property
    def constant(self) -> bool:
        return not self.scalar and not self.written

    @property
    def can_allocate(self) -> bool:
        """Whether a launch can allocate it: its size is known, and no op reads it before an op writes it."""
        return self.typed and not self.needs_value and not self.scalar and not self.window


@dataclass(frozen=True)
class ExternalEvent:
    """An event that the ops only send or only receive, with the Event object if the user gave one."""

    label: str
    bound: Event | None


@dataclass(frozen=True)
class Graph:
    name: str
    nodes: tuple[Node, ...]  # in the user's order
    order: tuple[int, ...]  # node indices in a legal serial order
    edges: tuple[Edge, ...]
    buffers: dict[str, Buffer] = field(hash=False)
    events: tuple[ExternalEvent, ...]
    title: str | None = None  # what its binary is called: graphs that differ in name only then share it
    outputs: tuple[str, ...] = ()  # names that a launch returns if it allocates them
    collectives: tuple[Collective, ...] = ()  # in the serial order of their senders
    part: bool = False  # of a longer list, whose other ops are launched by themselves

    @property
    def label(self) -> str:
        """The name in emitted code."""
        return self.title or self.name

    @cached_property
    def incoming(self) -> tuple[tuple[Edge, ...], ...]:
        lists: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            lists[edge.consumer].append(edge)
        return tuple(tuple(edges) for edges in lists)

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """Names that a launch can allocate and that no caller sees: their memory may be shared.

        Python functions that compute tilings are callers too: they see the inputs of dynamic ops.
        """
        seen = {*self.outputs}
        for node in self.nodes:
            if node.asks_agent:
                seen.update(name for param, name in node.arguments() if param.kind.reads)
        return tuple(name for name, buffer in self.buffers.items() if buffer.can_allocate and name not in seen)

    def weights_of(self, node: Node) -> tuple[str, ...]:
        """The inputs of an op that no op of the graph writes."""
        names = (name for param, name in node.arguments() if param.kind is Kind.IN and self.buffers[name].constant)
        return tuple(dict.fromkeys(names))

    def with_kernels(self, resolved: dict[SubKernel, SubKernel]) -> Graph:
        """The same graph with what the target found out about its sub-kernels."""
        nodes = tuple(replace(node, kernel=resolved.get(node.kernel, node.kernel)) for node in self.nodes)
        return replace(self, nodes=nodes, edges=with_wait_points(nodes, self.edges))

    def __str__(self) -> str:
        sizes = (len(self.nodes), "op"), (len(self.buffers), "buffer"), (len(self.edges), "edge")
        lines = [f"graph {self.name}: {', '.join(counted(*size) for size in sizes)}"]
        for index in self.order:
            node = self.nodes[index]
            args = ", ".join(f"{p.kind.value} {arg}" for p, arg in zip(node.kernel.params, node.op.args, strict=True))
            notes = f"  stream {node.stream}" if node.stream else ""
            notes += "".join(f"  sends {e}" for e in node.notifies) + "".join(f"  receives {e}" for e in node.awaits)
            for sync in node.ranks:
                notes += f"  {'notifies' if sync.sends else 'waits for'} the ranks of {sync.group}: {sync.collective}"
            lines.append(f"  {index:>4} {node.name}: {node.kernel.name}<{node.blocks}>({args}){notes}")
            for edge in self.incoming[index]:
                why = "; ".join(map(str, edge.reasons))
                lines.append(f"         after {self.nodes[edge.producer].name}: {why}")
        for kernel in dict.fromkeys(node.kernel for node in self.nodes):
            if isinstance(kernel.target_facts, ShownFacts):
                lines.append(f"  {kernel.name}: {kernel.target_facts}")
        return "\n".join(lines)


@without_collection
def build_graph(
    ops: Sequence[Op],
    name: str = "super_kernel",
    stream_fusion: bool = False,
    outputs: Sequence[str] | None = None,
    *,
    part: bool = False,
) -> Graph:
    """Name the ops, order them, and find what depends on what.

    `outputs` are the names that a launch returns; None: those whose last value no op reads. `part`: the ops are a part
    of a longer list whose other ops are launched by themselves; collectives may reach across launches.
    """
    check_name(name, "the super kernel's name")
    try:
        graph = _build_graph(ops, name, stream_fusion, part)
        chosen = _unread_names(graph) if outputs is None else _checked_outputs(graph, outputs)
        return replace(graph, outputs=chosen)
    except (GraphError, PlanError) as error:
        raise type(error)(f"super_kernel_scope {shown(name)}: {error}") from None


def _build_graph(ops: Sequence[Op], name: str, stream_fusion: bool, part: bool) -> Graph:
    if not isinstance(ops, Sequence):
        raise GraphError(f"ops is a list of Op, not one {type(ops).__name__}")
    if not ops:
        raise GraphError("the list of ops is empty")
    for op in ops:
        if not isinstance(op, Op):
            raise GraphError(f"the list of ops contains a {type(op).__name__}, which is no Op")
    names = _name_ops(ops)
    labels = _label_events(ops)
    senders = _find_senders(ops, names, labels)
    receivers = {labels[e] for op in ops for e in op.recv}
    pairs = _inner_events(ops, names, labels, senders, stream_fusion)
    order = _serial_order(ops, names, pairs)
    nodes = tuple(
        Node(
            i,
            names[i],
            op,
            op.kernel,
            tuple(labels[e] for e in op.send),
            tuple(labels[e] for e in op.recv),
            tuple(labels[e] for e in op.send if labels[e] not in receivers),
            tuple(labels[e] for e in op.recv if labels[e] not in senders),
        )
        for i, op in enumerate(ops)
    )
    buffers = _collect_buffers(nodes, order)
    collectives = find_collectives(nodes, order, part)
    for collective in collectives:
        buffers[collective.window] = replace(buffers[collective.window], window=True)
    edges = find_edges(nodes, order, pairs)
    bound = {labels[e]: e for e in labels if isinstance(e, Event)}
    external = dict.fromkeys(label for node in nodes for label in node.notifies + node.awaits)
    events = tuple(ExternalEvent(label, bound.get(label)) for label in external)
    return Graph(name, nodes, order, edges, buffers, events, collectives=collectives, part=part)


def _unread_names(graph: Graph) -> tuple[str, ...]:
    """The names whose last value no op reads; scratch memory holds no value."""
    unread: dict[str, bool] = {}
    for index in graph.order:
        for param, name in graph.nodes[index].arguments():
            if param.kind is Kind.IN:
                unread[name] = False
        for param, name in graph.nodes[index].arguments():
            if param.kind in (Kind.OUT, Kind.INOUT):
                unread[name] = True
    return tuple(name for name in graph.buffers if unread.get(name))


def _checked_outputs(graph: Graph, outputs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise GraphError(f"outputs={shown(outputs)}: pass a list of names, such as outputs=['c']")
    for name in outputs:
        if not isinstance(name, str) or name not in graph.buffers:
            raise GraphError(f"outputs: no op uses the name {shown(name)}{nearest(name, graph.buffers)}")
        if not graph.buffers[name].written:
            what = "scalar" if graph.buffers[name].scalar else "name"
            raise GraphError(f"outputs: no op writes the {what} {shown(name)}, so a launch cannot return it")
    return tuple(dict.fromkeys(outputs))


def _name_ops(ops: Sequence[Op]) -> list[str]:
    given = [op.name for op in ops if op.name is not None]
    if len(set(given)) < len(given):
        twice = next(name for name, count in Counter(given).items() if count > 1)
        raise GraphError(f"two ops are called {shown(twice)}; op names must differ")
    taken, names, counts = set(given), [], dict[str, int]()
    for op in ops:
        if op.name is not None:
            names.append(op.name)
            continue
        base = name = op.kernel.name
        while name in taken:
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
        taken.add(name)
        names.append(name)
    return names


def _label_events(ops: Sequence[Op]) -> dict[EventId, str]:
    """A printable label per event id; an unnamed Event gets its place of first use."""
    labels: dict[EventId, str] = {}
    for op in ops:
        for event in (*op.send, *op.recv):
            if event not in labels:
                labels[event] = str(event if not isinstance(event, Event) else event.name or f"event{len(labels)}")
    if len(set(labels.values())) != len(labels):
        clash = next(v for v in labels.values() if list(labels.values()).count(v) > 1)
        raise GraphError(f"two different event ids are both called {shown(clash)}")
    return labels


def _find_senders(ops: Sequence[Op], names: list[str], labels: dict[EventId, str]) -> dict[str, int]:
    senders: dict[str, int] = {}
    for i, op in enumerate(ops):
        for event in op.send:
            label = labels[event]
            if label in senders:
                raise PlanError(
                    f"event {label} has two senders: op {shown(names[senders[label]])} and op {shown(names[i])}"
                )
            senders[label] = i
    return senders


def _inner_events(
    ops: Sequence[Op], names: list[str], labels: dict[EventId, str], senders: dict[str, int], stream_fusion: bool
) -> list[tuple[int, int, str]]:
    """(sender, receiver, label) of each event that an op of the list sends and another receives."""
    if ops[0].recv:
        first = f"op {shown(names[0])} is the first of the list and receives event {labels[ops[0].recv[0]]}"
        raise PlanError(f"{first}: wait for it before the launch")
    pairs = []
    for i, op in enumerate(ops):
        for event in op.recv:
            label = labels[event]
            if label not in senders:
                continue
            sender = senders[label]
            if sender == i:
                raise PlanError(f"op {shown(names[i])} sends and receives event {label}: it would wait for itself")
            if sender > i and ops[sender].stream == op.stream:
                raise PlanError(
                    f"op {shown(names[i])} receives event {label} before op {shown(names[sender])} sends it, "
                    f"both in stream {op.stream}"
                )
            if sender > i and not stream_fusion:
                raise PlanError(
                    f"op {shown(names[i])} (stream {op.stream}) receives event {label} that op {shown(names[sender])} "
                    f"(stream {ops[sender].stream}) sends later in the list: reorder the list or set stream-fusion=1"
                )
            pairs.append((sender, i, label))
    return pairs


def _serial_order(ops: Sequence[Op], names: list[str], pairs: list[tuple[int, int, str]]) -> tuple[int, ...]:
    """The legal order nearest to the list: streams in list order, senders before receivers."""
    after: list[list[int]] = [[] for _ in ops]
    missing = [0] * len(ops)
    previous: dict[int, int] = {}
    links = [(s, r) for s, r, _ in pairs]
    for i, op in enumerate(ops):
        if op.stream in previous:
            links.append((previous[op.stream], i))
        previous[op.stream] = i
    for first, second in links:
        after[first].append(second)
        missing[second] += 1
    ready = [i for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for follower in after[i]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(ops):
        stuck = ", ".join([repr(names[i]) for i, count in enumerate(missing) if count][:8])
        raise PlanError(f"events and streams form a cycle among the ops {stuck}: nothing could start")
    return tuple(order)


def _collect_buffers(nodes: tuple[Node, ...], order: tuple[int, ...]) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    for index in order:
        node = nodes[index]
        fresh: dict[str, Buffer] = {}
        for param, place in node.places():
            before = buffers.get(place.name)
            known = fresh.get(place.name, before)
            joined = _join(known, before, place.seen_as(param), place, node.name)
            part_end = place.offset + (param.nbytes or 0) if place.offset else 0
            fresh[place.name] = replace(joined, least_bytes=max(joined.least_bytes, part_end))
        buffers |= fresh
    _check_reach(nodes, buffers)
    return buffers


def _check_reach(nodes: tuple[Node, ...], buffers: dict[str, Buffer]) -> None:
    short = {b.name: b.nbytes for b in buffers.values() if b.nbytes is not None and b.least_bytes > b.nbytes}
    if not short:
        return
    for node in nodes:
        for param, place in node.places():
            size = short.get(place.name)
            if size is None or not place.offset or place.offset + (param.nbytes or 0) <= size:
                continue
            taken = f"from byte {place.offset} on"
            if place.offset <= size:
                taken = f"up to byte {place.offset + (param.nbytes or 0)} ({param} from byte {place.offset} on)"
            raise GraphError(f"op {shown(node.name)} takes {shown(place.name)} {taken}, but it has {size} bytes")


def _join(known: Buffer | None, before: Buffer | None, param: Param, place: Place, op: str) -> Buffer:
    scalar, name = param.kind is Kind.SCALAR, place.name
    if known is None:
        known = Buffer(name, None, None, scalar, False, False, False, False)
    if known.scalar != scalar:
        raise GraphError(f"op {shown(op)}: {shown(name)} is a scalar in one place and memory in another")
    count = None if known.shape is None else math.prod(known.shape)
    for what, old, new in (("dtype", known.dtype, param.dtype), ("elements", count, param.elements)):
        if old is not None and new is not None and old != new:
            raise GraphError(
                f"op {op!r}: parameter {shown(param.name)} says {what} {new} for {name!r}, an earlier op says {old}"
            )
    return Buffer(
        name,
        known.dtype or param.dtype or ("int64" if scalar else None),
        known.shape if known.shape is not None else param.shape,
        scalar,
        known.read or param.kind.reads,
        known.written or param.kind.writes,
        known.produced or param.kind in (Kind.OUT, Kind.INOUT),
        known.needs_value or (param.kind.reads and not (before and before.written)),
        max(known.reach, place.offset),
        known.least_bytes,
    )
