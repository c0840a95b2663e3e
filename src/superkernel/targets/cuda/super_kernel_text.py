"""targets.cuda.super_kernel_text: a graph, slots per SM -> the bodies of its sub-kernels, and the PTX around them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path

from ...errors import BuildError, shown
from ...model.graph import Graph
from ...model.params import Kind
from ...model.subkernel import SubKernel
from .basic_blocks import control_flow
from .body_variables import find_variables, identifier
from .device import DeviceDescription
from .emit import CLUSTER_VERSION, LEAST_VERSION, MOST_VALUES, TextShape, emit, table_room, value_room
from .emit_waits import wait_lines
from .empty_bodies import empty_body, empty_name, empty_shape
from .facts import facts_of
from .machine import most_registers, slot_threads
from .plan import written_parameters
from .provenance import find_accesses
from .ptx import Entry, Module
from .reader import read_ptx_file
from .rewrite import BodyShape, KernelBody, barrier_register, copies_written_memory, rewrite
from .ring_shape import ring_of
from .slot_shape import SlotShape
from .task_layout import SLOT_ALIGNMENT, CodeSection, TaskFlag

MOST_BODIES = 32
MOST_TEXT = 400 * 1024  # bytes of bodies; the assembler's time grows with the square of it
DELAYS = "SUPERKERNEL_TEST_DELAYS"  # waits and signals of kernels emitted with it are delayed, by the seed of a launch


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
    entry = entry_of(module, name)
    found: dict[int, frozenset[int] | None] = {}
    for access in find_accesses(module, entry, control_flow(entry, module.origin), scalars).accesses:
        before = found.get(access.line, frozenset())
        found[access.line] = None if access.unknown or before is None else before | access.params
    return found


def entry_of(module: Module, name: str) -> Entry:
    entry = module.entry(name)
    assert entry is not None, "facts were found, so the entry exists"
    return entry


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
            task_parameters(kernel),
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
    return find_variables(entry_of(module, kernel.name), module, facts.dynamic_shared, "").shared_bytes


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
        task_parameters(kernel),
        shares_table,
    )


def _body(kernel: SubKernel, shape: BodyShape, name: str, slot: SlotShape) -> KernelBody:
    module, facts = read_module(kernel.binary.path), facts_of(kernel)
    entry = entry_of(module, kernel.name)
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


def task_parameters(kernel: SubKernel) -> int:
    """Parameters that tasks give; pointers to scratch memory of no bytes are left out."""
    facts = facts_of(kernel)
    return len(kernel.params) + (len(facts.layout.scratch or ()) if facts.scratch else 0)
