"""targets.cuda.task_table: a numbered plan -> the table of tasks that the super kernel walks, as bytes.

The tasks of a core are one list. Cores that differ only in their number share a list: the first block of a core, and
the copy of a buffer that it uses, then follow from its number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...model.argument_layout import Role, Slot
from ...plan import steps
from ...plan.classes import CoreClasses
from ...plan.steps import Call, Need, Step, Wait
from .emit_steps import LINE_BYTES
from .numbering import CopyArea, CounterKey, Numbering
from .task_layout import (
    ARGUMENT_BYTES,
    HEADER_BYTES,
    NEED_BYTES,
    NO_FLAGS,
    TASK_BYTES,
    WORD,
    HeaderWord,
    NeedKind,
    Section,
    TaskFlag,
    TaskWord,
)

Argument = tuple[int, int, int]  # byte offset in the values, stride per core, addend
NeedFields = tuple[int, int, NeedKind]  # counter, arrivals, where it is seen
_MEETING = (Section.SYNC, Section.FENCE, Section.AWAIT_EVENT)  # sections behind which the threads of a slot meet


@dataclass(frozen=True)
class CoreRun:
    """Cores that share one list of tasks."""

    first: int
    last: int  # behind the last of them
    offset: int  # of the first task in the table
    steps: tuple[int, ...]  # of the plan, one per task

    @property
    def cores(self) -> range:
        return range(self.first, self.last)


@dataclass
class Task:
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


@dataclass(frozen=True)
class TaskTable:
    """The bytes of a table, and the runs of cores that share lists."""

    data: bytes
    runs: tuple[CoreRun, ...]
    listing: str  # one comment per task

    def task_steps(self) -> tuple[tuple[int, ...], ...]:
        """Per core, the step of the plan of each of its tasks."""
        return tuple(run.steps for run in self.runs for _ in run.cores)


def encode(numbers: Numbering) -> TaskTable:
    """The task table of a plan."""
    return _Encoder(numbers).table()


class _Encoder:
    def __init__(self, numbers: Numbering) -> None:
        self.numbers, self.plan, self.shape = numbers, numbers.plan, numbers.shape
        self.layout = self.plan.layout
        self.positions: dict[steps.Cores, dict[int, int]] = {}
        for step in self.plan.steps:
            if isinstance(step, Call | steps.PrefetchWeights) and step.cores not in self.positions:
                self.positions[step.cores] = {core: place for place, core in enumerate(step.cores)}

    # which cores share a list

    @cached_property
    def signatures(self) -> list[tuple[object, ...]]:
        """Per core, what decides its list of tasks, relative to its number."""
        numbers = self.numbers
        far = [cores for mark, cores in numbers.waiters if not numbers.is_near((mark, cores))]
        alike = [step.cores for step in self.plan.steps if not self._is_near(step)]
        classes = CoreClasses(self.shape.cores, [*far, *alike])
        found: list[list[object]] = [[number] for number in classes.of_core]
        shapes = dict.fromkeys(
            (step.cores, step.copies if isinstance(step, Call) else 1)
            for step in self.plan.steps
            if isinstance(step, Call | steps.PrefetchWeights)
        )
        for cores, copies in shapes:
            width = len(cores) // copies
            for core, place in self.positions[cores].items():
                found[core].append(place - core if copies == 1 else place % width)
        for copy_of in numbers.copy_of.values():
            for core, copy in copy_of.items():
                found[core].append((copy == 0, copy - core))
        for cores, by_sm in numbers.shares.items():
            for core in cores:
                found[core].append(by_sm[self.shape.sm(core)])
        for key, waiting in numbers.waiters.items():
            for core in waiting if numbers.shares_polls and not numbers.is_near(key) else ():
                found[core].append(numbers.need_kind(key, core))
        for step in self.plan.steps:
            if isinstance(step, Wait) and self._is_near(step):
                words = tuple((numbers.shared_words[_key(need)], len(need.cores)) for need in step.needs)
                for core in step.cores:
                    found[core].append((step.op, step.inside, words))
        for key in numbers.waiters:
            if numbers.is_near(key):
                for core in key[1]:
                    found[core].append((numbers.shared_words[key], key[0]))
        return [tuple(signature) for signature in found]

    def _is_near(self, step: Step) -> bool:
        """Whether a step is a wait for cores of the same SM: then the cores of other SMs have a step like it."""
        return isinstance(step, Wait) and all(self.numbers.is_near(_key(need)) for need in step.needs)

    def _runs(self) -> Iterator[tuple[int, int]]:
        first = 0
        for core in range(1, self.shape.cores + 1):
            if core == self.shape.cores or self.signatures[core] != self.signatures[first]:
                yield first, core
                first = core

    # the tasks of a core

    def tasks(self, core: int, alone: bool) -> list[Task]:
        """The list of a core; `alone`: no other core shares it."""
        return _TaskList(self, core, alone).run()

    def table(self) -> TaskTable:
        pool, lists, runs = _Pool(), list[tuple[int, list[Task]]](), list[CoreRun]()
        header = _rounded(HEADER_BYTES + WORD * self.shape.cores, TASK_BYTES)
        end = header
        for first, last in self._runs():
            tasks = self.tasks(first, last - first == 1)
            runs.append(CoreRun(first, last, end, tuple(task.step for task in tasks)))
            lists.append((end, tasks))
            end += TASK_BYTES * len(tasks)
        pool.begin = end
        packed = b"".join(_packed(task, number, pool) for _, tasks in lists for number, task in enumerate(tasks))
        size = end + len(pool.data)
        head = {
            HeaderWord.CORES: self.shape.cores,
            HeaderWord.SHARED_WORDS: self.numbers.shared_word_count,
            HeaderWord.STAMP_ROOM: self.numbers.stamp_room,
            HeaderWord.TABLE_BYTES: size,
            HeaderWord.SEEN_WORDS: self.numbers.seen_words & 0xFFFFFFFF,
        }
        offsets = [run.offset for run in runs for _ in run.cores]
        words = struct.pack(f"<{len(head)}I", *(head[word] for word in HeaderWord))
        start = words.ljust(HEADER_BYTES, b"\0") + struct.pack(f"<{len(offsets)}I", *offsets)
        data = start.ljust(header, b"\0") + packed + bytes(pool.data)
        return TaskTable(data, tuple(runs), self._listing(runs, lists))

    def _listing(self, runs: list[CoreRun], lists: list[tuple[int, list[Task]]]) -> str:
        lines = [f"// task table: {len(runs)} lists for {self.shape.cores} cores on {self.shape.sms} SMs"]
        for run, (_, tasks) in zip(runs, lists, strict=True):
            cores = f"core {run.first}" if len(run.cores) == 1 else f"cores {run.first}-{run.last - 1}"
            lines.append(f"// {cores}:")
            for number, task in enumerate(tasks):
                lines.append(f"//   {run.offset + TASK_BYTES * number:>6}  {self._said(task)}")
        return "\n".join(lines) + "\n"

    def _said(self, task: Task) -> str:
        inside = TaskFlag.WAITS_INSIDE in task.flags
        places = {NeedKind.NEAR: "shared word", NeedKind.FAR: "counter", NeedKind.SHARED: "counter"}
        waits = ", ".join(f"{places[kind]} {at} x {arrivals}" for at, arrivals, kind in task.needs)
        counter, share, word = task.signal
        arrival = (
            f"; signal shared word {word}" if TaskFlag.NEAR_SIGNAL in task.flags else f"; signal counter {counter}"
        )
        if TaskFlag.SHARED_SIGNAL in task.flags:
            arrival += f" for {share} cores of the SM"
        text = "end" if task.section == Section.END else self.plan.describe(self.plan.steps[task.step])
        wait = f"wait {'inside ' if inside else ''}for {waits}; " if waits else ""
        return f"{wait}{text}{arrival if TaskFlag.SIGNALS in task.flags else ''}"


class _TaskList:
    """The steps of one core, in order -> its tasks."""

    def __init__(self, encoder: _Encoder, core: int, alone: bool) -> None:
        self.encoder, self.numbers, self.plan = encoder, encoder.numbers, encoder.plan
        self.core, self.alone = core, alone
        self.tasks: list[Task] = []
        self.waiting: list[NeedFields] = []  # for the next task
        self.inside: list[NeedFields] = []  # for the next call
        self.inside_stamp: int | None = None
        self.stamps = 0

    def run(self) -> list[Task]:
        for number in self.numbers.programs[self.core]:
            self._take(number, self.plan.steps[number])
        self._add(Task(Section.END, max(0, len(self.plan.steps) - 1)))
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
                key: CounterKey = (number, step.cores)
                self._signal(number, key)
                self.waiting.append(self._need(key))
            case steps.Signal():
                for key in self.numbers.keys_of_mark.get(step.mark, ()):
                    if self.core in self.numbers.members[key[1]]:
                        self._signal(number, key)
            case Call():
                self._call(number, step)
            case steps.Record():
                self._add(Task(Section.STAMP, number, stamp=self.stamps))
                self.stamps += 1
            case steps.Fence():
                self._add(Task(Section.FENCE, number))
            case steps.AwaitEvent() | steps.Notify() | steps.ResetEvent():
                source = 8 * self.numbers.event_place[step.event]
                self._add(Task(_EVENT_SECTIONS[type(step)], number, arguments=((source, 0, 0),)))
            case steps.PrefetchWeights():
                self._prefetch(number, step)
            case steps.Preload():
                pass
            case _:
                raise AssertionError(f"a step that the cuda target does not have: {step}")

    def _add(self, task: Task) -> None:
        if self.waiting:
            task.needs, self.waiting = self.waiting, []
            task.flags |= TaskFlag.WAITS | _WAIT_FLAGS[task.needs[0][2]]
        self.tasks.append(task)

    def _needs(self, step: Wait) -> list[NeedFields]:
        return [self._need(_key(need)) for need in step.needs]

    def _need(self, key: CounterKey) -> NeedFields:
        kind = self.numbers.need_kind(key, self.core)
        where = self.numbers.shared_words[key] if kind is NeedKind.NEAR else self.numbers.counters[key]
        return where, len(key[1]), kind

    def _signal(self, number: int, key: CounterKey) -> None:
        """Behind the last task if its threads meet there and it signals nothing yet; else behind a task of its own."""
        last = self.tasks[-1] if self.tasks else None
        meets = last is not None and (last.section in _MEETING or last.section >= len(Section))
        if last is None or not meets or self.waiting or TaskFlag.SIGNALS in last.flags:
            self._add(Task(Section.SYNC, number))
            last = self.tasks[-1]
        last.flags |= TaskFlag.SIGNALS
        share = self.numbers.shares[key[1]][self.numbers.shape.sm(self.core)]
        if self.numbers.is_near(key):
            last.flags |= TaskFlag.NEAR_SIGNAL
            last.signal = (0, 0, self.numbers.shared_words[key])
        elif key in self.numbers.shared_words and share > 1:
            last.flags |= TaskFlag.SHARED_SIGNAL
            last.signal = (self.numbers.counters[key], share, self.numbers.shared_words[key])
        else:
            last.signal = (self.numbers.counters[key], 1, 0)

    def _call(self, number: int, step: Call) -> None:
        node = self.plan.graph.nodes[step.op]
        if self.inside and self.waiting:
            self._add(Task(Section.SYNC, number))
        place = self.encoder.positions[step.cores][self.core] % step.width
        ranked = step.copies == 1
        x, y, _ = node.kernel.grid or (node.blocks, 1, 1)
        task = Task(
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

    def _prefetch(self, number: int, step: steps.PrefetchWeights) -> None:
        """Buffers of unknown size are left out."""
        for name in step.names:
            nbytes = self.plan.graph.buffers[name].nbytes
            if nbytes:
                task = Task(Section.PREFETCH, number, TaskFlag.RANKED)
                task.first_block = self.encoder.positions[step.cores][self.core] - self.core
                task.blocks, task.width = -(-nbytes // LINE_BYTES), len(step.cores)
                task.grid = (-(-step.budget // LINE_BYTES), 0)
                task.arguments = ((8 * self.numbers.buffer_place[name], 0, 0),)
                self._add(task)

    # arguments

    def _arguments(self, op: int) -> Iterator[Argument]:
        node = self.plan.graph.nodes[op]
        code = self.numbers.codes[node.kernel]
        slots = [s for s in self.encoder.layout.of_op.get(node.name, ()) if s.role is Role.PARAM]
        yield from map(self._argument, slots)
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

    def _of_copy(self, area: CopyArea, copy: int, place: int, first: int) -> Argument:
        """Copy `first` lies at the beginning of the area; in a list of several cores the copy rises with the core."""
        if self.alone or area.op not in self.numbers.copy_of:
            return 8 * place, 0, area.offset + (copy - first) * area.stride
        return 8 * place, area.stride, area.offset + (copy - first - self.core) * area.stride


_WAIT_FLAGS = {
    NeedKind.FAR: NO_FLAGS,
    NeedKind.NEAR: TaskFlag.NEAR_WAIT,
    NeedKind.SHARED: TaskFlag.SHARED_WAIT,
}
_EVENT_SECTIONS = {
    steps.AwaitEvent: Section.AWAIT_EVENT,
    steps.Notify: Section.NOTIFY,
    steps.ResetEvent: Section.RESET_EVENT,
}


def _key(need: Need) -> CounterKey:
    return need.mark, need.cores


@dataclass
class _Pool:
    """Arguments and further needs, behind the tasks; equal ones are stored once."""

    begin: int = 0
    data: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict)

    def place(self, content: bytes) -> int:
        if not content:
            return 0
        if content not in self.known:
            self.known[content] = self.begin + len(self.data)
            self.data += content
        return self.known[content]


def _packed(task: Task, number: int, pool: _Pool) -> bytes:
    counter, arrivals, _ = task.needs[0] if task.needs else (0, 0, NeedKind.FAR)
    more = b"".join(struct.pack("<3I", *need).ljust(NEED_BYTES, b"\0") for need in task.needs[1:])
    arguments = b"".join(
        struct.pack("<IIQ", source, stride, addend & (1 << 64) - 1) for source, stride, addend in task.arguments
    )
    assert len(arguments) == ARGUMENT_BYTES * len(task.arguments)
    more_needs = pool.place(more)  # before the arguments: in the order in which read_back asks for them
    words = {
        TaskWord.KIND: task.section | task.flags.value,
        TaskWord.WAIT_COUNTER: counter,
        TaskWord.WAIT_ARRIVALS: arrivals,
        TaskWord.SIGNAL_COUNTER: task.signal[0],
        TaskWord.SIGNAL_SHARE: task.signal[1],
        TaskWord.SIGNAL_WORD: task.signal[2],
        TaskWord.STAMP: task.stamp,
        TaskWord.FIRST_BLOCK: task.first_block & 0xFFFFFFFF,
        TaskWord.BLOCKS: task.blocks,
        TaskWord.WIDTH: task.width,
        TaskWord.ARGUMENTS: pool.place(arguments),
        TaskWord.GRID_X: task.grid[0],
        TaskWord.GRID_Y: task.grid[1],
        TaskWord.NUMBER: number,
        TaskWord.MORE_NEEDS: more_needs,
        TaskWord.MORE_NEEDS_COUNT: len(task.needs[1:]),
    }
    return struct.pack(f"<{len(words)}I", *(words[word] for word in TaskWord))


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
