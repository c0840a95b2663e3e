"""targets.cuda.emulator.launch: a built super kernel and buffers -> emulated launches of it, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superkernel.cache import Cache
from superkernel.errors import LaunchError, UnsupportedError
from superkernel.model.plain_values import whole_number
from superkernel.plan.spans import Span, StepTime, spans_of
from superkernel.plan.steps import Mark, OpStep, Record, SpanKind, spell
from superkernel.targets.buffers import bind, bytes_at
from superkernel.targets.emulation.turns import launch_seed
from superkernel.targets.protocol import LaunchInputs

from ..executable import CudaExecutable
from ..facts import Atomics, facts_of
from ..task_layout import COUNTER_BYTES, TASK_BYTES, StateOffset
from .alone import decoded
from .buffer_images import BufferImages
from .emulated_memory import EmulatedMemory, MemoryRange
from .execution import GpuLaunch, SlotLayout, execute
from .library import EmulatorLibrary, TaskRecord, load_emulator
from .program import DecodedProgram
from .schedule import WarpSchedule
from .unfused import launch_unfused

MOST_LAUNCHES = 1000
_TABLE, _TASK_REGISTER = "sk_tasks", "%sk_task"  # of the emitted text
_STATE, _COPIES, _SCRATCH, _STAMPS = "the sync state", "the copies", "the scratch memory", "the time stamps"


@dataclass(frozen=True)
class GpuEmulation:
    """What emulated launches did."""

    outputs: dict[str, Any]  # that were allocated, by name
    spans: tuple[Span, ...]  # what the kernel recorded of itself; without profiling=1, what the emulator saw
    notes: tuple[str, ...] = ()


def emulate(
    executable: CudaExecutable,
    buffers: Mapping[str, Any],
    launch_inputs: LaunchInputs,
    *,
    seed: int = 0,
    launches: int = 1,
    races: bool = True,
    schedule: WarpSchedule | None = None,
    stand_ins: bool | None = None,
    record: bool = True,
) -> GpuEmulation:
    """The seed decides in which order warps get on and when copies arrive; a `schedule` says so in detail.

    `launches`: so many in a row with the same buffers, each on the sync state that the one before left. `races`:
    accesses that nothing orders are errors even if the values come out right. `record`: keep the spans of the cores.
    """
    where = f"super_kernel_scope {executable.plan.graph.name!r}: "
    if not 0 <= seed < 2**64:
        raise LaunchError(f"{where}seed is {seed}; a whole number from 0 is needed")
    if (count := whole_number(launches)) is None or not 1 <= count <= MOST_LAUNCHES:
        raise LaunchError(f"{where}launches is {launches!r}; a whole number from 1 to {MOST_LAUNCHES} is needed")
    if any(collective.group.size > 1 for collective in executable.plan.graph.collectives):
        raise LaunchError(
            f"{where}it waits for other ranks of {executable.plan.graph.collectives[0].group}; emulate all of them "
            "together: sk.emulate_ranks([kernel of each rank], [buffers of each rank])"
        )
    if stand_ins:
        raise UnsupportedError(
            f"{where}stand_ins: the emulator of the cuda target runs the sub-kernels themselves, on the buffers that "
            "k.emulate(buffers, seed=...) is given"
        )
    emulation = SuperKernelEmulator(executable, seed, schedule, races, count).run(buffers, launch_inputs)
    return emulation if record else replace(emulation, spans=())


@dataclass
class SuperKernelEmulator:
    """Launches of one super kernel in a row, on the sync state that the one before left."""

    executable: CudaExecutable
    seed: int
    schedule: WarpSchedule | None
    races: bool
    launches: int

    def __post_init__(self) -> None:
        self._first: BufferImages | None = None
        self._plan, self._graph = self.executable.plan, self.executable.plan.graph
        self._where = f"super_kernel_scope {self._graph.name!r}: emulated with seed={self.seed}: "
        self.library: EmulatorLibrary = load_emulator(Cache())
        self.program = decoded(self.executable.ptx, f"{self._graph.name}.ptx", self.executable.entry)

    def run(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> GpuEmulation:
        self.start(buffers, launch_inputs)
        for number in range(self.launches):
            launch = self.prepare(number)
            self.finish(number, execute(self.library, self.program, self.memory, launch))
        return self.emulation()

    def start(
        self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, windows: Mapping[str, MemoryRange] | None = None
    ) -> None:
        """Lay out memory. `windows`: buffers that other devices see as well."""
        windows = windows or {}
        self._bound = bind(self._graph, buffers)
        self._images = BufferImages.of(self._graph, self._bound, buffers, self.seed, windows)
        if self._plan.options.debug_check:
            launch_unfused(self._graph, self._plan.layout, self._images.copies(), self.seed, check=True)
        self.memory = EmulatedMemory()
        self.memory.add_variables(self.program.variables)
        self._values = self._lay_out(self.memory, self._images, launch_inputs, windows)
        for name, content in self.executable.symbols.items():
            place = self.memory.ranges.get(f"variable {name}")
            if place is not None:
                place.content[: len(content)] = np.frombuffer(content, np.uint8)
        self._given, self._first = self._images.copies(), None
        self._records: list[TaskRecord] = []

    def prepare(self, number: int) -> GpuLaunch:
        """Launch 0, 1, ..., with the same buffers as the first."""
        if number:
            self._images.take(self._given)
        return self._gpu_launch(self.memory, self._values, number)

    def finish(self, number: int, records: list[TaskRecord]) -> None:
        """What a launch left must be what the first one left, and what the next one needs."""
        self._records = records
        self._check_state(self.memory.ranges[_STATE], number)
        self._first = self._first or self._images.copies()
        name = self._images.difference(self._graph, self._first)
        if name and not self._adds_floats():
            raise LaunchError(
                f"{self._where}launch {number + 1} with the same buffers leaves other bytes in {name!r} than the first"
            )

    def emulation(self) -> GpuEmulation:
        self._images.give_back(self._graph, self._bound)
        return GpuEmulation(self._bound.outputs, self._spans(self.memory, self._records))

    def _adds_floats(self) -> bool:
        """Whether an op updates floats atomically: their sum depends on the order of the blocks."""
        return any(facts_of(node.kernel).atomics is Atomics.FLOAT for node in self._graph.nodes)

    # memory

    def _lay_out(
        self,
        memory: EmulatedMemory,
        images: BufferImages,
        launch_inputs: LaunchInputs,
        windows: Mapping[str, MemoryRange],
    ) -> list[int]:
        """The ranges of a launch, and its values."""
        executable = self.executable
        values = []
        for buffer in self._graph.buffers.values():
            if buffer.scalar:
                values.append(images.scalars[buffer.name])
                continue
            if buffer.name in windows:
                place = memory.ranges[f"buffer {buffer.name!r}"] = windows[buffer.name]
                values.append(place.address)
                continue
            content = images.contents[buffer.name]
            place = memory.add(f"buffer {buffer.name!r}", content, tracked=buffer.written, writable=buffer.written)
            values.append(place.address)
        for event in self._graph.events:
            word = bytes_at(launch_inputs.events[event.label].address, 8)  # of the host itself
            values.append(memory.add(f"event {event.label}", word, outside=True).address)
        random = np.random.default_rng(self.seed)
        for name, nbytes in ((_COPIES, executable.copies_bytes), (_SCRATCH, executable.scratch_bytes)):
            values.append(memory.add(name, random.integers(0, 256, max(nbytes, 1), np.uint8)).address)
        values += [0] * (executable.value_room - len(values))
        state = memory.add(_STATE, np.zeros(executable.state_bytes, np.uint8))
        if executable.stamp_room:
            room = 8 * executable.stamp_room * executable.shape.cores
            stamps = memory.add(_STAMPS, np.zeros(room, np.uint8))
            state.content[StateOffset.STAMPS : StateOffset.STAMPS + 8].view(np.uint64)[0] = stamps.address
        return values

    # one launch

    def _gpu_launch(self, memory: EmulatedMemory, values: list[int], number: int) -> GpuLaunch:
        executable, seed = self.executable, launch_seed(self.seed, number)
        state = memory.ranges[_STATE]
        where = self._where + (f"launch {number + 1}: " if self.launches > 1 else "")
        program = self.program
        slots = SlotLayout(
            executable.shape.cores,
            executable.slots,
            executable.threads,
            program.static_shared,
            executable.slot_shape.shared_bytes,
            state.address + StateOffset.PROGRESS,
            _TASK_REGISTER,
            self._tasks(program, memory),
            0 if executable.slot_shape.ring is None else executable.slot_shape.ring.nbytes,
            tuple(executable.numbers.staged_flags),
        )
        params = state.address.to_bytes(8, "little") + np.array(values, np.uint64).tobytes()
        return GpuLaunch(
            (executable.sms, 1, 1),
            (executable.slot_shape.block_threads, 1, 1),
            executable.shared_bytes,
            executable.sms,
            params,
            {name: content for name, content in executable.symbols.items() if name in program.constants},
            seed,
            self.schedule or WarpSchedule.of_seed(seed),
            self.races,
            where,
            self._plan.op_names,
            slots,
            tuple(self._labels(state)),
            self._plan.options.debug_watchdog or 0.0,
            executable.shape.cluster,
        )

    def _step_ops(self) -> list[int]:
        """The op of each step of the plan; -1: none."""
        return [
            step.op if isinstance(step, OpStep | Record) and step.op is not None else -1 for step in self._plan.steps
        ]

    def _tasks(self, program: DecodedProgram, memory: EmulatedMemory) -> dict[tuple[int, int], int]:
        """SM and address of each task -> its op."""
        executable, ops = self.executable, self._step_ops()
        table = memory.ranges.get(f"variable {_TABLE}")
        first = program.constants[_TABLE][0] if table is None else table.address
        found: dict[tuple[int, int], int] = {}
        for run in executable.table.runs:
            for core in run.cores:
                sm = executable.shape.sm(core)
                at = first + run.offset
                if executable.shares_table:
                    copy = program.static_shared + executable.shared_table_offset
                    at = copy + executable.table.place_in_copy(run.offset, sm)
                found |= {(sm, at + TASK_BYTES * place): ops[step] for place, step in enumerate(run.steps)}
        return found

    def _labels(self, state: MemoryRange) -> Iterator[tuple[int, int, str]]:
        """What the words of the sync state are, for reports."""
        names = self._plan.op_names
        for (mark, cores, _), offset in self.executable.numbers.counters.items():
            what = mark.text(names) if isinstance(mark, Mark) else f"the barrier of step {mark}"
            begin = state.address + offset
            text = f"the counter of '{what}' on cores {spell(cores)} ({len(cores)} arrivals a launch)"
            yield begin, begin + COUNTER_BYTES, text
        yield state.address, state.address + 4, "the epoch"
        yield (
            state.address + StateOffset.FINISHED,
            state.address + StateOffset.FINISHED + 4,
            "the count of finished cores",
        )

    def _check_state(self, state: MemoryRange, number: int) -> None:
        """The words of the sync state after a launch: a second launch must find what the first one found."""
        words = state.content.view(np.uint32)
        expected = number + 1
        problems = []
        if (epoch := int(words[StateOffset.EPOCH // 4])) != expected:
            problems.append(f"the epoch is {epoch}, not {expected}")
        if words[StateOffset.FAILURE // 4]:
            problems.append(f"core {int(words[StateOffset.FAILURE // 4]) - 1} reports a failure")
        begun = words[StateOffset.PROGRESS // 4 :][: self.executable.shape.cores]
        problems += [f"core {core} still says that it runs a task" for core in np.flatnonzero(begun)[:1]]
        names = self._plan.op_names
        for (mark, cores, _), offset in self.executable.numbers.counters.items():
            found, wanted = int(words[offset // 4]), expected * len(cores) % 2**32
            if found != wanted:
                what = mark.text(names) if isinstance(mark, Mark) else f"the barrier of step {mark}"
                problems.append(f"the counter of '{what}' on cores {spell(cores)} is {found}, not {wanted}")
        if problems:
            text = "; ".join(problems[:3])
            raise LaunchError(f"{self._where}after launch {number + 1} {text}: the next launch would go wrong")

    # what it did

    def _spans(self, memory: EmulatedMemory, records: list[TaskRecord]) -> tuple[Span, ...]:
        executable = self.executable
        if executable.stamp_room:
            stamps = memory.ranges[_STAMPS].content.view(np.uint64).reshape(-1, executable.stamp_room)
            times = [
                StepTime(core, step, float(stamps[core, place]))
                for core, steps in enumerate(executable.stamp_steps)
                for place, step in enumerate(steps)
            ]
            return spans_of(self._plan, times)
        return tuple(self._seen_spans(records))

    def _seen_spans(self, records: list[TaskRecord]) -> Iterator[Span]:
        """From the words in which cores say which task they run."""
        ops, names = self._step_ops(), self._plan.op_names
        task_ops = [[ops[step] for step in steps] for steps in self.executable.task_steps]
        begun: dict[int, tuple[int, float]] = {}
        for record in records:
            core, now = record.core, float(record.time)
            if core in begun:
                task, since = begun.pop(core)
                op = task_ops[core][task - 1] if task <= len(task_ops[core]) else -1
                if op >= 0:
                    yield Span(core, SpanKind.OP, names[op], since, now)
            if record.task:
                begun[core] = record.task, now
