"""targets.cuda.resource_check: what the assembler says of a super kernel -> a BuildError that names the op to blame."""

from __future__ import annotations

from ...errors import BuildError, shown
from ...model.graph import Graph
from .assemble import Assembled
from .device import DeviceDescription
from .emit import TextShape
from .facts import facts_of
from .slot_shape import WARP, SlotShape


def check_resources(found: Assembled, shape: TextShape, graph: Graph, device: DeviceDescription) -> None:
    where, resources, slots = f"super_kernel_scope {shown(graph.name)}: ", found.resources, shape.slots
    if resources.serialized_wgmma:
        raise BuildError(f"{where}the assembler serialises wgmma (C7510), which is slow", [found.command])
    if resources.spilled_bytes:
        heaviest = max(graph.nodes, key=lambda node: facts_of(node.kernel).registers or 0)
        raise BuildError(
            f"{where}with {slots.slots} slot{'s' if slots.slots > 1 else ''} of {slots.threads} threads on an SM a "
            f"thread has {shape.most_registers} registers, and the super kernel spills {resources.spilled_bytes} "
            f"bytes; op {heaviest.name!r} needs {facts_of(heaviest.kernel).registers} registers alone. "
            f"{_remedies(slots, device)}",
            [found.command],
        )


def _remedies(slots: SlotShape, device: DeviceDescription) -> str:
    """What leaves a thread more registers."""
    remedies = []
    if slots.slots > 1:
        remedies.append(f"compile it with at most cores={(slots.slots - 1) * device.sms}")
    if slots.streams:
        remedies.append(f"leave prefetch-weights out, which takes {WARP} threads of every SM")
    text = ", or ".join((*remedies, "compile that op by itself"))
    return text[0].upper() + text[1:]
