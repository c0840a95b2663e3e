"""observe.gather: launches as they were told -> the facts of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cache import digest
from ..model.graph import Graph
from ..model.node import Node
from ..model.params import Kind
from ..plan import Plan
from ..plan.plan import SyncKind
from ..plan.spans import spans_of
from ..runtime.launch_events import LaunchedKernel, LaunchEvent, Provenance, TorchKernel
from .facts import EdgeFact, ForeignFact, KernelFact, LaunchFact, OpFact, Profile, SpanFact
from .types import core_type_of, op_type, type_of

NO_KERNEL = -1
_READS, _WRITES = (Kind.IN, Kind.INOUT), (Kind.OUT, Kind.INOUT)


def gather(
    launches: Sequence[LaunchEvent],
    began_ns: int,
    epoch_ns: int,
    detail: bool,
    package: str,
    machine: dict[str, Any],
    notes: Sequence[str] = (),
) -> Profile:
    """`began_ns` is monotonic, as the times of the launches are; `epoch_ns` is the same moment since 1970."""
    found = _Gathered(began_ns)
    for launch in sorted(launches, key=lambda one: one.begin_ns):
        found.add(launch)
    kernels = tuple(kernel.fact() for kernel in found.kernels.values())
    foreign = tuple(dict.fromkeys(found.foreign))
    return Profile(
        package,
        epoch_ns,
        detail,
        machine,
        tuple(found.launches),
        kernels,
        tuple(found.spans),
        foreign,
        None,
        tuple(notes),
    )


@dataclass
class _Kernel:
    """A graph that was launched in one way."""

    graph: Graph
    note: Provenance
    fused: bool
    identity: str
    sizes: tuple[int, ...]
    plan: Plan
    whole: LaunchedKernel | None
    runs: int = 0

    def fact(self) -> KernelFact:
        graph, note = self.graph, self.note
        kinds = {(sync.edge.producer, sync.edge.consumer): sync.kind.value for sync in self.plan.syncs}
        names = [node.name for node in graph.nodes]
        edges = tuple(
            EdgeFact(
                names[edge.producer],
                names[edge.consumer],
                kinds.get((edge.producer, edge.consumer), "barrier"),  # between launches everything waits
                tuple(map(str, edge.reasons)),
            )
            for edge in graph.edges
        )
        return KernelFact(
            self.identity,
            graph.name,
            note.scope,
            str(self.plan.options),
            self.plan.cores,
            self.fused,
            self.runs,
            note.reason,
            note.unfusible,
            self._ops(),
            edges,
            str(self.whole.plan) if self.whole else "",
            self.whole.source if self.whole else "",
        )

    def _ops(self) -> tuple[OpFact, ...]:
        moved = bytes_moved(self.graph, self.sizes)
        return tuple(
            OpFact(
                node.name,
                op_type(node),
                node.blocks,
                node.stream,
                *moved[node.index],
                next(iter(self.note.origins.get(node.name, ())), ""),
            )
            for node in (self.graph.nodes[index] for index in self.graph.order)
        )


def bytes_moved(graph: Graph, sizes: Sequence[int]) -> dict[int, tuple[int | None, int | None]]:
    """Op -> bytes of the buffers that it reads and that it writes; each counts once per op, a part up to its end.

    A buffer that an op may also read has to hold something first: from outside, or from an earlier op.
    """
    known = dict(zip(graph.buffers, sizes, strict=False)) if sizes else {}
    filled = {name for name, buffer in graph.buffers.items() if buffer.needs_value}
    found: dict[int, tuple[int | None, int | None]] = {}
    for index in graph.order:
        read: dict[str, int] = {}
        written: dict[str, int] = {}
        for param, place in graph.nodes[index].places():
            if param.kind is Kind.SCALAR:
                continue
            nbytes = param.nbytes if param.nbytes is not None else max(0, known.get(place.name, 0) - place.offset)
            if param.kind is Kind.IN or (param.kind in _READS and place.name in filled):
                read[place.name] = max(nbytes, read.get(place.name, 0))
            if param.kind in _WRITES:
                written[place.name] = max(nbytes, written.get(place.name, 0))
        filled |= written.keys()
        complete = known or all(p.nbytes is not None for p, _ in graph.nodes[index].arguments())
        found[index] = (sum(read.values()), sum(written.values())) if complete else (None, None)
    return found


def identity_of(graph: Graph, sizes: Sequence[int]) -> str:
    """The same for the same ops on buffers of the same sizes, whatever their names and however they are launched."""
    place = {name: at for at, name in enumerate(graph.buffers)}

    def argument(node: Node) -> str:
        places = {param.name: f"{place[where.name]}+{where.offset}" for param, where in node.places()}
        return " ".join(
            places.get(param.name, str(value)) for param, value in zip(node.kernel.params, node.op.args, strict=True)
        )

    lines = [f"{graph.nodes[i].kernel.type_name} {argument(graph.nodes[i])}" for i in graph.order]
    return digest(*lines, str(tuple(sizes)))[:16]


@dataclass
class _Gathered:
    began_ns: int
    launches: list[LaunchFact] = field(default_factory=list)
    spans: list[SpanFact] = field(default_factory=list)
    foreign: list[ForeignFact] = field(default_factory=list)
    kernels: dict[tuple[int, bool], _Kernel] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # thread -> 0, 1, ... as they appear
    ended_ns: dict[int, int] = field(default_factory=dict)  # thread -> when its last launch completed

    def add(self, launch: LaunchEvent) -> None:
        what = launch.kernel
        thread = self.numbers.setdefault(launch.thread, len(self.numbers))
        wait_ns = max(0, launch.begin_ns - self.ended_ns.get(thread, launch.begin_ns))
        self.ended_ns[thread] = launch.end_ns
        if isinstance(what, TorchKernel):
            if what.reason:
                self.foreign.append(ForeignFact(what.name, what.scope, what.reason))
            name, blocks, stream, scope, kernel = what.name, 0, 0, what.scope, NO_KERNEL
        else:
            kernel, scope = self._kernel(launch, what), what.provenance.scope
            if what.node is None:
                name, blocks, stream = what.graph.name, what.plan.cores, what.graph.nodes[what.graph.order[0]].stream
            else:
                name, blocks, stream = what.node.name, what.node.blocks, what.node.stream
        duration_us = (launch.end_ns - launch.begin_ns) / 1000
        self._add_spans(launch, len(self.launches))
        self.launches.append(
            LaunchFact(
                name, type_of(launch), core_type_of(launch), blocks, self._us(launch.begin_ns), duration_us,
                wait_ns / 1000, thread, stream, scope, kernel,
            )
        )  # fmt: skip

    def _us(self, ns: float) -> float:
        return (ns - self.began_ns) / 1000

    def _kernel(self, launch: LaunchEvent, what: LaunchedKernel) -> int:
        fused = what.node is None
        key = id(what.provenance), fused  # one per super kernel
        found = self.kernels.get(key)
        if found is None:
            identity = identity_of(what.graph, launch.sizes)
            whole = what if what.node is None else None
            found = _Kernel(what.graph, what.provenance, fused, identity, launch.sizes, what.plan, whole)
            self.kernels[key] = found
        if what.node is None or what.node.index == what.graph.order[0]:
            found.runs += 1
        return list(self.kernels).index(key)

    def _add_spans(self, launch: LaunchEvent, number: int) -> None:
        if launch.time_stamps is None or isinstance(launch.kernel, TorchKernel):
            return
        what = launch.kernel
        barriers = {sync.edge.consumer for sync in what.plan.syncs if sync.kind is SyncKind.BARRIER}
        ops = {node.name: node.index for node in what.plan.graph.nodes}
        for span in spans_of(what.plan, launch.time_stamps.step_times()):
            kind = "barrier" if span.what == "wait" and ops.get(span.op or "") in barriers else span.what
            op = span.op or ""
            if what.node is not None and op:
                op = what.node.name  # alone, an op has a name that all ops of its kernel share
            self.spans.append(SpanFact(number, span.core, kind, op, self._us(span.begin_ns), self._us(span.end_ns)))
