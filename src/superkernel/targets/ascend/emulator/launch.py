"""targets.ascend.emulator.launch: an emitted kernel, its shared objects and buffers -> one emulated launch."""

from __future__ import annotations

import ctypes
import math
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.model.graph import Graph
from superkernel.model.options import PreloadCode
from superkernel.model.params import Kind
from superkernel.model.tiling import chosen_tiling
from superkernel.plan.spans import Span
from superkernel.targets.buffers import Bound, bind, bytes_at
from superkernel.targets.emulation.turns import launch_seed
from superkernel.targets.protocol import LaunchInputs

from ..core_types import CoreClass, KernelType
from ..kernel_areas import printed_text, profiled_spans
from ..kernel_description import EmittedKernel, TilingWords
from .arena import DUMP, PROFILING, SYNC_AREA, Arena, buffer_region, lay_out
from .between_launches import BetweenLaunches
from .delays import Delays, delays_of
from .expectations import TYPES, describe, functions_text
from .library import ACTS, CHIP_FIELDS, DELAY_FIELDS, EmulatorSettings, TraceRecord, load_library
from .modules import HostModule, told_names
from .trace import NS_PER_TICK, TracedStep, check_profiled, spans_of_steps, steps_of

STALL_LIMIT = 5_000_000  # steps in which no core finishes an op, changes memory or passes a flag
_MOST_LINES = {CoreClass.CUBE: 8, CoreClass.VECTOR: 7}  # of code, in one request, as the documents say
_LINES = (64, 128, 256, 512)  # bytes of a cache line
_ASKED, _ANSWERED = 2, 1  # in the lock word of a dynamic op


@dataclass(frozen=True)
class Outside:
    """An agent outside the kernel that sets event `sets`, once event `after` is signalled; None: at any time."""

    sets: str
    after: str | None = None
    delay: int | None = None  # in steps of the emulator; None: the seed says


@dataclass(frozen=True)
class Emulation:
    """What an emulated launch did."""

    outputs: dict[str, Any]  # that were allocated, by name
    steps: tuple[TracedStep, ...]
    preloads: tuple[str, ...]  # names of the functions that PRELOAD steps number
    profiled: tuple[Span, ...]  # what the kernel wrote itself, with profiling=1
    printed: str
    words: dict[str, int]  # slot name -> the word it points to, after the launch
    addresses: dict[int, str]  # address of such a word -> slot name
    notes: tuple[str, ...] = ()  # for the user, such as what stood in for sub-kernels

    @property
    def spans(self) -> tuple[Span, ...]:
        """What the kernel recorded of itself; without profiling=1, what the emulator saw."""
        return self.profiled or spans_of_steps(self.steps)


@dataclass(frozen=True)
class _Agent:
    """`act` is told its number. `answers`: what it writes is ordered after the request that it answers."""

    name: str
    trigger: int
    value: int
    delay: int
    act: Callable[[int], None]
    answers: bool = False


class _StoppedError(Exception):
    """What an agent did is an error, which the emulated chip knows."""


