"""targets.cuda.emulator.execution: a decoded program, memory and a launch shape -> one launch on the emulated GPU."""

from __future__ import annotations

import ctypes
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import LaunchError
from ..ptx import ThreadCount
from .emulated_memory import EmulatedMemory
from .library import EmulatorLibrary, LaunchSettings, TaskRecord
from .program import NONE, DecodedProgram
from .schedule import WarpSchedule

STALL_LIMIT = 50_000_000  # steps of all warps in which none writes memory, passes a barrier or ends
_SLICE = 2_000_000  # steps between two looks at signals
_LINE = re.compile(r"\(line (\d+)\)")
_MOST_LINES = 4
ENDED, RUNS, FAILED, WAITS_FOR_HOST, BLOCKED = range(5)  # as Machine::run returns
_HOST_POLL_S = 0.001


@dataclass(frozen=True)
class SlotLayout:
    """How the threads of a block are divided among slots, and what each slot has of shared memory."""

    cores: int
    count: int  # slots of an SM
    threads: int  # of one slot
    first_area: int  # bytes of shared memory before the slots' areas
    area_bytes: int  # of one slot; 0: not checked
    progress: int  # the address of the words in which cores say which task they run
    task_register: str  # the register that holds the address of the task
    tasks: Mapping[tuple[int, int], int]  # SM and address of a task -> its op; -1: none
    ring_bytes: int = 0  # at the beginning of the only area, for staged weights
    staged: Sequence[int] = ()  # ops that take them


@dataclass(frozen=True)
class GpuLaunch:
    grid: ThreadCount
    threads: ThreadCount
    dynamic_shared: int
    resident: int  # blocks at the same time
    params: bytes
    constants: Mapping[str, bytes]  # of .const variables, in the place of their initial values
    seed: int
    schedule: WarpSchedule
    races: bool
    where: str  # the begin of error messages
    op_names: Sequence[str] = ()
    slots: SlotLayout | None = None
    labels: Sequence[tuple[int, int, str]] = ()  # first address, last address + 1, name
    patience_s: float = 0.0  # how long to wait for words that the host sets; 0: for ever
    cluster: int = 1  # blocks of a cluster


def execute(
    library: EmulatorLibrary, program: DecodedProgram, memory: EmulatedMemory, launch: GpuLaunch
) -> list[TaskRecord]:
    """Run all blocks to their end; a LaunchError says what went wrong."""
    calls = library.calls
    machine = new_machine(calls, program, launch)
    try:
        describe(calls, machine, program, memory, launch)
        state, deadline = RUNS, 0.0
        while state in (RUNS, WAITS_FOR_HOST):  # Python handles signals in between
            state = calls.sk_ptx_run(machine, _SLICE)
            if state == WAITS_FOR_HOST:
                deadline = deadline or time.monotonic() + (launch.patience_s or math.inf)
                if time.monotonic() > deadline:
                    raise LaunchError(f"{launch.where}waits for an event that the host has not set")
                time.sleep(_HOST_POLL_S)
        if state == FAILED:
            text = calls.sk_ptx_error(machine).decode("utf-8", "replace")
            raise LaunchError(f"{launch.where}{text}{quoted(program, text)}")
        return task_records(calls, machine)
    finally:
        calls.sk_ptx_free(machine)


def new_machine(calls: ctypes.CDLL, program: DecodedProgram, launch: GpuLaunch) -> int:
    """A device for one launch, which knows nothing yet but its shape."""
    machine: int = calls.sk_ptx_new(ctypes.byref(_settings(program, launch)))
    return machine


def task_records(calls: ctypes.CDLL, machine: int) -> list[TaskRecord]:
    """Which task each core began when."""
    count = ctypes.c_uint64()
    address = calls.sk_ptx_records(machine, ctypes.byref(count))
    records = (TaskRecord * count.value).from_address(address) if count.value else ()
    return [TaskRecord(record.time, record.core, record.task) for record in records]


def _settings(program: DecodedProgram, launch: GpuLaunch) -> LaunchSettings:
    slots = launch.slots
    return LaunchSettings(
        seed=launch.seed,
        stall_limit=STALL_LIMIT,
        progress=slots.progress if slots else 0,
        grid=launch.grid,
        threads=launch.threads,
        resident=launch.resident,
        cores=slots.cores if slots else 0,
        task_register=program.registers[slots.task_register] if slots else NONE,
        slot_threads=slots.threads if slots else 0,
        shared_bytes=program.static_shared + launch.dynamic_shared,
        dynamic_shared=launch.dynamic_shared,
        local_bytes=program.local_bytes,
        slots=slots.count if slots else 0,
        slot_areas=slots.first_area if slots else 0,
        slot_bytes=slots.area_bytes if slots else 0,
        order=launch.schedule.turn.value,
        quantum=launch.schedule.quantum,
        races=launch.races,
        late_copies=launch.schedule.late_copies,
        apart=launch.schedule.lanes_apart,
        cluster=launch.cluster,
        ring_bytes=slots.ring_bytes if slots else 0,
    )


def describe(
    calls: ctypes.CDLL, machine: int, program: DecodedProgram, memory: EmulatedMemory, launch: GpuLaunch
) -> None:
    """Program, memory and names of a launch."""
    encoded, targets = program.encoded, program.targets
    calls.sk_ptx_program(machine, encoded.ctypes.data, encoded.size, targets.ctypes.data, targets.size)
    image, specials = program.image, program.specials
    calls.sk_ptx_registers(machine, image.ctypes.data, image.size, specials.ctypes.data, specials.size)
    bank = bytearray(program.constant_bank)
    for name, content in launch.constants.items():
        offset, nbytes = program.constants[name]
        if len(content) > nbytes:
            raise LaunchError(f"{launch.where}{len(content)} bytes for {name}, which has {nbytes}")
        bank[offset : offset + len(content)] = content
    calls.sk_ptx_banks(machine, bytes(bank), len(bank), launch.params, len(launch.params))
    for place in memory.ranges.values():
        flags = place.tracked, place.readable, place.writable, place.outside, place.late, place.part, place.shared
        room, at = place.content.size, place.content.ctypes.data
        calls.sk_ptx_range(machine, place.address, room, at, place.name.encode(), *flags)
    for first, last, name in launch.labels:
        calls.sk_ptx_label(machine, first, last, name.encode())
    names = (ctypes.c_char_p * len(launch.op_names))(*(name.encode() for name in launch.op_names))
    calls.sk_ptx_ops(machine, names, len(names))
    if launch.slots is not None:
        tasks = launch.slots.tasks
        places, ops = np.array(list(tasks), np.uint64).reshape(-1), np.array(list(tasks.values()), np.int32)
        calls.sk_ptx_tasks(machine, places.ctypes.data, ops.ctypes.data, len(tasks))
        staged = np.array(launch.slots.staged, np.uint32)
        calls.sk_ptx_staged(machine, staged.ctypes.data, len(staged))


def quoted(program: DecodedProgram, text: str) -> str:
    """The lines of PTX that a report names."""
    lines = program.text_lines
    numbers = [int(number) for number in dict.fromkeys(_LINE.findall(text))]
    quoted = [f"\n  line {n}: {lines[n - 1].strip()}" for n in numbers[:_MOST_LINES] if 0 < n <= len(lines)]
    return "".join(quoted)
