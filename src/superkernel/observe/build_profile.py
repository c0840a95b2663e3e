"""observe.build_profile: launch events -> the Profile of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cache import digest
from ..model.gc_pause import without_collection
from ..model.graph import Graph
from ..model.node import Node
from ..model.params import Kind
from ..plan import Plan
from ..plan.plan import SyncKind
from ..plan.spans import RECORDED_MEETINGS, Span, StepTime, spans_of
from ..plan.steps import Call, SpanKind
from ..plan.wait_causes import WaitCauses
from ..runtime.launch_events import LaunchedKernel, LaunchEvent, Provenance, TorchKernel
from ..targets.protocol import LaunchPlan
from ..version import __version__
from .machine import machine_facts
from .op_types import core_type_of, op_type, type_of
from .profile import Profile, ProfiledCollective, ProfiledEdge, ProfiledKernel, ProfiledLaunch, ProfiledOp

_READS, _WRITES = (Kind.IN, Kind.INOUT), (Kind.OUT, Kind.INOUT)


@without_collection  # a long run makes a million spans and no garbage
def build_profile(events: Sequence[LaunchEvent], monotonic_ns: int, began_ns: int, detail: bool) -> Profile:
    """Both times are the beginning of the profile: on the clock of the events, and since 1970."""
    builder = _ProfileBuilder(monotonic_ns)
    launches = tuple(builder.launch(event) for event in sorted(events, key=lambda event: event.begin_ns))
    kernels = tuple(run.profiled() for run in builder.runs.values())
    facts, notes = machine_facts(events), tuple(builder.notes)
    return Profile(launches, kernels, facts, detail=detail, notes=notes, package=__version__, began_ns=began_ns)


class _ProfileBuilder:
    """Numbers threads, calls and kernels in the order of their first launch."""

    def __init__(self, monotonic_ns: int) -> None:
        self._zero_ns = monotonic_ns
        self.notes: dict[str, None] = {}  # each once, in order
        self._calls: dict[int, int] = {}  # number of the process -> number in this profile
        self._call_count = 0
        self._span_readers: dict[int, _SpanReader] = {}  # by plan, which the events keep alive
        self.runs: dict[tuple[int, bool], _KernelRuns] = {}  # by provenance, which every super kernel has, and fused
        self._threads: dict[int, int] = {}  # thread identifier -> number
        self._completed_ns: dict[int, int] = {}  # thread -> when its last launch completed

    def launch(self, event: LaunchEvent) -> ProfiledLaunch:
        kernel = event.kernel
        thread = self._threads.setdefault(event.thread, len(self._threads))
        wait_ns = max(0, event.begin_ns - self._completed_ns.get(thread, event.begin_ns))
        self._completed_ns[thread] = event.end_ns
        times = event.begin_ns - self._zero_ns, event.end_ns - self._zero_ns
        cores = core_type_of(event)
        launch = ProfiledLaunch(
            kernel.name,
            type_of(event),
            *times,
            core_type=cores,
            wait_ns=wait_ns,
            thread=thread,
            call=self._call_number(event),
        )
        if isinstance(kernel, TorchKernel):
            return replace(launch, scope=kernel.scope, reason=kernel.reason)
        node = kernel.node or kernel.graph.nodes[kernel.graph.order[0]]
        return replace(
            launch,
            scope=kernel.provenance.scope,
            kernel=self._kernel_number(event, kernel),
            block_dim=kernel.plan.cores if kernel.node is None else node.blocks,
            stream=node.stream,
            spans=tuple(self._spans(event, kernel)),
        )

    def _call_number(self, event: LaunchEvent) -> int:
        if event.call in self._calls:
            return self._calls[event.call]
        number, self._call_count = self._call_count, self._call_count + 1
        if event.call is not None:
            self._calls[event.call] = number
        return number

    def _kernel_number(self, event: LaunchEvent, kernel: LaunchedKernel) -> int:
        key = id(kernel.provenance), kernel.node is None
        if key not in self.runs:
            self.runs[key] = _KernelRuns(kernel, event.sizes, len(self.runs))
        run = self.runs[key]
        if kernel.node is None or kernel.node.index == kernel.graph.order[0]:
            run.count += 1
        return run.number

    def _spans(self, event: LaunchEvent, kernel: LaunchedKernel) -> Iterator[Span]:
        if event.time_stamps is None:
            return
        plan = kernel.plan
        reader = self._span_readers.get(id(plan))
        if reader is None:
            reader = self._span_readers[id(plan)] = _SpanReader(plan)
        spans = reader.spans(event.time_stamps.step_times(), self._zero_ns)
        for op in reader.cut_short(spans):
            self.notes[
                f"{kernel.graph.name}: of the waits of {op} in sync_all the first {RECORDED_MEETINGS} of each launch "
                "are recorded; later ones count as work"
            ] = None
        if kernel.node is None:
            yield from spans
            return
        # the plan of an op that is launched by itself is shared by all ops of its kernel, and names none of them
        for span in spans:
            yield span if span.op is None else replace(span, op=kernel.node.name)


class _SpanReader:
    """The time stamps of the launches of one plan -> their spans, with what each wait waited for."""

    def __init__(self, plan: Plan) -> None:
        names = plan.op_names
        self._plan, self._causes = plan, WaitCauses(plan)
        self._barriers = {names[sync.edge.consumer] for sync in plan.syncs if sync.kind is SyncKind.BARRIER}
        self._meets = any(isinstance(step, Call) and step.team for step in plan.steps)

    def spans(self, times: Sequence[StepTime], zero_ns: int) -> list[Span]:
        found = []
        for span in self._causes.explained(spans_of(self._plan, times)):
            at_barrier = span.what is SpanKind.WAIT and not span.inside and span.op in self._barriers
            begin_ns, end_ns = round(span.begin_ns - zero_ns, 1), round(span.end_ns - zero_ns, 1)
            what = SpanKind.BARRIER if at_barrier else span.what
            cause = span.inside, span.waited_for, span.signalled_by
            found.append(Span(span.core, what, span.op, begin_ns, max(begin_ns, end_ns), *cause))
        return found

    def cut_short(self, spans: Sequence[Span]) -> list[str]:
        """Ops that called sync_all as often as is recorded, and perhaps more often."""
        if not self._meets:
            return []
        meetings = Counter((span.op, span.core) for span in spans if span.inside and span.what is SpanKind.BARRIER)
        return sorted({op for (op, _), count in meetings.items() if op is not None and count >= RECORDED_MEETINGS})


@dataclass
class _KernelRuns:
    """A super kernel that was launched in one way, fused or op by op."""

    launched: LaunchedKernel  # the first of its launches
    sizes: tuple[int, ...]
    number: int
    count: int = 0

    def profiled(self) -> ProfiledKernel:
        launched = self.launched
        described = profiled_kernel(launched.graph, launched.plan, launched.provenance, launched.source, self.sizes)
        if launched.node is None:
            return replace(described, runs=self.count)
        edges = tuple(replace(edge, sync=SyncKind.BARRIER) for edge in described.edges)  # the end of a launch
        return replace(described, edges=edges, plan="", fused=False, runs=self.count)


def profiled_kernel(
    graph: Graph, plan: LaunchPlan, provenance: Provenance, source: str, sizes: Sequence[int] = ()
) -> ProfiledKernel:
    """A graph that is launched as one super kernel; sizes are the bytes of its buffers, where they are known."""
    kinds = {(sync.edge.producer, sync.edge.consumer): sync.kind for sync in plan.syncs}
    names = [node.name for node in graph.nodes]
    edges = []
    for edge in graph.edges:
        kind = kinds.get((edge.producer, edge.consumer), SyncKind.BARRIER)
        reasons = tuple(map(str, edge.reasons))
        edges.append(ProfiledEdge(names[edge.producer], names[edge.consumer], kind, reasons))
    return ProfiledKernel(
        graph.name,
        provenance.scope,
        str(plan.options),
        tuple(_ops(graph, sizes, provenance.origins)),
        tuple(edges),
        str(plan),
        source,
        True,
        plan.cores,
        1,
        provenance.reason,
        provenance.unfusible,
        identity_of(graph, sizes),
        tuple(_collectives(graph)),
    )


def _collectives(graph: Graph) -> Iterator[ProfiledCollective]:
    names = [node.name for node in graph.nodes]
    for each in graph.collectives:
        sender = "" if each.sender is None else names[each.sender]
        receivers = tuple(names[receiver] for receiver in each.receivers)
        yield ProfiledCollective(each.name, each.group.ranks, sender, receivers)


def _ops(graph: Graph, sizes: Sequence[int], origins: Mapping[str, tuple[str, ...]]) -> Iterator[ProfiledOp]:
    moved = bytes_moved(graph, sizes)
    for node in (graph.nodes[index] for index in graph.order):
        origin = next(iter(origins.get(node.name, ())), "")
        yield ProfiledOp(node.name, op_type(node), node.blocks, node.stream, *moved[node.index], origin)


def bytes_moved(graph: Graph, sizes: Sequence[int]) -> dict[int, tuple[int | None, int | None]]:
    """Op -> bytes of the buffers that it reads and that it writes; each counts once per op, a part up to its end.

    A buffer that an op may also read has to hold something first: from outside, or from an earlier op.
    """
    known = dict(zip(graph.buffers, sizes, strict=False)) if sizes else {}
    filled = {name for name, buffer in graph.buffers.items() if buffer.needs_value}
    moved: dict[int, tuple[int | None, int | None]] = {}
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
        complete = known or all(param.nbytes is not None for param, _ in graph.nodes[index].arguments())
        moved[index] = (sum(read.values()), sum(written.values())) if complete else (None, None)
    return moved


def identity_of(graph: Graph, sizes: Sequence[int]) -> str:
    """The same for the same ops on buffers of the same sizes, whatever their names and however they are launched."""
    number = {name: place for place, name in enumerate(graph.buffers)}

    def arguments(node: Node) -> str:
        places = {param.name: f"{number[place.name]}+{place.offset}" for param, place in node.places()}
        pairs = zip(node.kernel.params, node.op.args, strict=True)
        return " ".join(places.get(param.name, str(value)) for param, value in pairs)

    lines = [f"{graph.nodes[index].kernel.type_name} {arguments(graph.nodes[index])}" for index in graph.order]
    return digest(*lines, str(tuple(sizes)))[:16]
