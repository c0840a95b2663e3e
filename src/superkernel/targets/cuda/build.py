"""targets.cuda.build: a plan -> the bodies of its sub-kernels, the text of its super kernel, the assembled binary."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import TypedDict

from ...errors import BuildError, shown
from ...model.graph import Graph
from ...model.params import Kind
from ...model.subkernel import SubKernel
from .assemble import Assembled, assemble, find_assemblers
from .basic_blocks import control_flow
from .body_variables import find_variables, identifier
from .device import DeviceDescription, runs_on
from .emit import (
    CLUSTER_VERSION,
    ENTRY,
    LEAST_VERSION,
    MOST_CONSTANT_TABLE,
    MOST_VALUES,
    TextShape,
    emit,
    table_room,
    value_room,
)
from .emit_waits import wait_lines
from .empty_bodies import empty_body, empty_name, empty_shape
from .executable import CudaExecutable
from .facts import KernelFacts, facts_of
from .machine import most_registers, next_slots, slot_threads
from .numbering import CodeOfKernel, CudaNumbering
from .plan import CudaPlan, staging_kernels, streams_inputs, waiting_kernels, written_parameters
from .provenance import find_accesses
from .ptx import Entry, Module
from .read_back import check_table
from .reader import read_ptx_file
from .resource_check import check_resources
from .rewrite import BodyShape, KernelBody, barrier_register, copies_written_memory, rewrite
from .ring_shape import ring_of
from .slot_shape import SlotShape
from .task_layout import ARGUMENT_BYTES, SLOT_ALIGNMENT, TASK_BYTES, WORD, CodeSection, TaskFlag
from .task_table import TaskTable, encode

MOST_BODIES = 32
MOST_TEXT = 400 * 1024  # bytes of bodies; the assembler's time grows with the square of it
_LISTS = 6  # different lists of tasks, in the estimate of the size of a table
_WORDS_ROOM = 1024  # words of shared memory for counters, in the same estimate
DELAYS = "SUPERKERNEL_TEST_DELAYS"  # waits and signals of kernels emitted with it are delayed, by the seed of a launch


class CodeNeeds(TypedDict):
    """What a plan needs of the text beside its bodies; see make_text."""

    waiting: frozenset[SubKernel]
    streams: bool
    clusters: bool
    staged: frozenset[SubKernel]


@dataclass(frozen=True)
class SuperKernelText:
    """The bodies of a graph, and the super kernel that holds them."""

    bodies: tuple[KernelBody, ...]
    sections: Mapping[SubKernel, int]
    shape: TextShape
    text: str


def read_module(path: Path) -> Module:
    """The module of a PTX file; a file that has not changed is read once."""
    try:
        found = path.stat()
    except OSError as reason:
        raise BuildError(f"{path}: {reason.strerror}") from reason
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Module:
    return read_ptx_file(path)


@lru_cache(maxsize=256)
def _access_sources(path: Path, changed: int, name: str, scalars: tuple[int, ...]) -> dict[int, frozenset[int] | None]:
    """By line, the parameters that an access to global memory may go through; None: any."""
    module = read_module(path)
    entry = _entry(module, name)
    found: dict[int, frozenset[int] | None] = {}
    for access in find_accesses(module, entry, control_flow(entry, module.origin), scalars).accesses:
        before = found.get(access.line, frozenset())
        found[access.line] = None if access.unknown or before is None else before | access.params
    return found


def _entry(module: Module, name: str) -> Entry:
    entry = module.entry(name)
    assert entry is not None, "facts were found, so the entry exists"
    return entry


def assemble_alone(kernel: SubKernel, device: DeviceDescription) -> Assembled:
    """The sub-kernel by itself, as its compiler wrote it."""
    module = read_module(kernel.binary.path)
    alone = replace(module, entries=(_entry(module, kernel.name),))
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


def make_text(
    graph: Graph,
    slots: int,
    device: DeviceDescription,
    table_bytes: int = 0,
    *,
    shares_table: bool = True,
    waiting: frozenset[SubKernel] | None = None,
    streams: bool = False,
    clusters: bool = False,
    staged: frozenset[SubKernel] = frozenset(),
    empty: bool = False,
) -> SuperKernelText:
    """The super kernel of a graph with so many slots per SM.

    shares_table: it works on a copy in shared memory. `waiting`: the sub-kernels that wait inside; None: all that can.
    `streams`: a warp asks for the inputs of later ops. `clusters`: SMs of a cluster signal each other. `staged`: the
    sub-kernels that take weights from the ring of their SM. `empty`: its ops do nothing.
    """
    kernels = list(dict.fromkeys(node.kernel for node in graph.nodes))
    where = f"super_kernel_scope {shown(graph.name)}: "
    ring = ring_of(kernel for kernel in kernels if kernel in staged)
    bases = {kernel: 0 if ring is None or kernel in staged else ring.nbytes for kernel in kernels}
    sizes = [bases[kernel] + _shared_bytes(kernel) for kernel in kernels]
    shared = max(-(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT for size in sizes)
    slot = SlotShape(slots, slot_threads(kernels), shared, bool(os.environ.get(DELAYS)), streams, clusters, ring)
    can_wait = frozenset(kernel for kernel in kernels if facts_of(kernel).wait_point is not None)
    waiting = can_wait if waiting is None else can_wait & waiting
    if empty:
        bodies, section_of = _empty_bodies(kernels, slot, shares_table, waiting)
    else:
        bodies, section_of = _bodies(graph, kernels, slot, shares_table, waiting, bases)
    assert all(body.shared_bytes <= shared for body in bodies)
    version = max(CLUSTER_VERSION if clusters else LEAST_VERSION, *(facts_of(kernel).version for kernel in kernels))
    count = len(graph.buffers) + len(graph.events) + 3
    if count > MOST_VALUES:
        raise BuildError(
            f"{where}{count} buffers and events; a launch takes at most {MOST_VALUES}: split the list of ops"
        )
    shape = TextShape(
        slot,
        version,
        device.architecture,
        most_registers(device, slot.block_threads),
        value_room(count),
        table_room(table_bytes),
        shares_table,
        any(collective.group.size > 1 for collective in graph.collectives),
    )
    return SuperKernelText(bodies, section_of, shape, emit(bodies, shape))


def _bodies(
    graph: Graph,
    kernels: Sequence[SubKernel],
    slot: SlotShape,
    shares_table: bool,
    waiting: frozenset[SubKernel],
    bases: Mapping[SubKernel, int],
) -> tuple[tuple[KernelBody, ...], dict[SubKernel, int]]:
    """Each distinct body once, and the section of each sub-kernel. `bases`: where its shared memory begins."""
    where = f"super_kernel_scope {shown(graph.name)}: "
    shapes = {
        kernel: replace(_body_shape(graph, kernel, slot, shares_table, kernel in waiting), shared_base=bases[kernel])
        for kernel in kernels
    }
    keys = {kernel: (facts_of(kernel).text_digest, facts_of(kernel).symbol, shapes[kernel]) for kernel in kernels}
    of_key: dict[tuple[object, ...], SubKernel] = {}
    for kernel, key in keys.items():
        of_key.setdefault(key, kernel)
    if len(of_key) > MOST_BODIES:
        raise BuildError(
            f"{where}{len(of_key)} different sub-kernels; a super kernel holds at most {MOST_BODIES}: split the list "
            "of ops, and compile each part"
        )
    ordered = sorted(of_key, key=lambda key: (of_key[key].name, str(key)))
    names = _unique([identifier(of_key[key].name) for key in ordered])
    bodies = tuple(
        _body(of_key[key], shapes[of_key[key]], name, slot) for key, name in zip(ordered, names, strict=True)
    )
    size = sum(len(line) for body in bodies for line in body.lines)
    if size > MOST_TEXT:
        raise BuildError(
            f"{where}its sub-kernels are {size // 1024} KB of PTX; a super kernel holds at most {MOST_TEXT // 1024} "
            "KB: split the list of ops, and compile each part"
        )
    section = {key: number for number, key in enumerate(ordered, len(CodeSection))}
    return bodies, {kernel: section[key] for kernel, key in keys.items()}


def _empty_bodies(
    kernels: Sequence[SubKernel], slot: SlotShape, shares_table: bool, waiting: frozenset[SubKernel]
) -> tuple[tuple[KernelBody, ...], dict[SubKernel, int]]:
    """The same with bodies that do nothing, as few as possible."""
    shapes = {
        kernel: empty_shape(
            facts_of(kernel).thread_count,
            _parameters(kernel),
            slot,
            waits=kernel in waiting,
            shares_table=shares_table,
        )
        for kernel in kernels
    }
    named = {empty_name(shape): shape for shape in shapes.values()}
    section = {name: number for number, name in enumerate(sorted(named), len(CodeSection))}
    bodies = tuple(empty_body(named[name], name, slot) for name in section)
    return bodies, {kernel: section[empty_name(shape)] for kernel, shape in shapes.items()}


def _shared_bytes(kernel: SubKernel) -> int:
    """Shared memory of a slot that runs the sub-kernel."""
    module, facts = read_module(kernel.binary.path), facts_of(kernel)
    return find_variables(_entry(module, kernel.name), module, facts.dynamic_shared, "").shared_bytes


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, unique = 2, name
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found.append(unique)
    return found


def _body_shape(graph: Graph, kernel: SubKernel, slot: SlotShape, shares_table: bool, waits: bool) -> BodyShape:
    facts = facts_of(kernel)
    written = written_parameters(graph, kernel)
    point = facts.wait_point
    x, _, _ = kernel.grid or (kernel.block_dim, 1, 1)
    return BodyShape(
        facts.threads,
        facts.dynamic_shared,
        x == kernel.block_dim,
        written,
        any(buffer.written for buffer in graph.buffers.values()),
        point.statement if point is not None and waits else None,
        facts.thread_count < slot.threads,
        _parameters(kernel),
        shares_table,
    )


def _body(kernel: SubKernel, shape: BodyShape, name: str, slot: SlotShape) -> KernelBody:
    module, facts = read_module(kernel.binary.path), facts_of(kernel)
    entry = _entry(module, kernel.name)
    scalars = tuple(index for index, param in enumerate(kernel.params) if param.kind is Kind.SCALAR)
    path = kernel.binary.path
    sources = _access_sources(path, path.stat().st_mtime_ns, kernel.name, scalars)
    threads = prod(facts.threads)
    wait: list[str] = []
    if shape.wait_statement is not None:
        wait = list(
            wait_lines(
                f"$sk_{name}_wait",
                slot,
                threads,
                TaskFlag.WAITS_INSIDE,
                "$sk_meet",
                shape.shares_table,
                barrier_register(shape.narrow),
            )
        )
        if copies_written_memory(entry, shape, sources):
            wait.append("fence.proxy.async;")
    shared = facts.static_shared + facts.dynamic_shared
    title = f"{kernel.name}: {threads} threads, {shared} bytes of shared memory"
    return rewrite(entry, module, shape, name, title, wait, sources)


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
    return CodeOfKernel(section, _parameters(kernel), number, facts.scratch, facts.wait_point is not None)


def _parameters(kernel: SubKernel) -> int:
    """Parameters that tasks give; pointers to scratch memory of no bytes are left out."""
    facts = facts_of(kernel)
    return len(kernel.params) + (len(facts.layout.scratch or ()) if facts.scratch else 0)


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


__all__ = [
    "DELAYS",
    "ENTRY",
    "assemble_alone",
    "assembled_slots",
    "build",
    "check_architecture",
    "make_text",
    "registers_alone",
    "spilled_bytes",
]
