"""plan.validate: a plan in, a proof or a list of what is wrong with it out. Knows nothing of how plans are made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import lcm
from operator import ge

from ...model.argument_layout import Layout
from ...model.gc_pause import without_collection
from ...model.hazards import Edge, Hazard, Reason
from ..plan import Plan
from ..steps import AwaitEvent, Barrier, Call, Notify, Request, ResetEvent, Select, Signal, Wait, spell
from . import structure
from .vector_clocks import Clock, Clocks, Fault, join, named, walk


@dataclass(frozen=True)
class Finding:
    """One of the properties P1 to P18 that does not hold, and where."""

    property: str
    message: str

    def __str__(self) -> str:
        return f"{self.property}: {self.message}"


@dataclass(frozen=True)
class Report:
    errors: tuple[Finding, ...]
    statistics: dict[str, int] = field(hash=False)

    @property
    def ok(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        head = "valid" if self.ok else f"{len(self.errors)} errors"
        counts = ", ".join(f"{value} {name}" for name, value in self.statistics.items())
        return "\n".join([f"{head}: {counts}", *(f"  {error}" for error in self.errors)])


@without_collection
def validate(plan: Plan, layout: Layout | None = None) -> Report:
    """Every property that one plan alone can show; P8 as well if its argument layout is given."""
    errors: dict[Finding, None] = {}

    def fault(which: str, message: str) -> None:
        errors[Finding(which, message)] = None

    statistics = _statistics(plan)
    if structure.check_launch_size(plan, fault):
        clocks = walk(plan, fault)
        structure.check_calls(plan, fault)
        ends = _stream_ends(plan, clocks)
        statistics["clocks compared"] = _check_edges(plan, clocks, ends, fault)
        _check_issue_order(plan, fault)
        _check_events(plan, clocks, ends, fault)
        _check_event_words(plan, fault)
        structure.check_preloads(plan, fault)
        _check_barriers(plan, clocks, ends, fault)
        structure.check_debug(plan, fault)
        structure.check_records(plan, fault)
        _check_dynamic(plan, clocks, ends, fault)
    if layout is not None:
        structure.check_layout(plan, layout, fault)
    return Report(tuple(errors), statistics)


def _stream_ends(plan: Plan, clocks: Clocks) -> dict[int, Clock]:
    """Per op, how far every core must be for that op and all earlier ones of its stream to be done."""
    ends: dict[int, Clock] = {}
    last: dict[int, Clock] = {}
    for op in plan.graph.order:
        stream = plan.graph.nodes[op].stream
        own = clocks.finished.get(op, (0,) * plan.cores)
        last[stream] = ends[op] = join((own, last.get(stream, own)))
    return ends


def _check_edges(plan: Plan, clocks: Clocks, ends: dict[int, Clock], fault: Fault) -> int:
    """P2: every producer block is known to be done when a consumer block needs it. Returns the clocks compared."""
    compared = 0
    for edge in plan.graph.edges:
        consumer, producer = named(plan, edge.consumer), named(plan, edge.producer)
        for reason in edge.reasons:
            known = clocks.starts if reason.before_wait else clocks.bodies
            for core in plan.placements[edge.consumer]:
                clock, wanted = known.get((edge.consumer, core)), _wanted(plan, edge, reason, core, clocks, ends)
                if clock is None or wanted is None:
                    continue  # never called: P1 says so
                compared += 1
                if all(map(ge, clock, wanted)):
                    continue
                late = spell(tuple(d for d in range(plan.cores) if clock[d] < wanted[d]))
                fault(
                    "P2", f"{consumer} on core {core} does not know that {producer} is done on cores {late} ({reason})"
                )
    return compared


def _wanted(plan: Plan, edge: Edge, reason: Reason, core: int, clocks: Clocks, ends: dict[int, Clock]) -> Clock | None:
    """How far every core must be for the blocks of the consumer on `core` to find what they need."""
    if reason.hazard is Hazard.EVENT:
        return ends[edge.producer]
    finished = clocks.finished.get(edge.producer)
    producers, consumers = plan.placements[edge.producer], plan.placements[edge.consumer]
    if finished is None or not reason.block_local:
        return finished
    blocks = range(min(plan.graph.nodes[edge.consumer].blocks, lcm(len(producers), len(consumers))))
    partners = {producers[b % len(producers)] for b in blocks if consumers[b % len(consumers)] == core}
    return tuple(position if d in partners else 0 for d, position in enumerate(finished))


def _check_issue_order(plan: Plan, fault: Fault) -> None:
    """P3: on each core the ops of a stream in list order; senders before receivers everywhere."""
    last: dict[tuple[int, int], int] = {}
    place: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        if not isinstance(step, Call):
            continue
        place.setdefault(step.op, at)
        stream = plan.graph.nodes[step.op].stream
        for core in step.cores:
            before = last.get((core, stream), -1)
            if before > step.op:
                ops = f"{named(plan, step.op)} after {named(plan, before)}"
                fault("P3", f"core {core} issues {ops}, against the order of stream {stream}")
            last[core, stream] = step.op
    for edge in plan.graph.edges:
        if edge.whole_stream and place.get(edge.producer, -1) > place.get(edge.consumer, len(plan.steps)):
            sender, receiver = named(plan, edge.producer), named(plan, edge.consumer)
            fault("P3", f"{receiver} is issued before {sender}, whose event it receives")


def _check_events(plan: Plan, clocks: Clocks, ends: dict[int, Clock], fault: Fault) -> None:
    """P6: an external wait is over before its op starts anywhere, a notify comes after all cores and earlier ops."""
    for node in plan.graph.nodes:
        for event in node.awaits:
            for core in plan.placements[node.index]:
                clock = clocks.starts.get((node.index, core))
                if clock is not None and not _sees(clock, event, clocks):
                    fault("P6", f"{named(plan, node.index)} may start on core {core} before event {event} was seen")
    for notify, clock in clocks.notifies:
        late = tuple(d for d, position in enumerate(ends[notify.op]) if clock[d] < position)
        if late:
            what = f"{named(plan, notify.op)} and its stream are done on cores {spell(late)}"
            fault("P6", f"event {notify.event} may be notified before {what}")


def _sees(clock: Clock, event: str, clocks: Clocks) -> bool:
    return any(clock[d] >= position for d, position in clocks.polls.get(event, ()))


def _check_event_words(plan: Plan, fault: Fault) -> None:
    """P7: each word is touched by one core, reset once after its waits, or notified once. P6: no notify held up."""
    rank = {op: place for place, op in enumerate(plan.graph.order)}
    touched: dict[str, set[int]] = {}
    resets: Counter[str] = Counter()
    notified: Counter[tuple[int, str]] = Counter()
    waiting = -1  # rank of the latest op whose external events have been waited for
    for step in plan.steps:
        if isinstance(step, AwaitEvent | Notify | ResetEvent):
            touched.setdefault(step.event, set()).update(step.cores)
        if isinstance(step, AwaitEvent):
            waiting = max(waiting, rank[step.op])
            if resets[step.event]:
                fault("P7", f"event {step.event} is waited for after its reset")
            if step.event not in plan.graph.nodes[step.op].awaits:
                fault("P6", f"{named(plan, step.op)} waits for event {step.event}, which it does not receive")
        elif isinstance(step, Notify):
            notified[step.op, step.event] += 1
            if waiting > rank[step.op]:
                later = named(plan, plan.graph.order[waiting])
                fault("P6", f"{plan.describe(step)} stands behind a wait of the later {later}")
        elif isinstance(step, ResetEvent):
            resets[step.event] += 1
    expected = Counter({event: 1 for node in plan.graph.nodes for event in node.awaits})
    for event in sorted(expected | resets):
        if resets[event] != expected[event]:
            fault("P7", f"event {event} is reset {resets[event]} times")
    sent = Counter((node.index, event) for node in plan.graph.nodes for event in node.notifies)
    for op, event in sorted(sent | notified):
        if notified[op, event] != sent[op, event]:
            fault("P7", f"event {event} is notified {notified[op, event]} times after {named(plan, op)}")
    for event, cores in touched.items():
        if len(cores) > 1:
            fault("P7", f"event {event} is touched by cores {spell(tuple(sorted(cores)))}; it must be one")


def _check_barriers(plan: Plan, clocks: Clocks, ends: dict[int, Clock], fault: Fault) -> None:
    """P11: only cores of the op, of what it waits for, and those that poll its events."""
    for step in plan.steps:
        if not isinstance(step, Barrier) or step.debug:
            continue
        concerned = set(plan.placements[step.op])
        for edge in plan.graph.incoming[step.op]:
            concerned.update(plan.placements[edge.producer])
            if edge.whole_stream:
                concerned.update(d for d, position in enumerate(ends[edge.producer]) if position)
        for event in plan.graph.nodes[step.op].awaits:
            concerned.update(core for core, _ in clocks.polls.get(event, ()))
        extra = sorted(set(step.cores) - concerned)
        if extra:
            fault("P11", f"cores {spell(tuple(extra))} have no part in the barrier before {named(plan, step.op)}")
        if len(step.cores) < 2:
            fault("P11", f"the barrier before {named(plan, step.op)} is over core {spell(step.cores)} alone")


def _check_dynamic(plan: Plan, clocks: Clocks, ends: dict[int, Clock], fault: Fault) -> None:
    """P16: a dynamic op is requested once, after its inputs are there, and selected before it is called."""
    requests: Counter[int] = Counter()
    selected: dict[int, list[int]] = {}
    for step in plan.steps:
        if isinstance(step, Request):
            requests[step.op] += len(step.cores)
        elif isinstance(step, Select):
            selected.setdefault(step.op, []).extend(step.cores)
        elif isinstance(step, Call) and plan.graph.nodes[step.op].dynamic:
            for core in set(step.cores).difference(selected.get(step.op, ())):
                fault("P16", f"core {core} calls {named(plan, step.op)} before it has selected a variant")
    for node in plan.graph.nodes:
        name, chosen = named(plan, node.index), sorted(selected.get(node.index, ()))
        if requests[node.index] != node.dynamic:
            fault("P16", f"the tiling of {name} is requested {requests[node.index]} times")
        if chosen != sorted(plan.placements[node.index] if node.dynamic else ()):
            fault("P16", f"the variant of {name} is selected on cores {spell(tuple(chosen)) or 'none'}")
    for op, clock in clocks.requests.items():
        request = f"the tiling of {named(plan, op)} is requested before"
        for edge in plan.graph.incoming[op]:
            if not all(map(ge, clock, _told(edge, clocks, ends))):
                fault("P2", f"{request} it is known that {named(plan, edge.producer)} is done")
        for event in plan.graph.nodes[op].awaits:
            if not _sees(clock, event, clocks):
                fault("P6", f"{request} event {event} was seen")


def _told(edge: Edge, clocks: Clocks, ends: dict[int, Clock]) -> Clock:
    """How far every core must be before the control agent may read what the op reads; empty: it does not care."""
    if edge.whole_stream:
        return ends[edge.producer]
    reads = any(reason.hazard is Hazard.READ_AFTER_WRITE for reason in edge.reasons)
    return clocks.finished.get(edge.producer, ()) if reads else ()


def _statistics(plan: Plan) -> dict[str, int]:
    waits = [step for step in plan.steps if isinstance(step, Wait)]
    return {
        "ops": len(plan.graph.nodes),
        "cores": plan.cores,
        "steps": len(plan.steps),
        "edges": len(plan.graph.edges),
        "waits": len(waits),
        "signals awaited": sum(len(set(n.cores) - {core}) for w in waits for n in w.needs for core in w.cores),
        "barriers": sum(isinstance(step, Barrier) and not step.debug for step in plan.steps),
        "signals": sum(isinstance(step, Signal) for step in plan.steps),
    }
