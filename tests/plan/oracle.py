"""Happens-before of a plan as sets of ancestors, by brute force: a second opinion on what validate proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superkernel.model.graph import Graph
from superkernel.model.hazards import Edge, Hazard, Reason
from superkernel.plan import Plan
from superkernel.plan.steps import (
    AwaitEvent,
    AwaitRanks,
    Barrier,
    Call,
    Mark,
    Notify,
    NotifyRanks,
    Request,
    Select,
    Signal,
    Step,
    Wait,
)

Where = tuple[int, int]  # op, core


@dataclass
class Order:
    """A point is a bit; `before[p]` are the bits of everything that is over when a core is at p."""

    before: list[int] = field(default_factory=list)
    starts: dict[Where, int] = field(default_factory=dict)
    bodies: dict[Where, int] = field(default_factory=dict)
    ends: dict[Where, int] = field(default_factory=dict)
    polls: dict[str, list[int]] = field(default_factory=dict)
    notifies: list[tuple[int, int]] = field(default_factory=list)  # op, point
    requests: dict[int, int] = field(default_factory=dict)
    arrivals: dict[str, tuple[int, int]] = field(default_factory=dict)  # collective -> op, point
    rank_polls: dict[str, list[int]] = field(default_factory=dict)  # collective -> points
    last: dict[int, int] = field(default_factory=dict)  # core -> its last point

    def point(self, core: int, *after: int) -> int:
        """A new point of a core, behind its last one and behind the points `after`."""
        new, seen = len(self.before), 0
        for one in (*after, *([self.last[core]] if core in self.last else [])):
            seen |= self.before[one] | 1 << one
        self.before.append(seen)
        self.last[core] = new
        return new

    def is_after(self, later: int, earlier: int) -> bool:
        return later == earlier or bool(self.before[later] >> earlier & 1)

    def calls_before(self, where: Where) -> set[Where]:
        """The calls on other cores that are over when a call passes its wait point."""
        body = self.bodies[where]
        return {other for other, end in self.ends.items() if other[1] != where[1] and self.is_after(body, end)}


def order_of(plan: Plan) -> Order:
    """What the steps of a plan enforce."""
    order, signals = Order(), dict[tuple[Mark, int], int]()
    inside: dict[int, list[int]] = {}
    for step in plan.steps:
        if isinstance(step, Barrier):
            if not step.debug:
                arrivals = [order.point(core) for core in step.cores]
                for core in step.cores:
                    order.point(core, *arrivals)
            continue
        for core in step.cores:
            if isinstance(step, Wait):
                seen = [signals[n.mark, d] for n in step.needs for d in n.cores if d != core and (n.mark, d) in signals]
                if step.inside:
                    inside.setdefault(core, []).extend(seen)
                else:
                    order.point(core, *seen)
            elif isinstance(step, Call):
                order.starts[step.op, core] = order.point(core)
                order.bodies[step.op, core] = order.point(core, *inside.pop(core, ()))
                order.ends[step.op, core] = order.point(core)
            elif isinstance(step, Signal):
                early = order.ends.get((step.mark.op, core)) if step.inside else None
                signals[step.mark, core] = order.point(core) if early is None else early
            elif isinstance(step, Select) and step.op in order.requests:
                order.point(core, order.requests[step.op])
            elif isinstance(step, NotifyRanks):
                order.arrivals[step.collective] = step.op, order.point(core)
            elif isinstance(step, AwaitRanks):  # of this rank as well
                arrival = order.arrivals.get(step.collective)
                poll = order.point(core, *([] if arrival is None else arrival[1:]))
                order.rank_polls.setdefault(step.collective, []).append(poll)
            else:
                _other(order, step, core)
    return order


def order_needed(plan: Plan) -> Order:
    """What the graph asks for, and not more: the same calls on the same cores, each held back by what it needs."""
    order = Order()
    for step in plan.steps:
        for core in step.cores:
            if isinstance(step, Call):
                node = plan.graph.nodes[step.op]
                first = [point for event in node.awaits for point in order.polls.get(event, [])[:1]]
                first += [order.requests[step.op]] if node.dynamic else []
                early, late = list[int](), list[int]()
                for edge in plan.graph.incoming[step.op]:
                    for reason in edge.reasons:
                        needed = [order.ends[where] for where in needs(plan, edge, reason, core)]
                        (early if reason.before_wait else late).extend(needed)
                order.starts[step.op, core] = order.point(core, *first, *early)
                order.bodies[step.op, core] = order.point(core, *late)
                order.ends[step.op, core] = order.point(core)
            elif isinstance(step, Notify):
                order.notifies.append((step.op, order.point(core, *(order.ends[w] for w in sent(plan, step.op)))))
            elif isinstance(step, Request):
                made = [order.ends[where] for where in inputs(plan, step.op)]
                seen = [p for event in plan.graph.nodes[step.op].awaits for p in order.polls.get(event, [])[:1]]
                order.requests[step.op] = order.point(core, *made, *seen)
            elif isinstance(step, AwaitEvent):
                _other(order, step, core)
    return order


def _other(order: Order, step: Step, core: int) -> None:
    point = order.point(core)
    if isinstance(step, AwaitEvent):
        order.polls.setdefault(step.event, []).append(point)
    elif isinstance(step, Notify):
        order.notifies.append((step.op, point))
    elif isinstance(step, Request):
        order.requests[step.op] = point


def needs(plan: Plan, edge: Edge, reason: Reason, core: int) -> set[Where]:
    """The calls that must be over for the blocks of the consumer on `core`."""
    if reason.hazard is Hazard.EVENT:
        return sent(plan, edge.producer)
    copies = plan.copies.get(edge.producer, ())
    if copies and reason.hazard is Hazard.READ_AFTER_WRITE:
        return {(edge.producer, d) for copy in copies if core in copy.readers for d in copy.cores}
    if copies or edge.consumer in plan.copies:
        return {(edge.producer, d) for d in plan.placements[edge.producer]}
    return {(edge.producer, d) for d in producers_needed(plan.graph, plan.placements, edge, reason, core)}


def producers_needed(
    graph: Graph, placements: Sequence[tuple[int, ...]], edge: Edge, reason: Reason, core: int
) -> set[int]:
    """The cores that ran producer blocks whose elements the consumer blocks on `core` may touch, block by block."""
    producers, consumers = placements[edge.producer], placements[edge.consumer]
    if not reason.block_local and not reason.ranged:
        return set(producers)
    first, second = graph.nodes[edge.producer].blocks, graph.nodes[edge.consumer].blocks
    found = set()
    for b in (b for b in range(second) if consumers[b % len(consumers)] == core):
        # block p of P holds the p-th part of the elements; parts overlap if neither ends before the other begins
        touched = [p for p in range(first) if p * second < (b + 1) * first and b * first < (p + 1) * second]
        found |= {producers[p % len(producers)] for p in touched}
    return found


def sent(plan: Plan, op: int) -> set[Where]:
    """The sender of an event and everything before it in its stream."""
    order, nodes = plan.graph.order, plan.graph.nodes
    earlier = [p for p in order[: order.index(op) + 1] if nodes[p].stream == nodes[op].stream]
    return {(p, d) for p in earlier for d in plan.placements[p]}


def inputs(plan: Plan, op: int) -> set[Where]:
    """The calls that must be over before the tiling of a dynamic op is asked for: it reads what the op reads."""
    found: set[Where] = set()
    for edge in plan.graph.incoming[op]:
        hazards = {reason.hazard for reason in edge.reasons}
        if Hazard.EVENT in hazards:
            found |= sent(plan, edge.producer)
        elif Hazard.READ_AFTER_WRITE in hazards:
            found |= {(edge.producer, d) for d in plan.placements[edge.producer]}
    return found


def broken(plan: Plan) -> list[str]:
    """The dependencies (P2), external waits and notifies (P6) and the waits and notifies of ranks (P23) that the steps
    of the plan do not enforce."""
    order, faults = order_of(plan), list[str]()
    for edge in plan.graph.edges:
        for reason in edge.reasons:
            for core in plan.placements[edge.consumer]:
                at = (order.starts if reason.before_wait else order.bodies)[edge.consumer, core]
                late = [w for w in needs(plan, edge, reason, core) if not order.is_after(at, order.ends[w])]
                faults += [f"P2: {edge.consumer} on {core} needs {where} ({reason})" for where in late]
    for op, at in order.requests.items():
        faults += [f"P2: request of {op} before {w}" for w in inputs(plan, op) if not order.is_after(at, order.ends[w])]
    for node in plan.graph.nodes:
        for event in node.awaits:
            starts = [order.starts[node.index, core] for core in plan.placements[node.index]]
            starts += [order.requests[node.index]] if node.dynamic else []
            unseen = [s for s in starts if not any(order.is_after(s, poll) for poll in order.polls.get(event, ()))]
            faults += [f"P6: {node.index} starts without event {event}"] * len(unseen)
    for op, at in order.notifies:
        faults += [f"P6: notify of {op} before {w}" for w in sent(plan, op) if not order.is_after(at, order.ends[w])]
    return faults + _broken_ranks(plan, order)


def _broken_ranks(plan: Plan, order: Order) -> list[str]:
    faults = []
    for collective in (each for each in plan.graph.collectives if each.group.size > 1):
        polls = order.rank_polls.get(collective.name, ())
        for op in collective.receivers:
            starts = [order.starts[op, core] for core in plan.placements[op]]
            unseen = [start for start in starts if not any(order.is_after(start, poll) for poll in polls)]
            faults += [f"P23: {op} starts before the ranks of {collective.name} have arrived"] * len(unseen)
    for name, (op, at) in order.arrivals.items():
        late = [core for core in plan.placements[op] if not order.is_after(at, order.ends[op, core])]
        faults += [f"P23: {name} is notified before {op} is done on {core}" for core in late]
    return faults
