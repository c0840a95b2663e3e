"""targets.ascend.schedule: a graph, a launch and options -> what a launch does, item by item, with pair-coded syncs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model.graph import Graph
from ...model.hazards import Edge, Hazard, Reason
from ...model.node import Node
from ...model.options import EarlyStart, Options
from ...plan.assemble import wants_fence
from ...plan.plan import Sync, SyncKind
from ...plan.steps import AwaitEvent, FenceWhen, Notify, Request, Select, Step
from ...plan.sync_order import SyncOrder, feeds_tiling, raise_to
from .calling_convention import SyncProtocol
from .chips import Chip
from .class_clocks import ClassClocks, Item, Wanted
from .core_types import CoreClass
from .facts import AscendFacts, facts_of
from .issue_order import IssueOrder
from .launch_shape import LaunchShape
from .pairs import Pair
from .steps import Classes, ResetLock

Reach = dict[CoreClass, int]  # class -> item


@dataclass(frozen=True)
class Schedule:
    """What is done in one order: calls, polls, requests, notifies; each with the syncs in front of it and behind it."""

    items: Sequence[Item]
    ops: Sequence[int]  # in the order in which they are issued
    calls: Mapping[int, int]  # op -> the item of its call
    polls: Mapping[str, CoreClass]  # external event -> the class that sees it
    pairs: tuple[tuple[int, Pair], ...]  # op -> the rows of its syncs
    syncs: tuple[Sync, ...]  # the kind of every edge


def fenced(node: Node, options: Options, when: FenceWhen) -> bool:
    """Whether metadata or an option ask for cache maintenance before or after an op; disabling wins over both."""
    facts = facts_of(node.kernel)
    asked = facts.fence_before if when is FenceWhen.BEFORE else facts.fence_after
    return not facts.fence_never and wants_fence(node, when, options, asked)


class Scheduler(SyncOrder[CoreClass]):
    def __init__(self, graph: Graph, launch: LaunchShape, chip: Chip, options: Options, order: IssueOrder) -> None:
        super().__init__(graph, order.ops)
        self.options = options
        self.facts: list[AscendFacts] = [facts_of(node.kernel) for node in graph.nodes]
        # two lanes switch early start off: who arrives also waits
        self.early = EarlyStart.OFF if order.lanes else options.early_start
        self.barriers = self.early is EarlyStart.OFF and not order.lanes
        self.state = ClassClocks(launch, chip.flag_limit, split=self.early is not EarlyStart.OFF)
        self.call_of: dict[int, int] = {}  # op -> item of its call
        self.poll_of: dict[str, tuple[CoreClass, int]] = {}  # external event -> who has seen it, and where
        self.lock_of: dict[int, Reach] = {}  # dynamic op -> what its requesting class knew
        self.selected: dict[int, int] = {}  # dynamic op -> item
        self.pairs: list[tuple[int, Pair]] = []
        self.syncs: list[Sync] = []

    def run(self) -> Schedule:
        self.choose()
        for op in self.issue_order:
            if self.graph.nodes[op].dynamic:
                self._reset_lock(op)
        self.state.settle()
        polls = {event: core_class for event, (core_class, _) in self.poll_of.items()}
        return Schedule(self.state.items, self.issue_order, self.call_of, polls, tuple(self.pairs), tuple(self.syncs))

    # the items of one op

    def _poll(self, op: int) -> None:
        leader = self._leader(op)
        for event in self.graph.nodes[op].awaits:
            if event not in self.poll_of:
                at = self._item(op, leader, "past the events of", AwaitEvent(leader, op, event))
                self.poll_of[event] = leader[0], at

    def _notify(self, op: int) -> None:
        leader, events = self._leader(op), self.graph.nodes[op].notifies
        at = self._item(op, leader, "past the notify of", *(Notify(leader, op, event) for event in events))
        self._sync(at, op, "to notify after", {leader[0]: self.at_send[op]})

    def _call(self, op: int) -> None:
        node, facts = self.graph.nodes[op], self.facts[op]
        classes = facts.op_class.classes
        at = self.state.add(Item(op, classes, "done with"))
        item = self.state.items[at]
        full = self.early is EarlyStart.FULL and not node.kernel.sync_all
        fences = {when: fenced(node, self.options, when) for when in (FenceWhen.BEFORE, FenceWhen.AFTER)}
        item.may_arrive_inside = full and bool(node.kernel.signals_inside) and not fences[FenceWhen.AFTER]
        always = self.early is EarlyStart.FULL and facts.protocol is SyncProtocol.CANN
        item.always_arrives = always and bool(node.kernel.signals_inside)
        needs, at_once = self._needs(op)
        wanted = self.state.missing({core_class: needs for core_class in classes})
        urgent = any(item > self.state.known[core_class][of] for core_class in classes for of, item in at_once.items())
        may_wait = full and bool(node.kernel.waits_inside)
        inside = may_wait and not urgent and not node.awaits and not fences[FenceWhen.BEFORE]
        self.syncs += [Sync(edge, self._kind(edge, wanted)) for edge in self.graph.incoming[op]]
        if wanted and self.barriers:
            self.state.barrier(at)
        else:
            rows = self.state.sync(at, op, "before", wanted, facts.op_class if inside else None)
            self.pairs += [(op, pair) for pair in rows]
        self.state.note_call(at, bool(node.kernel.sync_all))
        self.call_of[op] = at
        self._end(op, classes, at)

    def _kind(self, edge: Edge, wanted: Wanted) -> SyncKind:
        """How an edge is kept, of what the classes of its consumer do not know yet."""
        reach: Reach = {}
        for reason in edge.reasons:
            raise_to(reach, self._reach(edge, reason))
        if not reach:
            return SyncKind.LOCAL
        consumers = self.facts[edge.consumer].op_class.classes
        if any(wanted.get((of, by)) == item for of, item in reach.items() for by in consumers):
            return SyncKind.BARRIER if self.barriers else SyncKind.COUNTER
        locked = self.graph.nodes[edge.consumer].dynamic and feeds_tiling(edge)
        return SyncKind.LOCK if locked else SyncKind.NONE

    def _needs(self, op: int) -> tuple[Reach, Reach]:
        """How far each class must be known to be when the op passes its wait point; and when it begins."""
        needs: Reach = {}
        at_once: Reach = {}
        for edge in self.graph.incoming[op]:
            for reason in edge.reasons:
                reach = self._reach(edge, reason)
                raise_to(needs, reach)
                if reason.before_wait:
                    raise_to(at_once, reach)
        if not self.graph.nodes[op].dynamic:  # a core that has seen the lock of a dynamic op knows of its events
            for event in self.graph.nodes[op].awaits:
                core_class, item = self.poll_of[event]
                raise_to(needs, {core_class: item})
        return needs, at_once

    def _reach(self, edge: Edge, reason: Reason, by_agent: bool = False) -> Reach:
        """by_agent: for the control agent, which is another core: nothing is local to it."""
        if reason.hazard is Hazard.EVENT:
            return self.at_send[edge.producer]
        if not by_agent and self._same_cores(edge, reason):
            return {}
        return dict.fromkeys(self.facts[edge.producer].op_class.classes, self.call_of[edge.producer])

    def _same_cores(self, edge: Edge, reason: Reason) -> bool:
        """Every block of the consumer needs only what its core has stored."""
        first, second = self.graph.nodes[edge.producer], self.graph.nodes[edge.consumer]
        classes = self.facts[edge.producer].op_class, self.facts[edge.consumer].op_class
        if classes[0] is not classes[1] or len(classes[0].classes) > 1:
            return False
        return reason.block_local or (first.blocks == second.blocks == 1)

    # events and tilings

    def _request(self, op: int, behind: int) -> None:
        leader = self._leader(op)
        at = self._item(op, leader, "past the request of", Request(leader, op))
        needs: Reach = {}
        for edge in self.graph.incoming[op]:
            if feeds_tiling(edge):
                for reason in edge.reasons:
                    raise_to(needs, self._reach(edge, reason, by_agent=True))
        for event in self.graph.nodes[op].awaits:
            core_class, item = self.poll_of[event]
            if core_class is not leader[0]:  # the same core polled it
                raise_to(needs, {core_class: item})
        self._sync(at, op, "to request", {leader[0]: needs})
        self.lock_of[op] = dict(self.state.known[leader[0]])

    def _select(self, op: int) -> None:
        classes = self.facts[op].op_class.classes
        at = self._item(op, classes, "past the lock of", Select(classes, op))
        self.selected[op] = at
        for core_class in classes:
            self.state.learn(core_class, self.lock_of[op], at)

    def _reset_lock(self, op: int) -> None:
        leader = self._leader(op)
        at = self._item(op, leader, "past the reset of", ResetLock(leader, op))
        needs = dict.fromkeys(self.facts[op].op_class.classes, self.selected[op])
        self._sync(at, op, "to reset the lock of", {leader[0]: needs})

    def _item(self, op: int, classes: Classes, reached: str, *body: Step) -> int:
        return self.state.add(Item(op, classes, reached, list(body)))

    def _sync(self, at: int, op: int, purpose: str, needs: dict[CoreClass, Reach]) -> None:
        self.pairs += [(op, pair) for pair in self.state.sync(at, op, purpose, self.state.missing(needs))]

    def _leader(self, op: int) -> Classes:
        return (self.facts[op].op_class.leader,)
