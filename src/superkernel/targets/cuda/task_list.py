"""targets.cuda.task_list: the steps of a plan that one core takes -> its tasks.

A task is a section of code with what it waits for before and signals behind it, so that most ops are one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...model.argument_layout import Role, Slot
from ...model.window_layout import RANK_LINE
from ...plan import steps
from ...plan.steps import Call, Cores, Need, Step, Wait
from .numbering import CopiesArea, CounterKey, CudaNumbering
from .task_layout import NO_FLAGS, CodeSection, NeedKind, TaskFlag

Argument = tuple[int, int, int]  # byte offset in the values, stride per SM, addend
NeedFields = tuple[int, int, NeedKind]  # counter, arrivals, where it is seen
Positions = Mapping[Cores, Mapping[int, int]]  # cores of a step -> core -> its place among them
_MEETING = (
    CodeSection.SYNC,
    CodeSection.FENCE,
    CodeSection.AWAIT_EVENT,
    CodeSection.AWAIT_RANKS,
)  # sections behind which the threads of a slot meet


@dataclass
class SlotTask:
    """One task before it has its place in the table."""

    section: int
    step: int
    flags: TaskFlag = NO_FLAGS
    needs: list[NeedFields] = field(default_factory=list)
    signal: tuple[int, int, int] = (0, 0, 0)  # counter, share, shared word
    stamp: int = 0
    first_block: int = 0
    blocks: int = 0
    width: int = 0
    arguments: tuple[Argument, ...] = ()
    grid: tuple[int, int] = (0, 0)

    @property
    def content(self) -> tuple[object, ...]:
        """All that the table says of it."""
        place = self.first_block, self.blocks, self.width, self.arguments, self.grid
        return self.section, self.flags, tuple(self.needs), self.signal, self.stamp, *place


_WAIT_FLAGS = {
    NeedKind.FAR: NO_FLAGS,
    NeedKind.NEAR: TaskFlag.NEAR_WAIT,
    NeedKind.SHARED: TaskFlag.SHARED_WAIT,
    NeedKind.CLUSTER: TaskFlag.CLUSTER_WAIT,
}
_EVENT_SECTIONS = {
    steps.AwaitEvent: CodeSection.AWAIT_EVENT,
    steps.Notify: CodeSection.NOTIFY,
    steps.ResetEvent: CodeSection.RESET_EVENT,
}


def counter_key(need: Need) -> CounterKey:
    return need.mark, need.cores, need.near


class TaskList:
    """The steps of one core, in order -> its tasks."""

    def __init__(self, numbers: CudaNumbering, positions: Positions, core: int) -> None:
        self.numbers, self.plan, self.positions = numbers, numbers.plan, positions
        self.layout = self.plan.layout
        self.core = core
        self.tasks: list[SlotTask] = []
        self.waiting: list[NeedFields] = []  # for the next task
        self.inside: list[NeedFields] = []  # for the next call
        self.inside_stamp: int | None = None
        self.stamps = 0

    def run(self) -> list[SlotTask]:
        for number in self.numbers.programs[self.core]:
            self._take(number, self.plan.steps[number])
        self._add(SlotTask(CodeSection.END, max(0, len(self.plan.steps) - 1)))
        return self.tasks

    def _take(self, number: int, step: Step) -> None:
        match step:
            case Wait(inside=True):
                self.inside += self._needs(step)
                if self.plan.options.profiling:
                    self.inside_stamp = self.stamps
                    self.stamps += 2
            case Wait():
                self.waiting += self._needs(step)
            case steps.Barrier():
                key: CounterKey = (number, step.cores, False)
                self._signal(number, key)
                self.waiting.append(self._need(key))
            case steps.Signal():
                for key in self.numbers.keys_of_mark.get(step.mark, ()):
                    if self.core in self.numbers.members[key[1]]:
                        self._signal(number, key)
            case Call():
                self._call(number, step)
            case steps.Record():
                self._add(SlotTask(CodeSection.STAMP, number, stamp=self.stamps))
                self.stamps += 1
            case steps.Fence():
                self._add(SlotTask(CodeSection.FENCE, number))
            case steps.AwaitEvent() | steps.Notify() | steps.ResetEvent():
                source = 8 * self.numbers.event_place[step.event]
                self._add(SlotTask(_EVENT_SECTIONS[type(step)], number, arguments=((source, 0, 0),)))
            case steps.AwaitRanks() | steps.NotifyRanks():
                self._add(self._rank_sync(number, step))
            case steps.PrefetchWeights() | steps.StageWeights() | steps.Preload():
                pass  # what an SM asks for ahead of its ops is a list of its own
            case _:
                raise AssertionError(f"a step that the cuda target does not have: {step}")

    def _add(self, task: SlotTask) -> None:
        if self.waiting:
            task.needs, self.waiting = self.waiting, []
            task.flags |= TaskFlag.WAITS | _WAIT_FLAGS[task.needs[0][2]]
        self.tasks.append(task)

    def _needs(self, step: Wait) -> list[NeedFields]:
        return [self._need(counter_key(need)) for need in step.needs]

    def _need(self, key: CounterKey) -> NeedFields:
        kind = self.numbers.need_kind(key, self.core)
        in_shared = kind in (NeedKind.NEAR, NeedKind.CLUSTER)
        where = self.numbers.shared_words[key] if in_shared else self.numbers.counters[key]
        return where, self.numbers.arrivals(key, self.core), kind

    def _signal(self, number: int, key: CounterKey) -> None:
        """Behind the last task if its threads meet there and it signals nothing yet; else behind a task of its own."""
        last = self.tasks[-1] if self.tasks else None
        meets = last is not None and (last.section in _MEETING or last.section >= len(CodeSection))
        if last is None or not meets or self.waiting or TaskFlag.SIGNALS in last.flags:
            self._add(SlotTask(CodeSection.SYNC, number))
            last = self.tasks[-1]
        last.flags |= TaskFlag.SIGNALS
        share = self.numbers.shares[key[1]][self.numbers.shape.sm(self.core)]
        if self.numbers.is_near(key):
            self._signal_near(self.numbers.shared_words[key])
        elif self.numbers.in_cluster(key):
            last.flags |= TaskFlag.CLUSTER_SIGNAL
            last.signal = (0, self.numbers.cluster_ranks[key], self.numbers.shared_words[key])
        elif key in self.numbers.shared_words and share == self.numbers.shape.cores_of(
            self.numbers.shape.sm(self.core)
        ):
            last.flags |= TaskFlag.SHARED_SIGNAL | TaskFlag.WHOLE_SM
            last.signal = (self.numbers.counters[key], 0, self.numbers.shared_words[key])
        elif key in self.numbers.shared_words and share > 1:
            last.flags |= TaskFlag.SHARED_SIGNAL
            last.signal = (self.numbers.counters[key], share, self.numbers.shared_words[key])
        else:
            last.signal = (self.numbers.counters[key], 1, 0)

    def _signal_near(self, word: int) -> None:
        """The last task tells the other slots of the SM."""
        self.tasks[-1].flags |= TaskFlag.SIGNALS | TaskFlag.NEAR_SIGNAL
        self.tasks[-1].signal = (0, 0, word)

    def _call(self, number: int, step: Call) -> None:
        node = self.plan.graph.nodes[step.op]
        if self.inside and self.waiting:
            self._add(SlotTask(CodeSection.SYNC, number))
        place = self.positions[step.cores][self.core] % step.width
        ranked = step.copies == 1
        x, y, _ = node.kernel.grid or (node.blocks, 1, 1)
        task = SlotTask(
            self.numbers.codes[node.kernel].section,
            number,
            (TaskFlag.RANKED if ranked else NO_FLAGS) | (TaskFlag.SINGLE if step.blocks <= step.width else NO_FLAGS),
            first_block=place - self.core if ranked else place,
            blocks=step.blocks,
            width=step.width,
            arguments=tuple(self._arguments(step.op)),
            grid=(x, y),
        )
        if self.inside:
            task.needs, self.inside = self.inside, []
            task.flags |= TaskFlag.WAITS_INSIDE | _WAIT_FLAGS[task.needs[0][2]]
            if self.inside_stamp is not None:
                task.stamp, self.inside_stamp = self.inside_stamp, None
                task.flags |= TaskFlag.RECORDS_WAIT
        self._add(task)

    def _rank_sync(self, number: int, step: steps.AwaitRanks | steps.NotifyRanks) -> SlotTask:
        """All lines of the window, or the one of this rank."""
        windows = {collective.name: collective.window for collective in self.plan.graph.collectives}
        source = 8 * self.numbers.buffer_place[windows[step.collective]]
        if isinstance(step, steps.AwaitRanks):
            return SlotTask(CodeSection.AWAIT_RANKS, number, blocks=step.group.size, arguments=((source, 0, 0),))
        line = RANK_LINE * step.group.rank
        return SlotTask(CodeSection.NOTIFY_RANKS, number, arguments=((source, 0, line),))

    # arguments

    def _arguments(self, op: int) -> Iterator[Argument]:
        node = self.plan.graph.nodes[op]
        code = self.numbers.codes[node.kernel]
        slots = [s for s in self.layout.of_op.get(node.name, ()) if s.role is Role.PARAM]
        flag = self.numbers.staged_flags.get(op)
        for number, slot in enumerate(slots):
            yield (8 * self.numbers.zero_place, 0, 1) if number == flag else self._argument(slot)
        for parameter in range(len(slots), code.parameters):
            area = self.numbers.scratch.get(op)
            if parameter == code.scratch_parameter and area is not None:
                copy = self.numbers.copy_of.get(op, {}).get(self.core, 0)
                yield self._of_copy(area, copy, self.numbers.scratch_place, first=0)
            else:
                yield 8 * self.numbers.zero_place, 0, 0

    def _argument(self, slot: Slot) -> Argument:
        if slot.source is None:
            return 8 * self.numbers.zero_place, 0, slot.literal
        area = self.numbers.copies.get(slot.source)
        copy = self.numbers.copy_of[area.op].get(self.core, 0) if area is not None else 0
        if area is None or copy == 0:
            return 8 * self.numbers.buffer_place[slot.source], 0, slot.addend
        source, stride, addend = self._of_copy(area, copy, self.numbers.copies_place, first=1)
        return source, stride, addend + slot.addend

    def _of_copy(self, area: CopiesArea, copy: int, place: int, first: int) -> Argument:
        """Copy `first` lies at the beginning of the area; the copy rises with the SM."""
        if area.op not in self.numbers.copy_of:
            return 8 * place, 0, area.offset + (copy - first) * area.stride
        sm = self.numbers.shape.sm(self.core)
        return 8 * place, area.stride, area.offset + (copy - first - sm) * area.stride
