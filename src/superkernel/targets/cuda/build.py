"""targets.cuda.build: a plan -> the text of its super kernel, its task table, the assembled binary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

from ...errors import BuildError, shown
from ...model.subkernel import SubKernel
from .assemble import Assembled, assemble, find_assemblers
from .device import DeviceDescription, runs_on
from .emit import MOST_CONSTANT_TABLE, table_room
from .executable import CudaExecutable
from .facts import KernelFacts, facts_of
from .machine import next_slots, slot_threads
from .numbering import CodeOfKernel, CudaNumbering
from .plan import CudaPlan, staging_kernels, streams_inputs, waiting_kernels
from .read_back import check_table
from .resource_check import check_resources
from .super_kernel_text import SuperKernelText, entry_of, make_text, read_module, task_parameters
from .task_layout import ARGUMENT_BYTES, TASK_BYTES, WORD
from .task_table import TaskTable, encode

_LISTS = 6  # different lists of tasks, in the estimate of the size of a table
_WORDS_ROOM = 1024  # words of shared memory for counters, in the same estimate


class CodeNeeds(TypedDict):
    """What a plan needs of the text beside its bodies; see make_text."""

    waiting: frozenset[SubKernel]
    streams: bool
    clusters: bool
    staged: frozenset[SubKernel]


def assemble_alone(kernel: SubKernel, device: DeviceDescription) -> Assembled:
    """The sub-kernel by itself, as its compiler wrote it."""
    module = read_module(kernel.binary.path)
    alone = replace(module, entries=(entry_of(module, kernel.name),))
    return assemble(str(alone), module.version, device.architecture)


def registers_alone(kernel: SubKernel, device: DeviceDescription) -> int | None:
    """Of a thread of the sub-kernel by itself; None: there is no assembler."""
    return assemble_alone(kernel, device).resources.registers if find_assemblers() else None


def check_architecture(kernel: SubKernel, facts: KernelFacts, device: DeviceDescription) -> None:
    if not runs_on(facts.target, device):
        raise BuildError(
            f"sub-kernel {shown(kernel.name)}: {kernel.binary.path} was compiled for {facts.target}, and {device.name} "
            f"is {device.architecture}; compile it for {device.architecture}, or choose another chip="
        )


def assemble_text(made: SuperKernelText, flags: Sequence[str] = ()) -> Assembled:
    return assemble(made.text, made.shape.version, made.shape.target, flags)


@dataclass(frozen=True)
class _LinkedPlan:
    """The text and the task table of a plan."""

    made: SuperKernelText
    numbers: CudaNumbering
    table: TaskTable
    shares_table: bool


def _link(plan: CudaPlan, device: DeviceDescription, empty: bool) -> _LinkedPlan:
    graph = plan.graph
    where = f"super_kernel_scope {shown(graph.name)}: "
    make = partial(make_text, graph, plan.shape.slots, device, **_code_needs(plan), empty=empty)
    made = make()
    slot = made.shape.slots
    room = (device.shared_bytes - slot.total_shared(0)) // WORD
    if room < 0:
        raise BuildError(
            f"{where}{slot.total_shared(0)} bytes of shared memory for {slot.slots} slots; {device.name} has "
            f"{device.shared_bytes}: use fewer cores"
        )
    numbers = CudaNumbering(plan, plan.shape, {k: _code(k, s) for k, s in made.sections.items()}, room, plan.pace_ns)
    table = encode(numbers)
    shares = slot.shared_with_table(numbers.shared_word_count, table.copy_bytes) <= device.shared_bytes
    table = table if shares else encode(numbers, copied=False)
    if table_room(len(table.data)) > made.shape.table_room or not shares:
        made = make(len(table.data), shares_table=shares)
    return _LinkedPlan(made, numbers, table, shares)


def build(plan: CudaPlan, device: DeviceDescription, *, empty: bool = False) -> CudaExecutable:
    """The text, the task table and, where there is an assembler, the binary of a plan. `empty`: its ops do nothing."""
    linked = _link(plan, device, empty)
    made, numbers, table, shares = linked.made, linked.numbers, linked.table, linked.shares_table
    check_table(table.data, numbers, copied=shares)
    assembled = None
    if find_assemblers():
        assembled = assemble_text(made, plan.options.compile_options)
        check_resources(assembled, made.shape, plan.graph, device)
    return CudaExecutable(
        plan,
        made.text,
        numbers,
        table,
        made.shape.slots,
        made.shape.value_room,
        None if assembled is None else assembled.cubin,
        None if assembled is None else assembled.resources,
        () if assembled is None else (assembled.command,),
        device.architecture,
        shares,
    )


def spilled_bytes(plan: CudaPlan, device: DeviceDescription) -> int:
    """Of the super kernel that would be built; 0 where there is no assembler."""
    if not find_assemblers():
        return 0
    return assemble_text(_link(plan, device, empty=False).made, plan.options.compile_options).resources.spilled_bytes


def _code_needs(plan: CudaPlan) -> CodeNeeds:
    return CodeNeeds(
        waiting=waiting_kernels(plan),
        streams=streams_inputs(plan),
        clusters=plan.shape.cluster > 1,
        staged=staging_kernels(plan),
    )


def _code(kernel: SubKernel, section: int) -> CodeOfKernel:
    facts = facts_of(kernel)
    scratch = facts.layout.scratch
    number = None if scratch is None else scratch[0]
    return CodeOfKernel(section, task_parameters(kernel), number, facts.scratch, facts.wait_point is not None)


def assembled_slots(plan_of: Callable[[int], CudaPlan], slots: int, device: DeviceDescription) -> tuple[int, str]:
    """The largest number of slots, up to `slots`, with which the assembled kernel does not spill; and the reason.

    `plan_of` plans for so many slots on every SM.
    """
    tried = []
    while True:
        plan = plan_of(slots)
        graph, options, used = plan.graph, plan.options, plan.shape.slots
        kernels = [node.kernel for node in graph.nodes]
        threads = slot_threads(kernels)
        texts = _possible_texts(plan, device)
        text = f"{slots} slot{'s' if slots > 1 else ''} on each of {device.sms} SMs"
        if not find_assemblers():
            return slots, text
        resources = max(
            (assemble_text(made, options.compile_options).resources for made in texts),
            key=lambda found: (found.spilled_bytes, found.registers),
        )
        if not resources.spilled_bytes or slots == 1:
            break
        tried.append(f"{used} slots would spill {resources.spilled_bytes} bytes")
        slots = max(1, next_slots(min(slots, used), threads, len(set(kernels))))
    return slots, "; ".join((f"{text}, {resources.registers} registers a thread", *tried))


def _possible_texts(plan: CudaPlan, device: DeviceDescription) -> list[SuperKernelText]:
    """The texts of which one will be built: the size of the task table decides whether shared memory holds a copy, and
    whether it lies in constant or in global memory otherwise."""
    graph, slots = plan.graph, plan.shape.slots
    needs = _code_needs(plan)
    shared = make_text(graph, slots, device, **needs)
    kernels = [node.kernel for node in graph.nodes]
    most = sum(_LISTS * (TASK_BYTES + ARGUMENT_BYTES * len(kernel.params)) for kernel in kernels)
    if shared.shape.slots.shared_with_table(_WORDS_ROOM, most) <= device.shared_bytes:
        return [shared]
    sizes = (0,) if most < MOST_CONSTANT_TABLE else (0, most)
    apart = (make_text(graph, slots, device, size, shares_table=False, **needs) for size in sizes)
    return [shared, *apart]
