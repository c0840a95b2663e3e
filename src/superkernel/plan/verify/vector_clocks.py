"""plan.verify.vector_clocks: a plan in; what every class of cores is sure of at every call, notify and request out.

A clock has one number per class: how many steps of their list all cores of that class are known to have done; for the
own class, what a core knows of the other members. Cores learn of others only at waits, barriers, selects and waits for
ranks, which tell them what the core of this rank knew that published its arrival. The walk
follows the plan's one sequence, which proves that every wait ends as well: the signals it names stand before it. Debug
steps teach nothing, so that a plan never relies on them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...model.hazards import Edge, Reason
from ...model.options import EarlyStart
from ..classes import CoreClasses, Partners, sets_of_copies
from ..near_clocks import NearClasses
from ..plan import Plan
from ..steps import (
    AwaitEvent,
    AwaitRanks,
    Barrier,
    Call,
    Cores,
    Feed,
    Fence,
    FenceWhen,
    Mark,
    Need,
    Notify,
    NotifyRanks,
    Point,
    Request,
    Select,
    Signal,
    Step,
    Wait,
    spell,
)
from .agents import Clocks, Fault, Needed, named

Known = tuple[int, ...]  # by class
BLOCKING = (Wait, Barrier, Select, AwaitEvent, AwaitRanks, Call, Feed)


class ClassAgents:
    """The classes of cores that every step, placement and edge of a plan treats alike; found from the finished plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.partners = Partners(plan.graph, plan.placements, plan.copies, plan.near_groups)
        sets: dict[Cores, None] = dict.fromkeys(plan.placements)
        for step in plan.steps:
            sets[step.cores] = None
            if isinstance(step, Wait):
                sets.update(dict.fromkeys(need.cores for need in step.needs))
            elif isinstance(step, Call | Feed):
                sets[step.team] = None
        sets.update(dict.fromkeys(sets_of_copies(plan.copies, bool(plan.near_groups))))
        sets.update(dict.fromkeys(self.partners.sets()))
        self.classes = CoreClasses(plan.cores, sets)
        self.near = NearClasses(self.classes, plan.near_groups)
        self.split = self.classes.split
        self._of = tuple(self.classes.split(cores) for cores in plan.placements)

    def of(self, op: int) -> tuple[int, ...]:
        return self._of[op]

    def needed(self, edge: Edge, reason: Reason, agent: int) -> Needed:
        for group in self.partners.groups(edge, reason):
            if agent in self.split(group.consumers):
                producers = self.split(group.producers)
                own_core = not producers or agent in producers
                if not group.near:
                    return Needed(producers, own_core)
                others = [other for other in producers if other != agent or not self.near.single[other]]
                return Needed((), own_core, tuple((self.near.index(other), other) for other in others))
        return Needed(self._of[edge.producer], True)  # a reader without a copy of its own: P19 says so

    def spell(self, agents: Iterable[int]) -> str:
        cores = self.classes.cores(map(self.near.class_at, agents))
        return f"core{'s' if len(cores) > 1 else ''} {spell(cores)}"


def walk(plan: Plan, agents: ClassAgents, fault: Fault) -> Clocks:
    """The clocks of a plan whose cores are all in range; faults of the waits and signals go to `fault`."""
    walker = _Walker(plan, agents, fault)
    for step in plan.steps:
        walker.take(step)
    walker.end()
    return walker.clocks


def join(*clocks: Known) -> Known:
    return clocks[0] if len(clocks) == 1 else tuple(map(max, *clocks))


