"""targets.cuda.task_table: a numbered plan -> the table of tasks that the super kernel walks, as bytes.

The tasks of a core are one list. Cores that differ only in their number share a list: the first block of a core, and
the copy of a buffer that it uses, then follow from its number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property

from ...plan import steps
from ...plan.classes import CoreClasses
from ...plan.steps import Call, Step, Wait, spell
from .input_stream import LAST_ENTRY, StreamEntry, stream_of
from .numbering import CudaNumbering
from .staged_chunks import LAST_ENTRY as LAST_STAGED
from .staged_chunks import StageEntry, staged_entries
from .task_layout import (
    ARGUMENT_BYTES,
    FIRST_BODY,
    HEADER_BYTES,
    NEED_BYTES,
    PART_BYTES,
    STAGE_ENTRY_BYTES,
    STREAM_ENTRY_BYTES,
    SUM_BYTES,
    TABLE_ALIGNMENT,
    TASK_BYTES,
    WORD,
    CodeSection,
    HeaderWord,
    NeedKind,
    TaskFlag,
    TaskWord,
)
from .task_list import SlotTask, TaskList, counter_key

StreamEntries = tuple[StreamEntry, ...]
_PLACES = {
    NeedKind.NEAR: "shared word",
    NeedKind.CLUSTER: "cluster word",
    NeedKind.FAR: "counter",
    NeedKind.SHARED: "counter",
}


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


@dataclass(frozen=True)
class SmPart:
    """What of a table belongs to one SM: offsets of the lists of its cores, and of the inputs that it asks for."""

    lists: int = 0
    lists_end: int = 0
    inputs: int = 0
    inputs_end: int = 0

    @property
    def nbytes(self) -> int:
        return self.lists_end - self.lists + self.inputs_end - self.inputs


@dataclass(frozen=True)
class TaskTable:
    """The bytes of a table, and the runs of cores that share lists.

    An SM copies to shared memory what is the same for all SMs, then the sums that the arguments are, then its part.
    """

    data: bytes
    runs: tuple[CoreRun, ...]
    listing: str  # one comment per task
    parts: tuple[SmPart, ...]  # by SM
    parts_place: int  # where the part of an SM begins in its copy

    @property
    def copy_bytes(self) -> int:
        """Shared memory for a copy, on the SM that needs most."""
        return self.parts_place + max(part.nbytes for part in self.parts)

    def place_in_copy(self, offset: int, sm: int) -> int:
        """Where a task of an SM lies in its copy."""
        return self.parts_place + offset - self.parts[sm].lists

    def task_steps(self) -> tuple[tuple[int, ...], ...]:
        """Per core, the step of the plan of each of its tasks."""
        return tuple(run.steps for run in self.runs for _ in run.cores)


def encode(numbers: CudaNumbering, *, copied: bool = True) -> TaskTable:
    """The task table of a plan. `copied`: SMs work on copies in shared memory, where arguments are sums."""
    return _Encoder(numbers, copied).table()


class _Encoder:
    def __init__(self, numbers: CudaNumbering, copied: bool) -> None:
        self.numbers, self.plan, self.shape = numbers, numbers.plan, numbers.shape
        self.copied = copied
        self.layout = self.plan.layout
        self.positions: dict[steps.Cores, dict[int, int]] = {}
        for step in self.plan.steps:
            if isinstance(step, Call) and step.cores not in self.positions:
                self.positions[step.cores] = {core: place for place, core in enumerate(step.cores)}

    # which cores share a list

    @cached_property
    def signatures(self) -> list[tuple[object, ...]]:
        """Per core, what decides its list of tasks, relative to its number."""
        numbers = self.numbers
        far = [key[1] for key in numbers.waiters if key[2] or not numbers.is_near(key)]
        alike = [step.cores for step in self.plan.steps if not self._is_near(step)]
        classes = CoreClasses(self.shape.cores, [*far, *alike])
        found: list[list[object]] = [[number] for number in classes.of_core]
        shapes = dict.fromkeys((step.cores, step.copies) for step in self.plan.steps if isinstance(step, Call))
        for cores, copies in shapes:
            width = len(cores) // copies
            for core, place in self.positions[cores].items():
                found[core].append(place - core if copies == 1 else place % width)
        for copy_of in numbers.copy_of.values():
            for core, copy in copy_of.items():
                found[core].append((copy == 0, copy - self.shape.sm(core)))
        for cores, by_sm in numbers.shares.items():
            for core in cores:
                share = by_sm[self.shape.sm(core)]
                found[core].append(share if share < self.shape.cores_of(self.shape.sm(core)) else -1)
        for key, waiting in numbers.waiters.items() if numbers.shares_polls else ():
            by_sm = numbers.waiters_by_sm[key]
            for core in waiting if key in numbers.counters else ():
                found[core].append(by_sm[self.shape.sm(core)] > 1)
        for step in self.plan.steps:
            if isinstance(step, Wait) and self._is_near(step):
                keys = [counter_key(need) for need in step.needs]
                words = tuple((numbers.shared_words[key], len(key[1])) for key in keys)
                for core in step.cores:
                    found[core].append((step.op, step.inside, words))
        for key, waiting in numbers.waiters.items():
            if key[2]:
                for core in waiting:
                    found[core].append(numbers.arrivals(key, core))
            elif numbers.is_near(key):
                for core in key[1]:
                    found[core].append((numbers.shared_words[key], key[0]))
        return [tuple(signature) for signature in found]

    def _is_near(self, step: Step) -> bool:
        """Whether a step is a wait of cores of one SM for each other: then those of other SMs have a step like it."""
        keys = [counter_key(need) for need in step.needs] if isinstance(step, Wait) else []
        return bool(keys) and all(self.numbers.is_near(key) and not key[2] for key in keys)

    def _runs(self) -> Iterator[tuple[int, int]]:
        first = 0
        for core in range(1, self.shape.cores + 1):
            if core == self.shape.cores or self.signatures[core] != self.signatures[first]:
                yield first, core
                first = core

    # the tasks of a core

    def tasks(self, core: int) -> list[SlotTask]:
        """The list of a core."""
        return TaskList(self.numbers, self.positions, core).run()

    def table(self) -> TaskTable:
        lists, runs = list[tuple[int, list[SlotTask]]](), list[CoreRun]()
        end = 0
        known: dict[object, int] = {}  # list -> its place; other cores may do the same
        for first, last in self._runs():
            tasks = self.tasks(first)
            content = tuple(task.content for task in tasks)
            if content not in known:
                known[content] = end
                lists.append((end, tasks))
                end += TASK_BYTES * len(tasks)
            runs.append(CoreRun(first, last, known[content], tuple(task.step for task in tasks)))
        streams = self._streams(runs, dict(lists))
        staged = list(staged_entries(self.plan))
        needs = _Pool(_rounded(HEADER_BYTES + WORD * self.shape.cores, TABLE_ALIGNMENT))
        for _, tasks in lists:
            for task in tasks:
                needs.place(_further_needs(task))
        staged_begin = needs.end
        arguments = _Pool(staged_begin + (STAGE_ENTRY_BYTES * (len(staged) + 1) if staged else 0), halved=self.copied)
        packed = b"".join(
            _packed(task, number, needs, arguments) for _, tasks in lists for number, task in enumerate(tasks)
        )
        listed = list(dict.fromkeys(streams))
        asked = b"".join(self._packed_stream(entries, arguments) for entries in listed)
        copied_inputs = self._packed_staged(staged, arguments)
        lists_begin = _rounded(arguments.end + PART_BYTES * self.shape.sms, TASK_BYTES)
        runs = [replace(run, offset=lists_begin + run.offset) for run in runs]
        parts = self._parts(runs, streams, lists_begin + len(packed))
        head = {
            HeaderWord.CORES: self.shape.cores,
            HeaderWord.SHARED_WORDS: self.numbers.shared_word_count,
            HeaderWord.STAMP_ROOM: self.numbers.stamp_room,
            HeaderWord.TABLE_BYTES: lists_begin + len(packed) + len(asked),
            HeaderWord.SEEN_WORDS: self.numbers.seen_words & 0xFFFFFFFF,
            HeaderWord.ARGUMENTS: arguments.begin,
            HeaderWord.PARTS: arguments.end,
            HeaderWord.PACE: self.numbers.pace_ns if listed else 0,
            HeaderWord.STAGED: staged_begin if staged else 0,
        }
        offsets = [run.offset for run in runs for _ in run.cores]
        words = struct.pack(f"<{len(head)}I", *(head[word] for word in HeaderWord))
        start = words.ljust(HEADER_BYTES, b"\0") + struct.pack(f"<{len(offsets)}I", *offsets)
        common = start.ljust(needs.begin, b"\0") + bytes(needs.data) + copied_inputs + bytes(arguments.data)
        of_sms = b"".join(struct.pack("<4I", *astuple(part)) for part in parts)
        data = (common + of_sms).ljust(lists_begin, b"\0") + packed + asked
        place = _rounded(arguments.begin + len(arguments.data) * SUM_BYTES // ARGUMENT_BYTES, TABLE_ALIGNMENT)
        placed = [(lists_begin + offset, tasks) for offset, tasks in lists]
        return TaskTable(data, tuple(runs), self._listing(runs, placed), parts, place)

    def _parts(self, runs: Sequence[CoreRun], streams: Sequence[StreamEntries], begin: int) -> tuple[SmPart, ...]:
        """By SM. The lists of inputs begin at `begin`."""
        found = [SmPart() for _ in range(self.shape.sms)]
        for run in runs:
            end = run.offset + TASK_BYTES * len(run.steps)
            for core in run.cores:
                sm = self.shape.sm(core)
                known = found[sm]
                first = min(known.lists, run.offset) if known.lists_end else run.offset
                found[sm] = SmPart(first, max(known.lists_end, end))
        places: dict[StreamEntries, int] = {}
        for sm, entries in enumerate(streams):
            if entries not in places:
                places[entries] = begin
                begin += _stream_bytes(entries)
            place = places[entries]
            found[sm] = replace(found[sm], inputs=place, inputs_end=place + _stream_bytes(entries))
        return tuple(found)

    def _streams(self, runs: list[CoreRun], tasks_at: Mapping[int, list[SlotTask]]) -> list[StreamEntries]:
        """By SM: what it asks for, as the tasks of its first core go; nothing where no SM asks for anything."""
        if not any(isinstance(step, steps.PrefetchWeights) for step in self.plan.steps):
            return []
        offsets = [run.offset for run in runs for _ in run.cores]
        calls = {offset: [task.section >= FIRST_BODY for task in tasks] for offset, tasks in tasks_at.items()}
        return [
            tuple(stream_of(self.plan, self.numbers.programs[sm], calls[offsets[sm]])) for sm in range(self.shape.sms)
        ]

    def _packed_stream(self, entries: StreamEntries, arguments: _Pool) -> bytes:
        sources = (struct.pack("<IIQ", 8 * self.numbers.buffer_place[entry.name], 0, 0) for entry in entries)
        packed = [entry.packed(arguments.place(source)) for entry, source in zip(entries, sources, strict=True)]
        return b"".join([*packed, LAST_ENTRY])

    def _packed_staged(self, entries: list[StageEntry], arguments: _Pool) -> bytes:
        place = self.numbers.buffer_place
        sources = (struct.pack("<IIQ", 8 * place[entry.name], 0, entry.offset) for entry in entries)
        packed = [entry.packed(arguments.place(source)) for entry, source in zip(entries, sources, strict=True)]
        return b"".join([*packed, LAST_STAGED] if packed else [])

    def _listing(self, runs: list[CoreRun], lists: list[tuple[int, list[SlotTask]]]) -> str:
        lines = [f"// task table: {len(lists)} lists for {self.shape.cores} cores on {self.shape.sms} SMs"]
        for offset, tasks in lists:
            cores = tuple(core for run in runs if run.offset == offset for core in run.cores)
            lines.append(f"// core{'s' if len(cores) > 1 else ''} {spell(cores)}:")
            for number, task in enumerate(tasks):
                lines.append(f"//   {offset + TASK_BYTES * number:>6}  {self._said(task)}")
        return "\n".join(lines) + "\n"

    def _said(self, task: SlotTask) -> str:
        inside = TaskFlag.WAITS_INSIDE in task.flags
        waits = ", ".join(f"{_PLACES[kind]} {at} x {arrivals}" for at, arrivals, kind in task.needs)
        counter, share, word = task.signal
        arrival = (
            f"; signal shared word {word}" if TaskFlag.NEAR_SIGNAL in task.flags else f"; signal counter {counter}"
        )
        if TaskFlag.CLUSTER_SIGNAL in task.flags:
            ranks = [str(rank) for rank in range(share.bit_length()) if share >> rank & 1]
            arrival = f"; signal cluster word {word} of SMs {', '.join(ranks)} of the cluster"
        if TaskFlag.SHARED_SIGNAL in task.flags:
            arrival += f" for {share or 'all'} cores of the SM"
        text = "end" if task.section == CodeSection.END else self.plan.describe(self.plan.steps[task.step])
        wait = f"wait {'inside ' if inside else ''}for {waits}; " if waits else ""
        return f"{wait}{text}{arrival if TaskFlag.SIGNALS in task.flags else ''}"


def _stream_bytes(entries: StreamEntries) -> int:
    return STREAM_ENTRY_BYTES * (len(entries) + 1)


@dataclass
class _Pool:
    """Further needs, or arguments; equal ones are stored once."""

    begin: int
    data: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict)
    halved: bool = False  # arguments that are read from a copy of sums: their offsets are those in the copy

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def place(self, content: bytes) -> int:
        """Its offset."""
        if not content:
            return 0
        if content not in self.known:
            self.known[content] = len(self.data)
            self.data += content
        inside = self.known[content]
        return self.begin + (inside * SUM_BYTES // ARGUMENT_BYTES if self.halved else inside)


def _further_needs(task: SlotTask) -> bytes:
    return b"".join(struct.pack("<3I", *need).ljust(NEED_BYTES, b"\0") for need in task.needs[1:])


def _packed(task: SlotTask, number: int, needs_pool: _Pool, arguments_pool: _Pool) -> bytes:
    counter, arrivals, _ = task.needs[0] if task.needs else (0, 0, NeedKind.FAR)
    arguments = b"".join(
        struct.pack("<IIQ", source, stride, addend & (1 << 64) - 1) for source, stride, addend in task.arguments
    )
    assert len(arguments) == ARGUMENT_BYTES * len(task.arguments)
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
        TaskWord.ARGUMENTS: arguments_pool.place(arguments),
        TaskWord.GRID_X: task.grid[0],
        TaskWord.GRID_Y: task.grid[1],
        TaskWord.NUMBER: number,
        TaskWord.MORE_NEEDS: needs_pool.place(_further_needs(task)),
        TaskWord.MORE_NEEDS_COUNT: len(task.needs[1:]),
    }
    return struct.pack(f"<{len(words)}I", *(words[word] for word in TaskWord))


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
