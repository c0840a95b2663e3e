"""targets.cpu.runtime.access_tables: a plan -> what debug-check=1 compares accesses with, as in check_tables.h."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8
from dataclasses import dataclass
from typing import Any

from ....model.argument_layout import Role
from ....model.node import Node
from ....model.op import place_of
from ....model.params import Kind, Param
from ....plan import Plan
from ....plan.steps import Call
from ..numbering import Numbering

_NO_MEMORY, _READ, _WRITTEN = 0, 1, 2  # BufferUse in program.h
_STAMPS = 255


class CheckedSlot(ctypes.Structure):
    """As in check_tables.h."""

    _fields_ = (
        ("name", c_char_p), ("declared", c_char_p), ("buffer", c_int32), ("reads", c_uint8), ("writes", c_uint8),
        ("parts", c_uint8), ("early", c_uint8), ("bytes", c_int64),
    )  # fmt: skip


class CheckedStep(ctypes.Structure):
    """As in check_tables.h."""

    _fields_ = (
        ("first", c_int32), ("count", c_int32), ("blocks", c_int32), ("waits", c_uint8), ("signals", c_uint8),
        ("stamp", c_uint8),
    )  # fmt: skip


@dataclass(frozen=True)
class AccessTables:
    """Arrays that the run time reads: they must live as long as its program."""

    slots: Any
    steps: Any
    buffer_use: Any


def access_tables(plan: Plan, numbers: Numbering) -> AccessTables:
    nodes = {node.name: node for node in plan.graph.nodes}
    slots = (CheckedSlot * len(numbers.layout))()
    first: dict[str, int] = {}
    for slot, source in zip(numbers.layout, numbers.slot_sources(plan), strict=True):
        slots[slot.index] = CheckedSlot(buffer=-1)
        if slot.role is Role.PARAM:
            start = first.setdefault(slot.op, slot.index)
            slots[slot.index] = _checked_slot(nodes[slot.op], slot.index - start, source)
    steps = (CheckedStep * len(plan.steps))()
    for index, step in enumerate(plan.steps):
        if isinstance(step, Call):
            node = plan.graph.nodes[step.op]
            steps[index] = CheckedStep(
                first.get(node.name, 0),
                len(node.kernel.params),
                0 if node.dynamic else node.blocks,
                bool(node.kernel.waits_inside),
                bool(node.kernel.signals_inside),
                step.op % _STAMPS + 1,
            )
    # other ranks store into a window: a copy of it would be of no use
    uses = [
        _NO_MEMORY if b.scalar or b.window else _WRITTEN if b.written else _READ for b in plan.graph.buffers.values()
    ]
    events = [_NO_MEMORY] * (len(numbers.sources) - len(uses))
    return AccessTables(slots, steps, (c_uint8 * len(numbers.sources))(*uses, *events))


def _checked_slot(node: Node, position: int, source: int) -> CheckedSlot:
    param: Param = node.kernel.params[position]
    argument = node.op.args[position]
    if param.kind is Kind.SCALAR or isinstance(argument, int | float):
        return CheckedSlot(buffer=-1)
    return CheckedSlot(
        param.name.encode(),
        str(param).encode(),
        source,
        param.kind.reads,
        param.kind.writes,
        param.block and not place_of(argument).offset,
        param.name in node.kernel.read_before_wait,
        -1 if param.nbytes is None else param.nbytes,
    )
