"""targets.ascend.assemble: the items of a schedule -> its steps, with preloads, fences, records, debug barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...model.graph import Graph
from ...model.options import Options, PreloadCode
from ...plan.assemble import between_marks, preloads_ahead, record
from ...plan.steps import (
    AwaitEvent,
    Fence,
    FenceWhen,
    Notify,
    Preload,
    Record,
    Request,
    ResetEvent,
    Select,
    SpanKind,
    Step,
)
from .class_clocks import Item
from .core_types import CoreClass
from .facts import facts_of
from .flag_counts import FlagCounts
from .launch_shape import LaunchShape
from .pairs import Action
from .schedule import Schedule, fenced
from .steps import (
    NOTHING_INSIDE,
    CacheFence,
    ClassCall,
    Classes,
    ClearFeed,
    DebugBarrier,
    Drain,
    InitDump,
    InsideSync,
    LeaderRecord,
    Meet,
    PrefetchGo,
    PreloadEntry,
    ResetLock,
    WholeBarrier,
)
from .weights import weights_by_reader

_AT_ENTRY = -1  # in place of an item: before the first
# what finds no transfer of its cores under way; debug steps drain by themselves
NEEDS_DRAINED = (ClassCall, Notify, Request, ResetLock, Fence, Record)


@dataclass
class Assembler:
    graph: Graph
    launch: LaunchShape
    options: Options
    schedule: Schedule
    fed: Mapping[int, Classes]  # sync_all op -> the classes with cores that join its barriers
    dump: bool
    ahead: dict[int, list[Step]] = field(default_factory=dict)  # item -> what is asked for before anything may block

    def steps(self) -> Iterator[Step]:
        self._preload()
        self._prefetch()
        pending = FlagCounts()
        for step in self._drained(self._sequence()):
            if isinstance(step, DebugBarrier):
                yield pending.seen_by(step)
            else:
                pending.take(step)
                yield step

    def _drained(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pipes are drained before what needs them empty, and not before an arrival: it would undo early start."""
        busy: set[CoreClass] = set()
        for step in steps:
            if isinstance(step, NEEDS_DRAINED) and not (isinstance(step, Fence) and step.debug):
                waiting = tuple(core_class for core_class in step.cores if core_class in busy)
                if waiting and not (isinstance(step, Record) and step.begin):
                    yield Drain(waiting)
                    busy.difference_update(waiting)
            yield step
            if isinstance(step, ClassCall):
                busy.update(step.cores)
        if left := tuple(core_class for core_class in self.launch.classes if core_class in busy):
            yield Drain(left)

    def _sequence(self) -> Iterator[Step]:
        everyone = self.launch.classes
        yield from record(everyone, SpanKind.KERNEL, True, None, self.options)
        if self.options.preload_code is PreloadCode.MAX:
            yield PreloadEntry(everyone)
        yield from self.ahead.get(_AT_ENTRY, ())
        if self.dump:
            yield InitDump(everyone)
        if feeding := tuple(
            core_class for core_class in everyone if any(core_class in classes for classes in self.fed.values())
        ):
            yield ClearFeed(feeding)
        calls = set(self.schedule.calls.values())
        for at, item in enumerate(self.schedule.items):
            yield from self.ahead.get(at, ())
            yield from self._waited(item.before, item.op)
            yield from self._call(item) if at in calls else self._body(item)
            yield from self._waited(item.after, item.op)
        for event, core_class in self.schedule.polls.items():
            yield ResetEvent((core_class,), event)
        yield from record(everyone, SpanKind.KERNEL, False, None, self.options)

    def _call(self, item: Item) -> Iterator[Step]:
        """The op between its marks. Debug steps stand inside them, so that a timeline shows what they cost the op."""
        op, classes, node = item.op, item.classes, self.graph.nodes[item.op]
        if fenced(node, self.options, FenceWhen.BEFORE):
            yield CacheFence(classes, op, FenceWhen.BEFORE)
        yield from record(classes, SpanKind.OP, True, op, self.options)
        inside: tuple[InsideSync, ...] = ()
        if node.kernel.waits_inside or node.kernel.signals_inside:
            inside = tuple(
                replace(item.inside.get(core_class, NOTHING_INSIDE), arrives=core_class in item.arrives_inside)
                for core_class in classes
            )
        yield ClassCall(classes, op, node.blocks, inside=inside, fed=self.fed.get(op, ()))
        if fenced(node, self.options, FenceWhen.AFTER):
            yield CacheFence(classes, op, FenceWhen.AFTER)
        if self.options.debug_dcci_all:
            yield CacheFence(classes, op, FenceWhen.DEBUG)
        if self.options.debug_sync_all:
            yield DebugBarrier(self.launch.classes, op)
        yield from record(classes, SpanKind.OP, False, op, self.options)

    def _body(self, item: Item) -> Iterable[Step]:
        """Polls and notifies by block 0, and the lock that every core polls, are marked."""
        first = item.body[0]
        if not isinstance(first, AwaitEvent | Notify | Select):
            return item.body
        what = SpanKind.NOTIFY if isinstance(first, Notify) else SpanKind.WAIT
        kind = Record if isinstance(first, Select) else LeaderRecord
        return between_marks(item.body, item.classes, what, item.op, self.options, kind)

    def _waited(self, steps: Sequence[Step], op: int) -> Iterable[Step]:
        """Syncs, between marks on the classes that take part if any of them may block."""
        if not any(isinstance(step, WholeBarrier) or _blocks(step) for step in steps):
            return steps
        classes = tuple(dict.fromkeys(core_class for step in steps for core_class in step.cores))
        return between_marks(steps, classes, SpanKind.WAIT, op, self.options)

    # what is asked for ahead of its use

    def _preload(self) -> None:
        """One op ahead on each class. Which code a dynamic op runs is known when it is selected."""
        if self.options.preload_code is not PreloadCode.PER_FUNC:
            return
        calls, items = self.schedule.calls, self.schedule.items
        wanted = preloads_ahead(self.graph, self.schedule.ops, lambda op: items[calls[op]].classes, keeps_code=False)
        for before, ops in wanted.items():
            # cube cores ask first
            for op, classes in sorted(ops.items(), key=lambda asked: self.launch.classes.index(asked[1][0])):
                self._ask(calls.get(before, _AT_ENTRY), Preload(tuple(classes), (op,)))

    def _prefetch(self) -> None:
        """The copy engine is asked one op ahead."""
        if not self.options.prefetch_weights:
            return
        before, wanted = _AT_ENTRY, weights_by_reader(self.graph, self.schedule.ops)
        for op in self.schedule.ops:
            if op in wanted:
                leader = facts_of(self.graph.nodes[op].kernel).op_class.leader
                self._ask(before, PrefetchGo((leader,), op))
            before = self.schedule.calls[op]

    def _ask(self, item: int, step: Step) -> None:
        self.ahead.setdefault(item, []).append(step)


def _blocks(step: Step) -> bool:
    """Whether a core may have to wait in a sync."""
    return isinstance(step, Meet) and set(step.actions) != {Action.SIGNAL}