@dataclass
class ChipEmulator:
    """One launch: set up, run, read back."""

    emitted: EmittedKernel
    graph: Graph
    modules: Mapping[CoreClass, HostModule]
    cache: Cache
    seed: int
    delays: Delays | None
    outside: Sequence[Outside]
    races: bool
    record: bool
    words_apart: int | None = None  # bytes between the words of events and tilings; by default a cache line
    launches: int = 1  # in a row, each on the memory and flags that the one before left

    def __post_init__(self) -> None:
        self._calls = load_library(self.cache).calls
        self._where = f"super_kernel_scope {self.emitted.name!r}: "
        self._number = 0  # of the launch under way
        self._random = random.Random(self.seed)
        self._failure: BaseException | None = None
        self._notes: list[str] = []  # what was strange before something failed

    def run(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> Emulation:
        """What the last launch did."""
        if self.launches > 1 and (label := self._set_by_host(launch_inputs)):
            raise LaunchError(
                f"{self._where}launches={self.launches}: the host sets event {label} for one launch; pass an agent: "
                f"outside=[Outside({label!r})]"
            )
        bound = self._bind(buffers)
        arena = lay_out(
            self.emitted, self.graph, bound, buffers, self.seed, self._areas(bound), words_apart=self.words_apart
        )
        between = BetweenLaunches(self.emitted, self.graph, arena) if self.launches > 1 else None
        machines: list[int] = []
        try:
            for number in range(self.launches):
                self._number = number
                if between is not None and number:
                    between.prepare_next(arena)
                machines.append(self._calls.sk_emu_new(ctypes.byref(self._settings(arena))))
                emulation = self._launch(machines, arena, bound, launch_inputs)
                if between is not None and (difference := between.difference(arena)):
                    raise LaunchError(f"{self._where}emulated with seed={self.seed}: {difference}")
        finally:
            for machine in machines:
                self._calls.sk_emu_free(machine)
        self._give_back(arena, bound)
        return emulation

    def _set_by_host(self, launch_inputs: LaunchInputs) -> str | None:
        """An event that the kernel waits for and that no agent sets."""
        agents = {agent.sets for agent in self.outside}
        awaited = (event.label for event in self.emitted.events if not event.sent)
        return next((label for label in awaited if label not in agents and label in launch_inputs.events), None)

    def _launch(self, machines: Sequence[int], arena: Arena, bound: Bound, launch_inputs: LaunchInputs) -> Emulation:
        """One launch on the last machine, which finds the flags of the one before as that left them."""
        machine = machines[-1]
        self._describe(machine, arena)
        if len(machines) > 1:
            self._calls.sk_emu_follow(machine, machines[-2])
        agents = self._agents(machine, arena, bound, launch_inputs)
        self._run(machine, agents)
        return self._outcome(machine, arena, bound)

    def _bind(self, buffers: Mapping[str, Any]) -> Bound:
        return bind(self.graph, buffers)

    def _areas(self, bound: Bound) -> Mapping[str, int]:
        """Memory of sub-kernels beside their buffers: names and bytes."""
        return {}

    def _settings(self, arena: Arena) -> EmulatorSettings:
        launch, chip = self.emitted.launch, self.emitted.chip
        seed = launch_seed(self.seed, self._number)
        delays = self.delays or delays_of(seed)
        if chip.cache_line not in _LINES:
            raise LaunchError(
                f"{self._where}chip {chip.name} has cache lines of {chip.cache_line} bytes; "
                f"the emulator knows {', '.join(map(str, _LINES))}"
            )
        lines = chip.preload_bytes // chip.preload_line
        return EmulatorSettings(
            seed=seed,
            para_base=arena.parameters,
            sync_base=arena.regions[SYNC_AREA].address,
            stall_limit=STALL_LIMIT,
            watchdog_s=self.emitted.watchdog_s or math.inf,
            patience_s=self.emitted.watchdog_s or math.inf,
            watchdog_exits=self.emitted.watchdog_exits,
            cubes=launch.cubes,
            vectors=launch.vectors,
            vectors_per_block=max(launch.type.vectors, 1),
            launch_type=TYPES[KernelType(launch.type.macro)],
            preload_lines_cube=min(lines, _MOST_LINES[CoreClass.CUBE]),
            preload_lines_vector=min(lines, _MOST_LINES[CoreClass.VECTOR]),
            preload_entry=self.emitted.preload_code is PreloadCode.MAX,
            order=delays.turn.value,
            races=self.races,
            record=self.record,
            followed=self._number + 1 < self.launches,
            **{name: getattr(chip, name) for name in CHIP_FIELDS},
            **{name: getattr(delays, name) for name in DELAY_FIELDS},
        )

    def _describe(self, machine: int, arena: Arena) -> None:
        for region in arena.regions.values():
            name = region.name.encode()
            self._calls.sk_emu_region(machine, region.address, region.bytes, name, region.words)
        describe(self._calls, machine, self.emitted, self.graph, arena.words)
        if dump := self.emitted.dump:
            address = arena.regions[DUMP].address + dump.offset - self.emitted.feed_bytes
            self._calls.sk_emu_dump_area(machine, address, dump.bytes_per_core)
        for core_class, module in self.modules.items():
            told = (module.address(name) for name in told_names(core_class))
            self._calls.sk_emu_told(machine, list(CoreClass).index(core_class), *told)
            self._calls.sk_emu_functions(machine, module.address("sk_functions"), module.function_count)

    # agents outside that touch memory

    def _agents(self, machine: int, arena: Arena, bound: Bound, launch_inputs: LaunchInputs) -> list[_Agent]:
        words = {event.label: arena.words[event.slot] for event in self.emitted.events}
        agents = [self._setter(machine, words, agent) for agent in self.outside]
        agents += [self._tiler(machine, arena, bound, launch_inputs, slots) for slots in self.emitted.tilings]
        for prefetch in self.emitted.prefetches:
            go = arena.words[prefetch.go_slot]
            act = self._writer(machine, {go: 0})
            agents.append(_Agent(f"the copy engine for op {prefetch.op!r}", go, 1, self._delay(None), act))
        for agent in agents:
            told = (agent.trigger, agent.value, agent.delay, agent.answers)
            self._calls.sk_emu_agent(machine, agent.name.encode(), *told)
        set_here = {agent.sets for agent in self.outside}
        for event in self.emitted.events:
            if event.label not in set_here and event.label in launch_inputs.events:
                host = launch_inputs.events[event.label].address
                self._calls.sk_emu_link(machine, words[event.label], host, event.sent)
        return agents

    def _setter(self, machine: int, words: Mapping[str, int], agent: Outside) -> _Agent:
        for label in filter(None, (agent.sets, agent.after)):
            if label not in words:
                raise LaunchError(f"{self._where}no op uses the external event {label}")
        trigger = words[agent.after] if agent.after else 0
        act = self._writer(machine, {words[agent.sets]: 1})
        return _Agent(f"the agent that sets event {agent.sets}", trigger, 1, self._delay(agent.delay), act)

    def _tiler(
        self, machine: int, arena: Arena, bound: Bound, launch_inputs: LaunchInputs, slots: TilingWords
    ) -> _Agent:
        node = next(node for node in self.graph.nodes if node.name == slots.op)
        function = launch_inputs.tilings.get(slots.op)
        if function is None:
            raise LaunchError(f"{self._where}op {slots.op!r} is dynamic: pass tiling={{{slots.op!r}: function}}")
        arrays = dict(zip(self.graph.buffers, bound.keep, strict=True))

        def act(number: int) -> None:
            read = [str(name) for param, name in node.arguments() if param.kind in (Kind.IN, Kind.INOUT)]
            for region in (arena.regions[buffer_region(name)] for name in read):
                if not self._calls.sk_emu_agent_reads(machine, number, region.address, region.bytes):
                    raise _StoppedError
            inputs = {name: _as_passed(arena, name, arrays[name]) for name in read}
            key, blocks = chosen_tiling(function(inputs), slots.op)
            if not 0 <= blocks <= node.blocks:
                raise LaunchError(
                    f"{self._where}the tiling function of op {slots.op!r} wants {blocks} blocks; "
                    f"it may have 0 to {node.blocks}"
                )
            keys = [known for known, _ in node.kernel.tiling_variants]
            if key not in keys:  # the cores will trap; the report then says why
                known_keys = ", ".join(map(str, keys))
                self._notes.append(f"op {slots.op!r} was given the unknown tiling key {key}; its keys are {known_keys}")
            functions = functions_text(self.emitted.ops[node.index], key)
            self._calls.sk_emu_decided(machine, node.index, blocks, functions)
            values = {slots.key_slot: key % 2**64, slots.blocks_slot: blocks, slots.lock_slot: _ANSWERED}
            self._writer(machine, {arena.words[slot]: value for slot, value in values.items()})(number)

        name = f"the control agent of op {slots.op!r}"
        return _Agent(name, arena.words[slots.lock_slot], _ASKED, self._delay(None), act, answers=True)

    def _writer(self, machine: int, values: Mapping[int, int]) -> Callable[[int], None]:
        def act(number: int) -> None:
            for address, value in values.items():
                if not self._calls.sk_emu_agent_writes(machine, number, address, value):
                    raise _StoppedError

        return act

    def _delay(self, given: int | None) -> int:
        if given is not None:
            return given
        return self._random.choice((0, 20, 1000)) * self._random.randrange(1, 8) if self.seed else 0

    # running

    def _run(self, machine: int, agents: Sequence[_Agent]) -> None:
        pressed: list[int] = []  # signals of Ctrl-C
        callback = self._enter(machine, agents, pressed)
        with ctrl_c(pressed):
            failed = self._calls.sk_emu_run(machine)
        del callback
        if pressed:
            raise KeyboardInterrupt
        if self._failure is not None:
            raise self._failure
        if failed:
            text = self._calls.sk_emu_error(machine).decode("utf-8", "replace")
            notes = "".join(f"\n{note}" for note in self._notes)
            number = f"launch {self._number + 1}: " if self.launches > 1 else ""
            raise LaunchError(f"{self._where}emulated with seed={self.seed}: {number}{text}{notes}")

    def _enter(self, machine: int, agents: Sequence[_Agent], pressed: Sequence[int]) -> object:
        """The last step before a launch; what is returned must exist until the launch is over."""

        def acts(index: int) -> int:
            if index < 0:
                return len(pressed)
            try:
                agents[index].act(index)
            except _StoppedError:
                return 1
            except BaseException as failure:  # what the user's function raises goes to the caller of the launch
                self._failure = failure
                return 1
            return 0

        entries = [
            self.modules[core_class].address(self.emitted.entry) if core_class in self.emitted.launch.classes else None
            for core_class in CoreClass
        ]
        callback = ACTS(acts)
        self._calls.sk_emu_enter(machine, *entries, callback)
        return callback

    def _outcome(self, machine: int, arena: Arena, bound: Bound) -> Emulation:
        count = ctypes.c_uint64()
        address = self._calls.sk_emu_records(machine, ctypes.byref(count))
        raw = (TraceRecord * count.value).from_address(address) if count.value else (TraceRecord * 0)()
        steps = steps_of(raw, [op.name for op in self.emitted.ops])
        numbers = {step.detail for step in steps if step.what.name == "PRELOAD"}
        names = [self._calls.sk_emu_function_name(machine, n).decode() for n in range(max(numbers, default=-1) + 1)]
        slots = self.emitted.layout.slots
        profiled = profiled_spans(self.emitted, arena.view(PROFILING), NS_PER_TICK) if self.emitted.profiling else ()
        if self.emitted.profiling and self.record:
            notified = {arena.words[event.slot] for event in self.emitted.events if event.sent}
            check_profiled(self.emitted, profiled, steps, notified)
        return Emulation(
            bound.outputs,
            steps,
            tuple(names),
            profiled,
            self._printed(arena),
            {slots[slot].name: arena.word(slot) for slot in arena.words},
            {address: slots[slot].name for slot, address in arena.words.items()},
        )

    def _printed(self, arena: Arena) -> str:
        dump = self.emitted.dump
        if dump is None:
            return ""
        first = dump.offset - self.emitted.feed_bytes
        size = dump.bytes_per_core * (self.emitted.launch.cubes + self.emitted.launch.vectors)
        return printed_text(self.emitted, arena.view(DUMP)[first : first + size])

    def _give_back(self, arena: Arena, bound: Bound) -> None:
        """Only what ops write goes back: what was passed to be read is left alone."""
        for buffer, address, size in zip(self.graph.buffers.values(), bound.values, bound.sizes, strict=True):
            if buffer.written and not buffer.scalar and not buffer.window and size:
                bytes_at(address, size)[:] = arena.view(buffer_region(buffer.name))[:size]


@contextmanager
def ctrl_c(pressed: list[int]) -> Iterator[None]:
    """Inside, Ctrl-C is noted: an exception could not pass through the cores' stacks. Other threads never see it."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _as_passed(arena: Arena, name: str, like: Any) -> Any:
    """A copy of a buffer's present contents, as an array or tensor of the kind that was passed."""
    copy = like.clone() if hasattr(like, "clone") else np.array(like)
    address = copy.data_ptr() if hasattr(copy, "data_ptr") else copy.ctypes.data
    bytes_at(address, copy.nbytes)[:] = arena.view(buffer_region(name))[: copy.nbytes]
    return copy