class _Walker:
    def __init__(self, plan: Plan, agents: ClassAgents, fault: Fault) -> None:
        self.plan, self.agents, self.fault, self.clocks = plan, agents, fault, Clocks()
        self.split, self.sizes, self.near = agents.split, agents.classes.sizes, agents.near
        self.early = plan.options.early_start is EarlyStart.FULL
        self.rank = {op: rank for rank, op in enumerate(plan.graph.order)}
        self.nothing: Known = (0,) * self.near.span
        self.known: list[Known] = [self.nothing] * len(self.sizes)
        self.position = [0] * len(self.sizes)
        self.published: dict[tuple[Mark, int], Known] = {}
        self.of_others: dict[tuple[Mark, int], int] = {}  # what a member of the class knew of the others then
        self.last_mark: list[Mark | None] = [None] * len(self.sizes)
        self.after_call: dict[tuple[int, int], Known] = {}
        self.fenced: set[tuple[int, int]] = set()  # (op, class) between the fence behind its call and its signal
        self.pending: dict[int, list[Wait]] = {}  # class -> inside waits that its next call will make
        # (producer class, class, near) -> position of the last signal waited for
        self.seen: dict[tuple[int, int, bool], int] = {}
        self.arrived: dict[str, Known] = {}  # collective -> what the core knew that published this rank's arrival
        self.from_elsewhere = {each.name for each in plan.graph.collectives if each.sender is None}
        self.absent: dict[int, set[int]] = {}  # sync_all op that has begun -> classes of its team still to come

    def take(self, step: Step) -> None:
        self._check_rendezvous(step)
        classes = self.split(step.cores)
        match step:
            case Wait(inside=True):
                self._postpone(step, classes)
            case Wait():
                for need in step.needs:
                    self._learn(step, need, classes)
            case Barrier(debug=False):
                met = join(*(self.near.from_all(self._published_now(c, self.position[c]), c) for c in classes))
                for core_class in classes:
                    self.known[core_class] = met
            case Select():
                self._select(step, classes)
            case Call():
                self._call(step, classes)
                return
            case Signal():
                self._signal(step, classes)
            case Fence(when=FenceWhen.AFTER):
                self.fenced |= {(step.op, core_class) for core_class in classes}
            case Notify():
                self.clocks.notifies += [(step, self._snapshot(core_class)) for core_class in classes]
            case NotifyRanks():
                self._arrive(step, classes)
            case AwaitRanks():
                self._await_ranks(step, classes)
            case Request():
                known = [self.near.from_all(self._published_now(c, self.position[c]), c) for c in classes]
                self.clocks.requests[step.op] = join(self.nothing, *known)
            case _:
                pass
        for core_class in classes:
            self.position[core_class] += 1
            if isinstance(step, AwaitRanks):
                self.clocks.rank_polls.setdefault(step.collective, []).append((core_class, self.position[core_class]))
            if isinstance(step, AwaitEvent):
                self.clocks.polls.setdefault(step.event, []).append((core_class, self.position[core_class]))

    def end(self) -> None:
        for core_class, waits in self.pending.items():
            for wait in waits:
                where = self.agents.spell((core_class,))
                self.fault("P4", f"{where}: no call makes the inside wait of {named(self.plan, wait.op)}")
        for op, classes in self.absent.items():
            where = self.agents.spell(classes)
            self.fault("P14", f"{where} never join the barriers of {named(self.plan, op)}: its team would hang")

    def _snapshot(self, core_class: int) -> Known:
        """What a core of the class is sure of; of its own class: that all members have come this far."""
        known, position = self.known[core_class], self.position[core_class]
        own = position if self.sizes[core_class] == 1 else min(position, known[core_class])
        known = (*known[:core_class], own, *known[core_class + 1 :])
        if not self.near.present:
            return known
        index = self.near.index(core_class)
        own = position if self.near.single[core_class] else min(position, known[index])
        return (*known[:index], own, *known[index + 1 :])

    def _published_now(self, core_class: int, position: int) -> Known:
        """What is known to a core that hears from all members of the class at a position."""
        return self.near.with_own(self.known[core_class], core_class, position)

    def _check_rendezvous(self, step: Step) -> None:
        """No core may block between the moment its team begins a sync_all op and its own arrival."""
        joining = step if isinstance(step, Call | Feed) and step.team else None
        if self.absent and isinstance(step, BLOCKING):
            blocking = self.split(step.cores)
            for op, classes in self.absent.items():
                if (joining is None or joining.op != op) and not classes.isdisjoint(blocking):
                    where, what = self.agents.spell(classes.intersection(blocking)), self.plan.describe(step)
                    self.fault("P4", f"{where} may block ({what}) while the team waits in {named(self.plan, op)}")
        if joining is not None:
            absent = self.absent.setdefault(joining.op, set(self.split(joining.team)))
            absent.difference_update(self.split(joining.cores))
            if not absent:
                del self.absent[joining.op]

    def _postpone(self, wait: Wait, classes: tuple[int, ...]) -> None:
        if not (self.early and self.plan.graph.nodes[wait.op].kernel.waits_inside):
            self.fault("P2", f"{named(self.plan, wait.op)} has no wait point, but its wait is left to it")
        for core_class in classes:
            self.pending.setdefault(core_class, []).append(wait)

    def _learn(self, wait: Wait, need: Need, classes: tuple[int, ...]) -> None:
        """Every class learns what the signalling classes knew; a core learns nothing from its own signal."""
        awaited = self.split(need.cores)
        signals = {other: self.published[need.mark, other] for other in awaited if (need.mark, other) in self.published}
        if len(signals) < len(awaited):
            silent = [other for other in awaited if other not in signals]
            alone = len(wait.cores) == 1 and [self.agents.classes.of_core[wait.cores[0]]] == silent
            if not alone:
                self.fault("P4", f"{self.plan.describe(wait)}: {self.agents.spell(silent)} give no such signal before")
        heard = {other: (clock, self.of_others[need.mark, other]) for other, clock in signals.items()}
        learned = join(self.nothing, *(self.near.from_all(clock, other) for other, clock in signals.items()))
        for core_class in classes:
            for other in signals:
                alone = self.near.single[other] if need.near else self.sizes[other] == 1
                if other != core_class or not alone:
                    self._check_crossed(core_class, other, need)
            if need.near:
                learned = self.near.from_group(core_class, heard) if heard else self.nothing
            self.known[core_class] = join(self.known[core_class], learned)

    def _check_crossed(self, core_class: int, other: int, need: Need) -> None:
        position, pair = self.published[need.mark, other][other], (other, core_class, need.near)
        if position <= self.seen.get(pair, 0):
            where, signal = self.agents.spell((core_class,)), self.agents.spell((other,))
            text = f"{need.mark.text(self.plan.op_names)} on {signal}"
            self.fault("P5", f"{where}: a wait for {text} after that signal or a later one of the same core")
        self.seen[pair] = max(position, self.seen.get(pair, 0))

    def _arrive(self, step: NotifyRanks, classes: tuple[int, ...]) -> None:
        for core_class in classes:
            self.clocks.arrivals.append((step, self._snapshot(core_class)))
            known = self._published_now(core_class, self.position[core_class])
            self.arrived.setdefault(step.collective, self.near.from_all(known, core_class))

    def _await_ranks(self, step: AwaitRanks, classes: tuple[int, ...]) -> None:
        """The arrival of this rank is one of those awaited."""
        if step.collective in self.from_elsewhere:
            return
        if step.collective not in self.arrived:
            text = f"{named(self.plan, step.op)} waits for the ranks of collective {step.collective!r}"
            self.fault("P23", f"{text} before this rank has notified them: all ranks would wait for each other")
            return
        for core_class in classes:
            self.known[core_class] = join(self.known[core_class], self.arrived[step.collective])

    def _select(self, step: Select, classes: tuple[int, ...]) -> None:
        if step.op not in self.clocks.requests:
            self.fault("P4", f"the variant of {named(self.plan, step.op)} is selected before it is requested")
            return
        for core_class in classes:
            self.known[core_class] = join(self.known[core_class], self.clocks.requests[step.op])

    def _call(self, step: Call, classes: tuple[int, ...]) -> None:
        for core_class in classes:
            self.clocks.begins[step.op, core_class] = self._snapshot(core_class)
            self.clocks.called_at[step.op, core_class] = self.position[core_class]
            for wait in self.pending.pop(core_class, ()):
                if wait.op != step.op:
                    waiting, called = named(self.plan, wait.op), named(self.plan, step.op)
                    where = self.agents.spell((core_class,))
                    self.fault("P4", f"{where}: the inside wait of {waiting} meets the call of {called}")
                for need in wait.needs:
                    self._learn(wait, need, (core_class,))
            self.clocks.bodies[step.op, core_class] = self._snapshot(core_class)
            self.position[core_class] += 1
            self.after_call[step.op, core_class] = self._published_now(core_class, self.position[core_class])
            self.clocks.ends[step.op, core_class] = self.position[core_class]

    def _signal(self, step: Signal, classes: tuple[int, ...]) -> None:
        mark, text = step.mark, step.mark.text(self.plan.op_names)
        if self.rank.get(mark.op) != mark.rank:
            self.fault("P4", f"the mark {text!r} has rank {mark.rank}, its op {self.rank.get(mark.op)}")
        if step.inside and not (self.early and self.plan.graph.nodes[mark.op].kernel.signals_inside):
            self.fault("P2", f"{named(self.plan, mark.op)} does not signal inside, but its signal is left to it")
        for core_class in classes:
            last = self.last_mark[core_class]
            if last is not None and not last < mark:
                before, where = last.text(self.plan.op_names), self.agents.spell((core_class,))
                self.fault("P4", f"{where}: {text!r} is signalled after {before!r}: marks must rise")
            self.last_mark[core_class] = mark
            self.published[mark, core_class] = self._reached(step, core_class)
            self.of_others[mark, core_class] = min(self.known[core_class][core_class], self.position[core_class])

    def _reached(self, step: Signal, core_class: int) -> Known:
        """What stands behind a signal; one that may be given inside the call covers nothing later."""
        op, where = step.mark.op, self.agents.spell((core_class,))
        if step.mark.point == Point.GATE.value:
            for event in self.plan.graph.nodes[op].awaits:
                if not self.clocks.sees(self._snapshot(core_class), event):
                    self.fault("P6", f"{where}: the gate of {named(self.plan, op)} opens before event {event} is seen")
        elif (op, core_class) not in self.after_call:
            self.fault("P4", f"{where}: a signal that {named(self.plan, op)} is done, which was not called there")
        elif step.inside:
            if (op, core_class) in self.fenced:
                self.fault("P2", f"{where}: {named(self.plan, op)} may signal before the fence behind it")
            return self.after_call[op, core_class]
        return self._published_now(core_class, self.position[core_class] + 1)
