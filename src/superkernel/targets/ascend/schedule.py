"""targets.ascend.schedule: a graph, a launch and options -> the steps of a plan: calls, pair-coded syncs, events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...graph import Graph, Node
from ...hazards import Edge, Hazard, Reason
from ...options import EarlyStart, Options, PreloadCode
from ...params import Kind
from .chips import Chip
from .facts import AscendFacts, facts_of
from .knowledge import Item, Knowledge, whole_pair
from .launch import Launch
from .order import Order
from .pairs import Action, Pair
from .steps import (
    Arrive,
    AwaitEvent,
    Call,
    Classes,
    ClearFeed,
    DebugBarrier,
    Fence,
    FenceWhen,
    InitDump,
    Inside,
    Meet,
    Notify,
    PrefetchDone,
    PrefetchGo,
    Preload,
    Record,
    Request,
    ResetEvent,
    ResetLock,
    Select,
    Step,
    What,
)
from .types import CUBE, VECTOR, CoreClass

Reach = dict[CoreClass, int]  # class -> item


@dataclass(frozen=True)
class Schedule:
    steps: tuple[Step, ...]
    pairs: tuple[tuple[int, Pair], ...]  # op -> the rows of its syncs
    fed: dict[int, Classes]  # sync_all ops whose barriers idle cores join


def make_schedule(
    graph: Graph, launch: Launch, chip: Chip, options: Options, order: Order, fed: dict[int, Classes], dump: bool
) -> Schedule:
    return _Scheduler(graph, launch, chip, options, order, fed, dump).run()


class _Scheduler:
    def __init__(
        self,
        graph: Graph,
        launch: Launch,
        chip: Chip,
        options: Options,
        order: Order,
        fed: dict[int, Classes],
        dump: bool,
    ) -> None:
        self.graph, self.launch, self.options, self.order = graph, launch, options, order
        self.fed, self.dump = fed, dump
        self.facts: list[AscendFacts] = [facts_of(node.kernel) for node in graph.nodes]
        # two lanes switch early start off: who arrives also waits
        self.early = EarlyStart.OFF if order.lanes else options.early_start
        self.barriers = self.early is EarlyStart.OFF and not order.lanes
        self.state = Knowledge(launch, chip.flag_limit, split=self.early is not EarlyStart.OFF)
        self.call_of: dict[int, int] = {}  # op -> item of its call
        self.poll_of: dict[str, tuple[CoreClass, int]] = {}  # external event -> who has seen it, and where
        self.lock_of: dict[int, Reach] = {}  # dynamic op -> what its requesting class knew
        self.selected: dict[int, int] = {}  # dynamic op -> item
        self.stream_ends: dict[int, Reach] = {}
        self.at_send: dict[int, Reach] = {}
        self.pairs: list[tuple[int, Pair]] = []
        self.at_entry: list[Step] = []

    def run(self) -> Schedule:
        requests = self._early_requests()
        for op in requests.get(-1, ()):
            self._request(op)
        for op in self.order.ops:
            self._one(op)
            for dynamic in requests.get(op, ()):
                self._request(dynamic)
        for op in self.order.ops:
            if self.graph.nodes[op].dynamic:
                self._reset_lock(op)
        self._preload()
        self._prefetch()
        return Schedule(tuple(self._flat()), tuple(self.pairs), self.fed)

    # the items of one op

    def _one(self, op: int) -> None:
        node = self.graph.nodes[op]
        leader = self._leader(op)
        for event in node.awaits:
            if event not in self.poll_of:
                at = self._item(op, leader, "past the events of", AwaitEvent(leader, op, event))
                self._record_item(at, What.WAIT, first_only=True)
                self.poll_of[event] = leader[0], at
        if node.dynamic:
            if node.awaits:  # what the tiling reads may be what the event announces
                self._request(op)
            self._select(op)
        self._call(op)
        if node.notifies:
            at = self._item(op, leader, "past the notify of", *(Notify(leader, op, event) for event in node.notifies))
            ends = self.at_send[op]
            self._sync(at, op, "to notify after", {leader[0]: ends})
            self._record_item(at, What.NOTIFY, first_only=True)

    def _call(self, op: int) -> None:
        node, facts = self.graph.nodes[op], self.facts[op]
        classes = facts.op_class.classes
        at = self.state.add(Item(op, classes, "done with"))
        item = self.state.items[at]
        full = self.early is EarlyStart.FULL and not node.kernel.sync_all
        item.may_arrive_inside = full and bool(node.kernel.signals_inside) and not self._fenced(op, FenceWhen.AFTER)
        needs, at_once = self._needs(op)
        wanted = self.state.missing({one: needs for one in classes})
        urgent = any(item > self.state.known[one][of] for one in classes for of, item in at_once.items())
        inside = (
            full
            and bool(node.kernel.waits_inside)
            and not urgent
            and not node.awaits
            and not self._fenced(op, FenceWhen.BEFORE)
        )
        if wanted and self.barriers:
            made = self.state.barrier(at, op, "before")
        else:
            made = self.state.sync(at, op, "before", wanted, facts.op_class if inside else None)
        self.pairs += [(op, pair) for pair in made]
        self._record_before(at)
        self.state.note_call(at, bool(node.kernel.sync_all))
        self.call_of[op] = at
        ends = self.stream_ends.setdefault(node.stream, {})
        ends |= dict.fromkeys(classes, at)
        self.at_send[op] = dict(ends)

    def _needs(self, op: int) -> tuple[Reach, Reach]:
        """How far each class must be known to be when the op passes its wait point; and when it begins."""
        needs: Reach = {}
        at_once: Reach = {}
        for edge in self.graph.incoming[op]:
            for reason in edge.reasons:
                reach = self._reach(edge, reason)
                _raise(needs, reach)
                if reason.before_wait:
                    _raise(at_once, reach)
        if not self.graph.nodes[op].dynamic:  # whoever has seen the lock of a dynamic op knows of its events
            for event in self.graph.nodes[op].awaits:
                one, item = self.poll_of[event]
                _raise(needs, {one: item})
        return needs, at_once

    def _reach(self, edge: Edge, reason: Reason) -> Reach:
        if reason.hazard is Hazard.EVENT:
            return self.at_send[edge.producer]
        if self._same_cores(edge, reason):
            return {}
        return dict.fromkeys(self.facts[edge.producer].op_class.classes, self.call_of[edge.producer])

    def _same_cores(self, edge: Edge, reason: Reason) -> bool:
        """Every block of the consumer needs only what its own core has stored."""
        first, second = self.graph.nodes[edge.producer], self.graph.nodes[edge.consumer]
        classes = self.facts[edge.producer].op_class, self.facts[edge.consumer].op_class
        if classes[0] is not classes[1] or len(classes[0].classes) > 1:
            return False
        return reason.block_local or (first.blocks == second.blocks == 1)

    # events and tilings

    def _early_requests(self) -> dict[int, list[int]]:
        """Op, or -1 -> the dynamic ops that can be asked for behind it: their tiling reads what it stores last."""
        rank = {op: place for place, op in enumerate(self.order.ops)}
        found: dict[int, list[int]] = {}
        for op in self.order.ops:
            if self.graph.nodes[op].dynamic and not self.graph.nodes[op].awaits:
                producers = [edge.producer for edge in self.graph.incoming[op] if _feeds_tiling(edge)]
                found.setdefault(max(producers, key=rank.__getitem__, default=-1), []).append(op)
        return found

    def _request(self, op: int) -> None:
        leader = self._leader(op)
        at = self._item(op, leader, "past the request of", Request(leader, op))
        needs: Reach = {}
        for edge in self.graph.incoming[op]:
            if _feeds_tiling(edge):
                for reason in edge.reasons:
                    _raise(needs, self._reach_for_agent(edge, reason))
        for event in self.graph.nodes[op].awaits:
            one, item = self.poll_of[event]
            if one is not leader[0]:  # the same core has seen its own
                _raise(needs, {one: item})
        self._sync(at, op, "to request", {leader[0]: needs})
        self.lock_of[op] = dict(self.state.known[leader[0]])

    def _reach_for_agent(self, edge: Edge, reason: Reason) -> Reach:
        """The agent is another core: nothing is local to it."""
        if reason.hazard is Hazard.EVENT:
            return self.at_send[edge.producer]
        return dict.fromkeys(self.facts[edge.producer].op_class.classes, self.call_of[edge.producer])

    def _select(self, op: int) -> None:
        classes = self.facts[op].op_class.classes
        at = self._item(op, classes, "past the lock of", Select(classes, op))
        self._record_item(at, What.WAIT, first_only=False)
        self.selected[op] = at
        for one in classes:
            self.state.learn(one, self.lock_of[op], at)

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

    # what surrounds the calls

    def _fenced(self, op: int, when: FenceWhen) -> bool:
        node, facts = self.graph.nodes[op], self.facts[op]
        named = {
            FenceWhen.BEFORE: self.options.dcci_before_kernel_start,
            FenceWhen.AFTER: self.options.dcci_after_kernel_end,
        }[when]
        asked = facts.fence_before if when is FenceWhen.BEFORE else facts.fence_after
        kind = node.kernel.type_name
        return (asked or kind in named) and not facts.fence_never and kind not in self.options.dcci_disable_on_kernel

    def _record_before(self, at: int) -> None:
        """Marks around what blocks in front of an item."""
        item = self.state.items[at]
        classes = tuple(dict.fromkeys(one for step in item.before for one in step.classes))
        if self.options.profiling and classes:
            item.before[:0] = [Record(classes, item.op, What.WAIT, True)]
            item.before.append(Record(classes, item.op, What.WAIT, False))

    def _record_item(self, at: int, what: What, first_only: bool) -> None:
        """Marks around an item itself."""
        item = self.state.items[at]
        if self.options.profiling:
            item.body[:0] = [Record(item.classes, item.op, what, True, first_only)]
            item.body.append(Record(item.classes, item.op, what, False, first_only))

    def _preload(self) -> None:
        """One op ahead on each class. Which code a dynamic op runs is known when it is selected."""
        if self.options.preload_code is not PreloadCode.PER_FUNC:
            return
        wanted: dict[tuple[int, int], list[CoreClass]] = {}  # (item, op) -> classes; item -1: at entry
        for one in self.launch.classes:
            before, kernel = -1, None
            for op in self.order.ops:
                if one not in self.facts[op].op_class.classes:
                    continue
                node = self.graph.nodes[op]
                if node.dynamic:
                    wanted.setdefault((self.call_of[op], op), []).append(one)
                elif node.kernel != kernel:
                    wanted.setdefault((before, op), []).append(one)
                before, kernel = self.call_of[op], node.kernel
        for (item, op), on in wanted.items():
            where = self.at_entry if item < 0 else self.state.items[item].ahead
            where.append(Preload(tuple(on), op))

    def _prefetch(self) -> None:
        """The copy engine is asked one op ahead."""
        if not self.options.prefetch_weights:
            return
        before = -1
        for op in self.order.ops:
            if weights_of(self.graph, self.graph.nodes[op]):
                leader = self._leader(op)
                asked = self.at_entry if before < 0 else self.state.items[before].ahead
                asked.append(PrefetchGo(leader, op))
                self.state.items[self.call_of[op]].ahead.append(PrefetchDone(leader, op))
            before = self.call_of[op]

    def _flat(self) -> Iterable[Step]:
        pending = Pending()
        for step in self._sequence():
            if isinstance(step, DebugBarrier):
                yield pending.seen_by(step)
            else:
                pending.take(step)
                yield step

    def _sequence(self) -> Iterable[Step]:
        everyone = self.launch.classes
        if self.options.profiling:
            yield Record(everyone, -1, What.KERNEL, True)
        if self.options.preload_code is PreloadCode.MAX:
            yield Preload(everyone, -1)
        yield from self.at_entry
        if self.dump:
            yield InitDump(everyone, -1)
        if feeding := tuple(one for one in everyone if any(one in classes for classes in self.fed.values())):
            yield ClearFeed(feeding, -1)
        calls = set(self.call_of.values())
        for at, item in enumerate(self.state.items):
            yield from item.ahead
            yield from item.before
            yield from self._call_steps(item) if at in calls else item.body
            yield from item.after
        for event, (one, _) in self.poll_of.items():
            yield ResetEvent((one,), -1, event)
        if self.options.profiling:
            yield Record(everyone, -1, What.KERNEL, False)

    def _call_steps(self, item: Item) -> Iterable[Step]:
        op, classes = item.op, item.classes
        kernel = self.graph.nodes[op].kernel
        if self._fenced(op, FenceWhen.BEFORE):
            yield Fence(classes, op, FenceWhen.BEFORE)
        if self.options.profiling:
            yield Record(classes, op, What.OP, True)
        inside: tuple[Inside, ...] = ()
        if kernel.waits_inside or kernel.signals_inside:
            nothing = Inside(None, (), False)
            inside = tuple(
                replace(item.inside.get(one, nothing), arrives=one in item.arrives_inside) for one in classes
            )
        yield Call(classes, op, inside, self.fed.get(op, ()))
        if self._fenced(op, FenceWhen.AFTER):
            yield Fence(classes, op, FenceWhen.AFTER)
        if self.options.debug_dcci_all:
            yield Fence(classes, op, FenceWhen.DEBUG)
        if self.options.debug_sync_all:
            yield DebugBarrier(self.launch.classes, op, whole_pair(self.launch))
        if self.options.profiling:
            yield Record(classes, op, What.OP, False)


class Pending:
    """Signals under way, as a walk along the steps finds them."""

    def __init__(self) -> None:
        self.arrivals = dict.fromkeys(CoreClass, 0)
        self.signals = dict.fromkeys(CoreClass, 0)

    def take(self, step: Step) -> None:
        if isinstance(step, Arrive):
            self._arrive(step.classes[0])
        elif isinstance(step, Meet):
            self._act(step.classes[0], step.actions)
        elif isinstance(step, Call):
            for one, inside in zip(step.classes, step.inside, strict=False):
                self._act(one, inside.actions)
                if inside.arrives:
                    self._arrive(one)

    def _arrive(self, one: CoreClass) -> None:
        self.arrivals[one] += 1

    def _act(self, one: CoreClass, actions: tuple[Action, ...]) -> None:
        other = VECTOR if one is CUBE else CUBE
        for action in actions:
            if action is Action.WAIT_ALL:
                self.arrivals[one] -= 1
            elif action is Action.SIGNAL:
                self.signals[one] += 1
            else:
                self.signals[other] -= 1

    def seen_by(self, barrier: DebugBarrier) -> DebugBarrier:
        return replace(
            barrier,
            pending_arrivals=tuple((one, self.arrivals[one]) for one in barrier.classes),
            pending_signals=tuple((one, self.signals[one]) for one in barrier.classes),
        )


def _raise(reach: Reach, other: Reach) -> None:
    for one, item in other.items():
        reach[one] = max(reach.get(one, -1), item)


def _feeds_tiling(edge: Edge) -> bool:
    """The tiling reads what the op reads, and may rely on the op's events."""
    return any(reason.hazard in (Hazard.READ_AFTER_WRITE, Hazard.EVENT) for reason in edge.reasons)


def weights_of(graph: Graph, node: Node) -> tuple[str, ...]:
    """The inputs of an op that no op of the launch writes."""
    names = (name for param, name in node.arguments() if param.kind is Kind.IN and graph.buffers[name].constant)
    return tuple(dict.fromkeys(names))
