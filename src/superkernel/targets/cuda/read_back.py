"""targets.cuda.read_back: the bytes of a task table, decoded, compared with the validated plan (P22).

Tasks become the actions of cores in order: waits, calls, signals, time stamps, events. The plan says which actions each
core must take; what the table says must be the same, and words that mean nothing must be 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import shown
from ...model.argument_layout import Role, Slot
from ...plan import steps
from ...plan.steps import Call
from .numbering import CopiesArea, CudaNumbering
from .planned_actions import Action, PlannedActions
from .read_back_staging import compare_staged
from .read_back_streams import StreamComparison
from .table_bytes import PooledRegion, TableBytes, Words
from .task_layout import (
    ARGUMENT_BYTES,
    HEADER_BYTES,
    NEED_BYTES,
    NO_FLAGS,
    PART_BYTES,
    SECTION_MASK,
    TABLE_ALIGNMENT,
    TASK_BYTES,
    WORD,
    CodeSection,
    HeaderWord,
    PartWord,
    TaskFlag,
    TaskWord,
)

_KNOWN_BITS = SECTION_MASK | sum(flag.value for flag in TaskFlag)
_WAIT_WAYS = TaskFlag.NEAR_WAIT | TaskFlag.SHARED_WAIT | TaskFlag.CLUSTER_WAIT
_SIGNAL_WAYS = TaskFlag.NEAR_SIGNAL | TaskFlag.SHARED_SIGNAL | TaskFlag.CLUSTER_SIGNAL
_SIGNAL_WORDS = {
    NO_FLAGS: {TaskWord.SIGNAL_COUNTER, TaskWord.SIGNAL_SHARE},
    TaskFlag.NEAR_SIGNAL: {TaskWord.SIGNAL_WORD},
    TaskFlag.SHARED_SIGNAL: {TaskWord.SIGNAL_COUNTER, TaskWord.SIGNAL_SHARE, TaskWord.SIGNAL_WORD},
    TaskFlag.CLUSTER_SIGNAL: {TaskWord.SIGNAL_SHARE, TaskWord.SIGNAL_WORD},
}
_OF_SECTION = {
    CodeSection.AWAIT_EVENT: "await",
    CodeSection.NOTIFY: "notify",
    CodeSection.RESET_EVENT: "reset",
    CodeSection.NOTIFY_RANKS: "notify ranks",
}
_RANK_WORDS = (TaskWord.FIRST_BLOCK, TaskWord.BLOCKS, TaskWord.WIDTH, TaskWord.ARGUMENTS, TaskWord.GRID_X)


@dataclass(frozen=True)
class DecodedCall:
    """Blocks of an op as a task says them."""

    section: int
    ranked: bool
    single: bool
    first_block: int
    blocks: int
    width: int
    grid: tuple[int, int]
    arguments: tuple[tuple[int, int, int], ...]  # source, stride, addend


def check_table(data: bytes, numbers: CudaNumbering, *, copied: bool = True) -> None:
    """Raises a BuildError at the first difference. `copied`: offsets of arguments are those in a copy of sums."""
    cores, sms = numbers.shape.cores, numbers.shape.sms
    streams = any(isinstance(step, steps.PrefetchWeights) for step in numbers.plan.steps)
    stages = any(isinstance(step, steps.StageWeights) for step in numbers.plan.steps)
    table = TableBytes(data, f"super_kernel_scope {shown(numbers.plan.graph.name)}: ")
    expected = {
        HeaderWord.CORES: cores,
        HeaderWord.SHARED_WORDS: numbers.shared_word_count,
        HeaderWord.STAMP_ROOM: numbers.stamp_room,
        HeaderWord.TABLE_BYTES: len(data),
        HeaderWord.SEEN_WORDS: numbers.seen_words & 0xFFFFFFFF,
        HeaderWord.PACE: numbers.pace_ns if streams else 0,
    }
    header = table.words(0, len(HeaderWord))
    for word, value in expected.items():
        if header[word] != value:
            table.wrong(f"{word.name} is {header[word]}, it should be {value}")
    if any(data[WORD * len(HeaderWord) : HEADER_BYTES]):
        table.wrong("the unused words of its header are not 0")
    offsets = table.words(HEADER_BYTES, cores)
    needs_begin = _rounded(HEADER_BYTES + WORD * cores, TABLE_ALIGNMENT)
    if any(data[HEADER_BYTES + WORD * cores : needs_begin]):
        table.wrong("there are bytes behind the offsets of the lists")
    lists: dict[int, list[int]] = {}
    for core, offset in enumerate(offsets):
        lists.setdefault(offset, []).append(core)
    needs = PooledRegion(needs_begin)
    arguments = PooledRegion(header[HeaderWord.ARGUMENTS], halved=copied)
    parts_end = header[HeaderWord.PARTS] + PART_BYTES * sms
    begin = lists_begin = _rounded(parts_end, TASK_BYTES)
    if any(data[parts_end:lists_begin]):
        table.wrong("there are bytes between the parts of SMs and the first list")
    decoded = []
    for offset, sharing in lists.items():
        if offset != begin:
            table.wrong(f"the list of core {sharing[0]} begins at {offset}, it should at {begin}")
        tasks = _read_list(table, offset, numbers)
        begin += TASK_BYTES * len(tasks)
        decoded.append((tasks, sharing))
    planned = PlannedActions(numbers)
    for tasks, sharing in decoded:
        _Comparison(table, numbers, planned, sharing, needs, arguments).compare(tasks)
    parts = [table.words(header[HeaderWord.PARTS] + PART_BYTES * sm, len(PartWord)) for sm in range(sms)]
    _compare_lists(table, numbers, parts, decoded, lists_begin)
    end = begin
    if streams:
        calls = {
            core: [task[TaskWord.KIND] & SECTION_MASK >= len(CodeSection) for task in tasks]
            for tasks, sharing in decoded
            for core in sharing
        }
        end = StreamComparison(table, numbers, arguments).compare(parts, end, calls)
    elif any(part[PartWord.INPUTS] or part[PartWord.INPUTS_END] for part in parts):
        table.wrong("SMs ask for inputs, and the plan asks for none")
    if end != len(data):
        table.wrong(f"{len(data) - end} bytes at its end belong to nothing")
    end = needs.end
    if stages:
        end = compare_staged(table, numbers, arguments, header[HeaderWord.STAGED], end)
    elif header[HeaderWord.STAGED]:
        table.wrong(f"inputs are staged from {header[HeaderWord.STAGED]} on, and the plan stages none")
    if end != header[HeaderWord.ARGUMENTS]:
        table.wrong(f"the arguments begin at {header[HeaderWord.ARGUMENTS]}, they should at {end}")
    if arguments.end != header[HeaderWord.PARTS]:
        table.wrong(f"the arguments end at {arguments.end}, the parts of SMs begin at {header[HeaderWord.PARTS]}")


def _compare_lists(
    table: TableBytes,
    numbers: CudaNumbering,
    parts: Sequence[Words],
    decoded: Sequence[tuple[Sequence[Words], Sequence[int]]],
    offset: int,
) -> None:
    """The part of an SM holds the lists of its cores, from the first of them to the end of the last.

    `offset`: of the first list.
    """
    ranges: dict[int, list[tuple[int, int]]] = {}
    for tasks, sharing in decoded:
        end = offset + TASK_BYTES * len(tasks)
        for core in sharing:
            ranges.setdefault(numbers.shape.sm(core), []).append((offset, end))
        offset = end
    for sm, part in enumerate(parts):
        found = ranges.get(sm, [(0, 0)])
        right = min(begin for begin, _ in found), max(end for _, end in found)
        if (part[PartWord.LISTS], part[PartWord.LISTS_END]) != right:
            table.wrong(f"the lists of SM {sm} are at {part}, they should be from {right[0]} to {right[1]}")


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _read_list(table: TableBytes, offset: int, numbers: CudaNumbering) -> list[Words]:
    tasks: list[Words] = []
    while not tasks or tasks[-1][TaskWord.KIND] & SECTION_MASK != CodeSection.END:
        words = table.words(offset + TASK_BYTES * len(tasks), len(TaskWord))
        if words[TaskWord.NUMBER] != len(tasks) or words[TaskWord.KIND] & ~_KNOWN_BITS:
            table.wrong(f"task {len(tasks)} of the list at {offset} has the words {words}")
        tasks.append(words)
    return tasks


class _Comparison:
    """One list of tasks, and the cores that share it."""

    def __init__(
        self,
        table: TableBytes,
        numbers: CudaNumbering,
        planned: PlannedActions,
        cores: Sequence[int],
        needs: PooledRegion,
        arguments: PooledRegion,
    ) -> None:
        self.needs, self.arguments = needs, arguments
        self.table, self.numbers, self.plan, self.planned, self.cores = table, numbers, numbers.plan, planned, cores
        self.layout = self.plan.layout
        self.staged = {step.op for step in self.plan.steps if isinstance(step, steps.StageWeights)}

    def compare(self, tasks: Sequence[Words]) -> None:
        core = self.cores[0]
        expected = list(self.planned.of_core(core))
        for other in self.cores[1:]:
            if list(self.planned.of_core(other)) != expected:
                self.table.wrong(f"cores {core} and {other} share a list, but not what they do")
        found = [action for task in tasks for action in self._actions(task)]
        for number, (wanted, given) in enumerate(zip(expected, found, strict=False)):
            self._compare(number, wanted, given)
        if len(expected) != len(found):
            self.table.wrong(f"core {core} takes {len(found)} actions, the plan has {len(expected)}")

    def _compare(self, number: int, wanted: Action, given: Action) -> None:
        if isinstance(wanted[-1], Call) and isinstance(given[-1], DecodedCall):
            if wanted[0] != given[0]:
                self.table.wrong(f"action {number} of core {self.cores[0]} is {given}, it should be {wanted}")
            self._compare_call(wanted[-1], given[-1])
        elif wanted != given:
            self.table.wrong(f"action {number} of core {self.cores[0]} is {given}, it should be {wanted}")

    # what the table says

    def _actions(self, task: Words) -> Iterator[Action]:
        flags, section = TaskFlag(task[TaskWord.KIND] & ~SECTION_MASK), task[TaskWord.KIND] & SECTION_MASK
        meaningful = {TaskWord.KIND, TaskWord.NUMBER}
        waits = bool(flags & (TaskFlag.WAITS | TaskFlag.WAITS_INSIDE))
        if waits:
            meaningful |= {TaskWord.WAIT_COUNTER, TaskWord.WAIT_ARRIVALS, TaskWord.MORE_NEEDS_COUNT}
            meaningful |= {TaskWord.MORE_NEEDS} if task[TaskWord.MORE_NEEDS_COUNT] else set()
        elif flags & _WAIT_WAYS:
            self.table.wrong("a task that waits for nothing says how")
        if flags & TaskFlag.WAITS:
            yield from (("wait", *need) for need in self._needs(task, flags))
        if section >= len(CodeSection):
            meaningful |= {*_RANK_WORDS, TaskWord.GRID_Y}
            yield from self._call_actions(task, flags, section)
            meaningful |= {TaskWord.STAMP} if flags & TaskFlag.RECORDS_WAIT else set()
        elif flags & (TaskFlag.WAITS_INSIDE | TaskFlag.RANKED | TaskFlag.RECORDS_WAIT | TaskFlag.SINGLE):
            self.table.wrong(f"section {section} calls nothing, but has the flags {flags!r}")
        elif section == CodeSection.STAMP:
            meaningful.add(TaskWord.STAMP)
            yield "stamp", task[TaskWord.STAMP]
        elif section in _OF_SECTION:
            meaningful.add(TaskWord.ARGUMENTS)
            yield _OF_SECTION[CodeSection(section)], self._arguments(task[TaskWord.ARGUMENTS], 1)
        elif section == CodeSection.AWAIT_RANKS:
            meaningful |= {TaskWord.ARGUMENTS, TaskWord.BLOCKS}
            yield "await ranks", task[TaskWord.BLOCKS], self._arguments(task[TaskWord.ARGUMENTS], 1)
        elif section in (CodeSection.FENCE, CodeSection.END):
            yield (CodeSection(section).name.lower(),)
        yield from self._signal_action(task, flags, meaningful)
        for word in TaskWord:
            if word not in meaningful and task[word]:
                self.table.wrong(f"{word.name} of a task is {task[word]}, and means nothing there")

    def _call_actions(self, task: Words, flags: TaskFlag, section: int) -> Iterator[Action]:
        if flags & TaskFlag.RECORDS_WAIT:
            yield "stamp", task[TaskWord.STAMP]
        if flags & TaskFlag.WAITS_INSIDE:
            yield from (("wait inside", *need) for need in self._needs(task, flags))
        if flags & TaskFlag.RECORDS_WAIT:
            yield "stamp", task[TaskWord.STAMP] + 1
        bias = task[TaskWord.FIRST_BLOCK]
        yield (
            "call",
            DecodedCall(
                section,
                bool(flags & TaskFlag.RANKED),
                bool(flags & TaskFlag.SINGLE),
                bias - (1 << 32) if bias >= 1 << 31 else bias,
                task[TaskWord.BLOCKS],
                task[TaskWord.WIDTH],
                (task[TaskWord.GRID_X], task[TaskWord.GRID_Y]),
                self._arguments(task[TaskWord.ARGUMENTS], self._parameters(section)),
            ),
        )

    def _parameters(self, section: int) -> int:
        known = [code.parameters for code in self.numbers.codes.values() if code.section == section]
        if not known:
            self.table.wrong(f"there is no section {section}")
        return known[0]

    def _signal_action(self, task: Words, flags: TaskFlag, meaningful: set[TaskWord]) -> Iterator[Action]:
        way = flags & _SIGNAL_WAYS
        whole = bool(flags & TaskFlag.WHOLE_SM)
        if not flags & TaskFlag.SIGNALS:
            if way or whole:
                self.table.wrong("a task that signals nothing says how")
            return
        if way not in _SIGNAL_WORDS:
            self.table.wrong(f"a task signals in two ways: {flags!r}")
        if whole != (way is TaskFlag.SHARED_SIGNAL and not task[TaskWord.SIGNAL_SHARE]):
            self.table.wrong(f"a task signals for {task[TaskWord.SIGNAL_SHARE]} cores, with the flags {flags!r}")
        meaningful |= _SIGNAL_WORDS[way]
        words = task[TaskWord.SIGNAL_COUNTER], task[TaskWord.SIGNAL_SHARE], task[TaskWord.SIGNAL_WORD]
        yield "signal", way, *words

    def _needs(self, task: Words, flags: TaskFlag) -> Iterator[tuple[int, int, int]]:
        kinds = {0: 0, TaskFlag.NEAR_WAIT.value: 1, TaskFlag.SHARED_WAIT.value: 2, TaskFlag.CLUSTER_WAIT.value: 3}
        how = (flags & _WAIT_WAYS).value
        if how not in kinds:
            self.table.wrong(f"a task waits in two ways: {flags!r}")
        yield task[TaskWord.WAIT_COUNTER], task[TaskWord.WAIT_ARRIVALS], kinds[how]
        count = task[TaskWord.MORE_NEEDS_COUNT]
        if count:
            content = self.table.pooled(self.needs, task[TaskWord.MORE_NEEDS], NEED_BYTES * count)
            for counter, arrivals, other, unused in struct.iter_unpack("<4I", content):
                if unused:
                    self.table.wrong(f"a need has an unused word {unused}")
                yield counter, arrivals, other

    def _arguments(self, offset: int, count: int) -> tuple[tuple[int, int, int], ...]:
        if not count:
            if offset:
                self.table.wrong(f"a task without arguments has them at {offset}")
            return ()
        content = self.table.pooled(self.arguments, offset, ARGUMENT_BYTES * count)
        return tuple(struct.iter_unpack("<IIQ", content))

    def _compare_call(self, step: Call, given: DecodedCall) -> None:
        width = len(step.cores) // step.copies
        place = {core: number % width for number, core in enumerate(step.cores)}
        for core in self.cores:
            first = given.first_block + (core if given.ranked else 0)
            if first != place[core] or given.ranked != (step.copies == 1):
                self.table.wrong(
                    f"core {core} begins {self.plan.describe(step)} at {first}, it should at {place[core]}"
                )
        node = self.plan.graph.nodes[step.op]
        x, y, _ = node.kernel.grid or (node.blocks, 1, 1)
        right = (self.numbers.codes[node.kernel].section, step.blocks, width, (x, y))
        said = given.section, given.blocks, given.width, given.grid
        if said != right or given.single != (step.blocks <= width):
            self.table.wrong(f"{self.plan.describe(step)} is {said}, it should be {right}")
        self._compare_arguments(step, given)

    def _compare_arguments(self, step: Call, given: DecodedCall) -> None:
        node = self.plan.graph.nodes[step.op]
        slots = [slot for slot in self.layout.of_op.get(node.name, ()) if slot.role is Role.PARAM]
        for index, (source, stride, addend) in enumerate(given.arguments):
            slot = slots[index] if index < len(slots) else None
            area = self.numbers.scratch.get(step.op) if slot is None else self.numbers.copies.get(slot.source or "")
            for core in self.cores if area is not None else self.cores[:1]:
                right = self._scratch(step.op, index, core) if slot is None else self._value(slot, core)
                if self._says_staged(step, index):
                    right = 8 * self.numbers.zero_place, 1
                offset = (addend + stride * self.numbers.shape.sm(core)) % (1 << 64)
                if (source, offset) != right or stride != self._stride(area, core, right):
                    self.table.wrong(f"argument {index} of op {node.name!r} on core {core} is not {right}")

    def _says_staged(self, step: Call, index: int) -> bool:
        """Whether a parameter tells a sub-kernel that its weights lie in the ring."""
        kernel = self.plan.graph.nodes[step.op].kernel
        if step.op not in self.staged or kernel.staged_input is None or index >= len(kernel.params):
            return False
        return kernel.params[index].name == kernel.staged_input.flag

    def _stride(self, area: CopiesArea | None, core: int, right: tuple[int, int]) -> int:
        """How far the copies of neighbouring SMs are apart; 0: all cores of the list use the same memory."""
        numbers = self.numbers
        if area is None or area.op not in numbers.copy_of or right[0] // 8 < numbers.copies_place:
            return 0
        return area.stride

    def _value(self, slot: Slot, core: int) -> tuple[int, int]:
        """The place of a value and what is added to it."""
        numbers = self.numbers
        if slot.source is None:
            return 8 * numbers.zero_place, slot.literal
        area = numbers.copies.get(slot.source)
        copy = 0 if area is None else numbers.copy_of[area.op].get(core, 0)
        if area is None or copy == 0:
            return 8 * numbers.buffer_place[slot.source], slot.addend
        return 8 * numbers.copies_place, area.offset + (copy - 1) * area.stride + slot.addend

    def _scratch(self, op: int, index: int, core: int) -> tuple[int, int]:
        numbers = self.numbers
        code, area = numbers.codes[self.plan.graph.nodes[op].kernel], numbers.scratch.get(op)
        if index != code.scratch_parameter or area is None:
            return 8 * numbers.zero_place, 0
        return 8 * numbers.scratch_place, area.offset + numbers.copy_of.get(op, {}).get(core, 0) * area.stride
