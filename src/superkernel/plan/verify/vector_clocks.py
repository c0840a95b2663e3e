"""plan.clocks: a plan in; what every core is sure of at every call, notify and request out.

A clock is one number per core: how many steps of that core's program are known to be over. A core learns of others only
at waits, barriers and selects. The walk follows the plan's one sequence, which proves that every wait ends as well:
whatever a core waits for stands earlier. Debug steps teach nothing, so that a plan never leans on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...model.options import EarlyStart
from ..plan import Plan
from ..steps import (
    AwaitEvent,
    Barrier,
    Call,
    Feed,
    Fence,
    FenceWhen,
    Mark,
    Need,
    Notify,
    Point,
    Request,
    Select,
    Signal,
    Step,
    Wait,
)

Clock = tuple[int, ...]
Fault = Callable[[str, str], None]  # property, message
BLOCKING = (Wait, Barrier, Select, AwaitEvent, Call, Feed)


@dataclass
class Clocks:
    """Positions count from 1 along each core's program; 0 means never."""

    finished: dict[int, Clock] = field(default_factory=dict)  # op -> per core, the position of its call
    starts: dict[tuple[int, int], Clock] = field(default_factory=dict)  # (op, core) -> known when its call begins
    bodies: dict[tuple[int, int], Clock] = field(default_factory=dict)  # ... and past its wait point
    notifies: list[tuple[Notify, Clock]] = field(default_factory=list)
    requests: dict[int, Clock] = field(default_factory=dict)
    polls: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # event -> (core, position)


def join(clocks: Iterable[Clock]) -> Clock:
    """What is known to whoever knows all of `clocks`."""
    several = list(clocks)
    return several[0] if len(several) == 1 else tuple(map(max, *several))


def named(plan: Plan, op: int) -> str:
    return f"op {plan.op_names[op]!r}"


def walk(plan: Plan, fault: Fault) -> Clocks:
    """The clocks of a plan whose cores are all in range; faults of the waits and signals go to `fault`."""
    walker = _Walker(plan, fault)
    for step in plan.steps:
        walker.take(step)
    walker.end()
    return walker.clocks


