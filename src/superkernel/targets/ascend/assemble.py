"""targets.ascend.assemble: the items of a schedule -> its steps, with preloads, fences, records, debug barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.graph import Graph
from ...model.options import Options, PreloadCode
from ...plan.steps import FenceWhen, SpanKind
from .class_clocks import Item, whole_pair
from .facts import facts_of
from .flag_counts import FlagCounts
from .launch_shape import LaunchShape
from .pairs import Action
from .schedule import Schedule, fenced
from .steps import (
    AwaitEvent,
    Call,
    Classes,
    ClearFeed,
    DebugBarrier,
    Fence,
    InitDump,
    Inside,
    Meet,
    Notify,
    PrefetchDone,
    PrefetchGo,
    Preload,
    Record,
    ResetEvent,
    Select,
    Step,
)
from .types import CoreClass

_AT_ENTRY = -1  # in place of an item: before the first


def assemble(
    graph: Graph, launch: LaunchShape, options: Options, schedule: Schedule, fed: Mapping[int, Classes], dump: bool
) -> tuple[Step, ...]:
    return tuple(_Assembler(graph, launch, options, schedule, fed, dump).steps())


class _Assembler:
    def __init__(
        self,
        graph: Graph,
        launch: LaunchShape,
        options: Options,
        schedule: Schedule,
        fed: Mapping[int, Classes],
        dump: bool,
    ) -> None:
        self.graph, self.launch, self.options, self.schedule = graph, launch, options, schedule
        self.fed, self.dump = fed, dump
        self.ahead: dict[int, list[Step]] = {}  # item -> what is asked for before anything there may block
        self._preload()
        self._prefetch()

    def steps(self) -> Iterator[Step]:
        pending = FlagCounts()
        for step in self._sequence():
            if isinstance(step, DebugBarrier):
                yield pending.seen_by(step)
            else:
                pending.take(step)
                yield step

    def _sequence(self) -> Iterator[Step]:
        everyone = self.launch.classes
        yield from self._record(everyone, -1, SpanKind.KERNEL, True)
        if self.options.preload_code is PreloadCode.MAX:
            yield Preload(everyone, -1)
        yield from self.ahead.get(_AT_ENTRY, ())
        if self.dump:
            yield InitDump(everyone, -1)
        if feeding := tuple(
            core_class for core_class in everyone if any(core_class in classes for classes in self.fed.values())
        ):
            yield ClearFeed(feeding, -1)
        calls = set(self.schedule.calls.values())
        for at, item in enumerate(self.schedule.items):
            yield from self.ahead.get(at, ())
            yield from self._waited(item.before, item.op)
            yield from self._call(item) if at in calls else self._body(item)
            yield from self._waited(item.after, item.op)
        for event, core_class in self.schedule.polls.items():
            yield ResetEvent((core_class,), -1, event)
        yield from self._record(everyone, -1, SpanKind.KERNEL, False)

    def _call(self, item: Item) -> Iterator[Step]:
        op, classes, node = item.op, item.classes, self.graph.nodes[item.op]
        if fenced(node, self.options, FenceWhen.BEFORE):
            yield Fence(classes, op, FenceWhen.BEFORE)
        yield from self._record(classes, op, SpanKind.OP, True)
        inside: tuple[Inside, ...] = ()
        if node.kernel.waits_inside or node.kernel.signals_inside:
            nothing = Inside(None, (), False)
            inside = tuple(
                replace(item.inside.get(core_class, nothing), arrives=core_class in item.arrives_inside)
                for core_class in classes
            )
        yield Call(classes, op, inside, self.fed.get(op, ()))
        if fenced(node, self.options, FenceWhen.AFTER):
            yield Fence(classes, op, FenceWhen.AFTER)
        if self.options.debug_dcci_all:
            yield Fence(classes, op, FenceWhen.DEBUG)
        if self.options.debug_sync_all:
            yield DebugBarrier(self.launch.classes, op, whole_pair(self.launch))
        yield from self._record(classes, op, SpanKind.OP, False)

    def _body(self, item: Item) -> Iterable[Step]:
        """Polls and notifies by block 0, and the lock that every core polls, are marked."""
        first = item.body[0]
        if not isinstance(first, AwaitEvent | Notify | Select):
            return item.body
        what = SpanKind.NOTIFY if isinstance(first, Notify) else SpanKind.WAIT
        return self._marked(item.body, item.classes, item.op, what, not isinstance(first, Select))

    # marks

    def _record(
        self, classes: Classes, op: int, what: SpanKind, begin: bool, first_only: bool = False
    ) -> Iterator[Step]:
        if self.options.profiling:
            yield Record(classes, op, what, begin, first_only)

    def _marked(
        self, steps: Sequence[Step], classes: Classes, op: int, what: SpanKind, first_only: bool = False
    ) -> Iterator[Step]:
        yield from self._record(classes, op, what, True, first_only)
        yield from steps
        yield from self._record(classes, op, what, False, first_only)

    def _waited(self, steps: Sequence[Step], op: int) -> Iterable[Step]:
        """Syncs, between marks on the classes that take part if any of them may block."""
        if not any(isinstance(step, Meet) and set(step.actions) != {Action.SIGNAL} for step in steps):
            return steps
        classes = tuple(dict.fromkeys(core_class for step in steps for core_class in step.classes))
        return self._marked(steps, classes, op, SpanKind.WAIT)

    # what is asked for ahead of its use

    def _preload(self) -> None:
        """One op ahead on each class. Which code a dynamic op runs is known when it is selected."""
        if self.options.preload_code is not PreloadCode.PER_FUNC:
            return
        wanted: dict[tuple[int, int], list[CoreClass]] = {}  # (item, op) -> classes
        for core_class in self.launch.classes:
            before, kernel = _AT_ENTRY, None
            for op in self.schedule.ops:
                node, at = self.graph.nodes[op], self.schedule.calls[op]
                if core_class not in self.schedule.items[at].classes:
                    continue
                if node.dynamic:
                    wanted.setdefault((at, op), []).append(core_class)
                elif node.kernel != kernel:
                    wanted.setdefault((before, op), []).append(core_class)
                before, kernel = at, node.kernel
        for (item, op), on in wanted.items():
            self._ask(item, Preload(tuple(on), op))

    def _prefetch(self) -> None:
        """The copy engine is asked one op ahead."""
        if not self.options.prefetch_weights:
            return
        before = _AT_ENTRY
        for op in self.schedule.ops:
            node, at = self.graph.nodes[op], self.schedule.calls[op]
            if self.graph.weights_of(node):
                leader = (facts_of(node.kernel).op_class.leader,)
                self._ask(before, PrefetchGo(leader, op))
                self._ask(at, PrefetchDone(leader, op))
            before = at

    def _ask(self, item: int, step: Step) -> None:
        self.ahead.setdefault(item, []).append(step)
