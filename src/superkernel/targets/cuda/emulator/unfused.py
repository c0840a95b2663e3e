"""targets.cuda.emulator.unfused: the ops of a graph -> each launched alone, its PTX as its compiler wrote it.

A super kernel must give the same bits. With checks, what a sub-kernel touches is compared with what it declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.model.argument_layout import Layout, Role, Slot
from superkernel.model.graph import Graph
from superkernel.model.node import Node
from superkernel.plan import Plan
from superkernel.targets.buffers import bind

from ..facts import KernelFacts, facts_of
from ..wait_point import WaitKind
from .alone import decoded, resident_blocks
from .buffer_images import BufferImages
from .emulated_memory import EmulatedMemory, MemoryRange
from .execution import GpuLaunch, execute
from .library import load_emulator
from .program import DecodedProgram
from .schedule import WarpSchedule


def launch_unfused(graph: Graph, layout: Layout, images: BufferImages, seed: int, *, check: bool = False) -> None:
    """Run every op of the graph alone, in order, on the images."""
    for index in graph.order:
        launch_op(graph.nodes[index], layout, images, seed, graph.name, check)


def emulate_unfused(plan: Plan, buffers: Mapping[str, Any], seed: int = 0, *, check: bool = False) -> dict[str, Any]:
    """What k.emulate must give: the ops of a plan launched one by one; returns the outputs that were allocated."""
    bound = bind(plan.graph, buffers)
    images = BufferImages.of(plan.graph, bound, buffers, seed)
    launch_unfused(plan.graph, plan.layout, images, seed, check=check)
    images.give_back(plan.graph, bound)
    return bound.outputs


def launch_op(node: Node, layout: Layout, images: BufferImages, seed: int, scope: str, check: bool) -> None:
    """Run one op alone. `check`: it may write only what it declares, and touch only the parts that @block names."""
    kernel, facts = node.kernel, facts_of(node.kernel)
    path = kernel.binary.path
    try:
        text = path.read_text()
    except OSError as reason:
        raise LaunchError(
            f"super_kernel_scope {scope!r}: op {node.name!r} cannot run alone: the PTX of its sub-kernel is gone "
            f"({reason}); compile the super kernel again"
        ) from reason
    program = decoded(text, str(path), facts.symbol)
    slots = [slot for slot in layout.slots if slot.op == node.name and slot.role is Role.PARAM]
    memory = EmulatedMemory()
    memory.add_variables(program.variables)
    ranges = _ranges(node, images, memory, check)
    scratch = 0
    if facts.scratch:
        scratch = memory.add("the scratch memory", np.zeros(facts.scratch * node.blocks, np.uint8)).address
    values = [_value(slot, ranges, images) for slot in slots]
    grid = kernel.grid or (kernel.block_dim, 1, 1)
    launch = GpuLaunch(
        grid,
        facts.threads,
        facts.dynamic_shared,
        resident_blocks(facts.threads, prod(grid) if kernel.sync_all else None),
        _parameters(program, facts, values, scratch),
        {},
        seed,
        WarpSchedule.of_seed(seed),
        True,
        f"super_kernel_scope {scope!r}: alone, emulated with seed={seed}: ",
        (node.name,),
    )
    execute(load_emulator(Cache()), program, memory, launch)


def _ranges(node: Node, images: BufferImages, memory: EmulatedMemory, check: bool) -> dict[str, MemoryRange]:
    """The buffers of the op; one that several parameters name may be touched as any of them says."""
    found: dict[str, MemoryRange] = {}
    for _, name in node.arguments():
        if name in found:
            continue
        params = [param for param, other in node.arguments() if other == name]
        content = images.contents[name]
        writable = not check or any(param.kind.writes for param in params)
        in_parts = check and len(params) == 1 and params[0].block and content.size % node.blocks == 0
        part = content.size // node.blocks if in_parts else 0
        spelt = ", ".join(f"{param.kind.value}:{param.name}" for param in params)
        late = check and _waits_itself(node) and not any(param.name in _early_names(node) for param in params)
        title = f"buffer {name!r} (parameter {spelt})"
        found[name] = memory.add(title, content, tracked=True, writable=writable, late=late, part=part)
    return found


def _waits_itself(node: Node) -> bool:
    point = facts_of(node.kernel).wait_point
    return bool(node.kernel.waits_inside) and point is not None and point.kind is WaitKind.GRIDDEPCONTROL


def _early_names(node: Node) -> tuple[str, ...]:
    """The parameters that the kernel may touch before it waits."""
    early = node.kernel.early_start_of(0)
    return early if isinstance(early, tuple) else ()


def _value(slot: Slot, ranges: dict[str, MemoryRange], images: BufferImages) -> int:
    if slot.source is None:
        return slot.literal
    if slot.source in images.scalars:
        return images.scalars[slot.source]
    return ranges[slot.source].address + slot.addend


def _parameters(program: DecodedProgram, facts: KernelFacts, values: list[int], scratch: int) -> bytes:
    """The parameters of the entry: those of the user, and the scratch pointers that Triton adds."""
    block = bytearray(program.param_bytes)
    layout = facts.layout
    for place, (offset, size) in enumerate(zip(layout.offsets, layout.sizes, strict=True)):
        if place < len(values):
            value = values[place]
        else:
            value = scratch if layout.scratch is not None and place == layout.scratch[0] else 0
        block[offset : offset + size] = (value % 2**64).to_bytes(8, "little")[:size]
    return bytes(block)