class _Walker:
    def __init__(self, plan: Plan, fault: Fault) -> None:
        self.plan, self.fault, self.clocks = plan, fault, Clocks()
        self.early = plan.options.early_start is EarlyStart.FULL
        self.rank = {op: rank for rank, op in enumerate(plan.graph.order)}
        self.now: list[Clock] = [(0,) * plan.cores] * plan.cores
        self.published: dict[tuple[Mark, int], Clock] = {}
        self.last_mark: list[Mark | None] = [None] * plan.cores
        self.after_call: dict[tuple[int, int], Clock] = {}
        self.fenced: set[tuple[int, int]] = set()  # (op, core) between the fence behind its call and its signal
        self.pending: dict[int, list[Wait]] = {}  # core -> inside waits that its next call will make
        self.seen: dict[tuple[int, int], int] = {}  # (producer core, core) -> position of the last signal waited for
        self.absent: dict[int, set[int]] = {}  # sync_all op that has begun -> cores of its team still to come

    def take(self, step: Step) -> None:
        self._check_rendezvous(step)
        match step:
            case Wait(inside=True):
                self._postpone(step)
            case Wait():
                self._wait(step)
            case Barrier(debug=False):
                met = join(self.now[core] for core in step.cores)
                for core in step.cores:
                    self.now[core] = met
            case Select():
                self._select(step)
            case Call():
                self._call(step)
                return
            case Signal():
                self._signal(step)
            case Fence(when=FenceWhen.AFTER):
                self.fenced |= {(step.op, core) for core in step.cores}
            case Notify():
                self.clocks.notifies += [(step, self.now[core]) for core in step.cores]
            case Request():
                self.clocks.requests[step.op] = join(self.now[core] for core in step.cores)
            case _:
                pass
        for core in step.cores:
            self._advance(core)
            if isinstance(step, AwaitEvent):
                self.clocks.polls.setdefault(step.event, []).append((core, self.now[core][core]))

    def end(self) -> None:
        for core, waits in self.pending.items():
            for wait in waits:
                self.fault("P4", f"core {core}: no call makes the inside wait of {named(self.plan, wait.op)}")
        for op, cores in self.absent.items():
            for core in sorted(cores):
                self.fault(
                    "P14", f"core {core} never joins the barriers of {named(self.plan, op)}: its team would hang"
                )

    def _advance(self, core: int) -> None:
        clock = self.now[core]
        self.now[core] = (*clock[:core], clock[core] + 1, *clock[core + 1 :])

    def _check_rendezvous(self, step: Step) -> None:
        """No core may block between the moment its team begins a sync_all op and its own arrival."""
        joining = step if isinstance(step, Call | Feed) and step.team else None
        if self.absent and isinstance(step, BLOCKING):
            for op, cores in self.absent.items():
                if (joining is None or joining.op != op) and not cores.isdisjoint(step.cores):
                    who, what = min(cores.intersection(step.cores)), self.plan.describe(step)
                    self.fault(
                        "P4", f"core {who} may block ({what}) while its team waits for it in {named(self.plan, op)}"
                    )
        if joining is not None:
            self.absent.setdefault(joining.op, set(joining.team)).difference_update(joining.cores)
            if not self.absent[joining.op]:
                del self.absent[joining.op]

    def _postpone(self, wait: Wait) -> None:
        if not (self.early and self.plan.graph.nodes[wait.op].kernel.waits_inside):
            self.fault("P2", f"{named(self.plan, wait.op)} has no wait point, but its wait is left to it")
        for core in wait.cores:
            self.pending.setdefault(core, []).append(wait)

    def _wait(self, wait: Wait) -> None:
        for need in wait.needs:
            news = self._news(wait, need)
            for core in wait.cores:
                self._learn(core, need, news)

    def _news(self, wait: Wait, need: Need) -> Clock:
        """What a core learns when `need` is met; its own signal tells it nothing new."""
        signals = []
        for d in need.cores:
            if (need.mark, d) in self.published:
                signals.append(self.published[need.mark, d])
            elif set(wait.cores) != {d}:
                self.fault("P4", f"{self.plan.describe(wait)}: core {d} gives no such signal before")
        return join([(0,) * self.plan.cores, *signals])

    def _learn(self, core: int, need: Need, news: Clock) -> None:
        for d in need.cores:
            if d != core and (need.mark, d) in self.published:
                position = self.published[need.mark, d][d]
                if position <= self.seen.get((d, core), 0):
                    text = f"{need.mark.text(self.plan.op_names)} on core {d}"
                    self.fault("P5", f"core {core} waits for {text} after that signal or a later one of the same core")
                self.seen[d, core] = max(position, self.seen.get((d, core), 0))
        self.now[core] = join((self.now[core], news))

    def _select(self, step: Select) -> None:
        if step.op not in self.clocks.requests:
            self.fault("P4", f"the variant of {named(self.plan, step.op)} is selected before it is requested")
            return
        for core in step.cores:
            self.now[core] = join((self.now[core], self.clocks.requests[step.op]))

    def _call(self, step: Call) -> None:
        finished = list(self.clocks.finished.get(step.op, (0,) * self.plan.cores))
        news: dict[Need, Clock] = {}  # cores wait for the same things: look them up once
        for core in step.cores:
            self.clocks.starts[step.op, core] = self.now[core]
            for wait in self.pending.pop(core, ()):
                if wait.op != step.op:
                    waiting, called = named(self.plan, wait.op), named(self.plan, step.op)
                    self.fault("P4", f"core {core}: the inside wait of {waiting} meets the call of {called}")
                for need in wait.needs:
                    news[need] = news.get(need) or self._news(wait, need)
                    self._learn(core, need, news[need])
            self.clocks.bodies[step.op, core] = self.now[core]
            self._advance(core)
            self.after_call[step.op, core] = self.now[core]
            finished[core] = self.now[core][core]
        self.clocks.finished[step.op] = tuple(finished)

    def _signal(self, step: Signal) -> None:
        mark, text = step.mark, step.mark.text(self.plan.op_names)
        if self.rank.get(mark.op) != mark.rank:
            self.fault("P4", f"the mark {text!r} has rank {mark.rank}, its op {self.rank.get(mark.op)}")
        if step.inside and not (self.early and self.plan.graph.nodes[mark.op].kernel.signals_inside):
            self.fault("P2", f"{named(self.plan, mark.op)} does not signal inside, but its signal is left to it")
        for core in step.cores:
            last = self.last_mark[core]
            if last is not None and not last < mark:
                before = last.text(self.plan.op_names)
                self.fault("P4", f"core {core} signals {text!r} after {before!r}: marks must rise")
            self.last_mark[core] = mark
            self.published[mark, core] = self._reached(step, core)

    def _reached(self, step: Signal, core: int) -> Clock:
        """What stands behind a signal; one that may be given inside the call vouches for nothing later."""
        op = step.mark.op
        if step.mark.point == Point.GATE.value:
            for event in self.plan.graph.nodes[op].awaits:
                if not any(self.now[core][d] >= position for d, position in self.clocks.polls.get(event, ())):
                    self.fault(
                        "P6", f"core {core} opens the gate of {named(self.plan, op)} before event {event} is seen"
                    )
        elif (op, core) not in self.after_call:
            self.fault("P4", f"core {core} signals that {named(self.plan, op)} is done, which it has not called")
        elif step.inside:
            if (op, core) in self.fenced:
                self.fault("P2", f"core {core} may signal inside {named(self.plan, op)}, before the fence behind it")
            return self.after_call[op, core]
        clock = self.now[core]
        return (*clock[:core], clock[core] + 1, *clock[core + 1 :])
