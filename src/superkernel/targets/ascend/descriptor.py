"""targets.ascend.descriptor: an emitted super kernel -> the JSON that a host run time launches it by.

Fields and groups are those of CANN's descriptors; `param_offset` and the like are numbers of slots, not bytes. Our own
fields say what a run time must know beyond that: `chip`, `options`, `slots`, `profiling`, `dump`, `prefetchList`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...model.argument_layout import Role
from .argument_layout import RECEIVES, SENDS, listed_events
from .core_types import CoreClass
from .facts import facts_of
from .kernel_description import EmittedKernel, EmittedOp
from .plan import AscendPlan
from .toolkit import DescriptorForm

_ONE_GROUP = "aicore"
_PARAMETER_BYTES = 8  # of the one parameter that an entry has, the address of its parameter block


def describe(plan: AscendPlan, emitted: EmittedKernel, binary: Path | None) -> dict[str, Any]:
    binary_hash = file_hash(binary.read_bytes()) if binary else file_hash(emitted.source.encode())
    toolkit = plan.chip.toolkit
    fields: dict[str, Any] = {
        "kernelName": emitted.entry,
        "binFileName": emitted.name,
        "binFileSuffix": ".o",
        _block_field(plan): emitted.launch.blocks,
        "taskRation": emitted.launch.type.value,
        "coreType": "MIX",
        "intercoreSync": 1,
        "magic": toolkit.magic,
        "opParaSize": _PARAMETER_BYTES,
        "parameters": [],
        "optionalInputMode": toolkit.optional_mode,
        "optionalOutputMode": toolkit.optional_mode,
        "supportSuperKernel": 1,
        "workspace": _workspace(emitted),
        "sha256": binary_hash,
        "chip": plan.chip.name,
        "options": str(plan.options),
        "slots": len(emitted.layout),
        "SuperkernelInfo": {"kernelList": _groups(plan, emitted.ops)},
    }
    if emitted.profiling is not None and emitted.profiling_slot is not None and emitted.task_id_slot is not None:
        fields["profiling"] = {
            "param_offset": emitted.profiling_slot,
            "task_id_offset": emitted.task_id_slot,
            "bytes_per_core": emitted.profiling.bytes_per_core,
            "header_bytes": emitted.profiling.header_bytes,
            "marks": [[mark.what, mark.op, "begin" if mark.begin else "end"] for mark in emitted.profiling.marks],
        }
    debug = sorted({option for node in plan.graph.nodes for option in facts_of(node.kernel).debug_options})
    if debug:
        fields["debugOptions"] = ",".join(debug)
    if emitted.dump is not None:
        fields["debugBufSize"] = emitted.dump.bytes
        fields["dump"] = {"workspace_offset": emitted.dump.offset, "bytes_per_core": emitted.dump.bytes_per_core}
    if emitted.prefetches:
        fields["prefetchList"] = [
            {
                "op": prefetch.op,
                "notify_param_offset": prefetch.go_slot,
                "buffers": list(prefetch.buffers),
                "bytes": prefetch.budget,
            }
            for prefetch in emitted.prefetches
        ]
    return fields


def file_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _block_field(plan: AscendPlan) -> str:
    return "blockDim" if plan.chip.toolkit.descriptor_form is DescriptorForm.AICORE else "blockNum"


def _workspace(emitted: EmittedKernel) -> dict[str, Any]:
    if emitted.workspace_slot is None:
        return {"num": 0, "size": []}
    return {"num": 1, "size": [emitted.workspace_bytes], "param_offset": emitted.workspace_slot}


def _groups(plan: AscendPlan, ops: Sequence[EmittedOp]) -> dict[str, list[dict[str, Any]]]:
    """One group of all ops; in the newer form a group per architecture where the classes have lanes of their own."""
    if plan.chip.toolkit.descriptor_form is DescriptorForm.AICORE or not plan.order.lanes:
        return {_ONE_GROUP: [_op(plan, op) for op in ops]}
    return {
        plan.chip.architecture_of(core_class): [_op(plan, op) for op in ops if core_class in op.variants]
        for core_class in plan.launch.classes
    }


def _op(plan: AscendPlan, op: EmittedOp) -> dict[str, Any]:
    node = plan.graph.nodes[op.index]
    slots = plan.slots
    dynamic = {}
    if op.dynamic:
        dynamic = {
            "tiling_key_offset": slots.slot(op.name, Role.TILING_KEY),
            "block_dim_offset": slots.slot(op.name, Role.BLOCK_COUNT),
            "lock_offset": slots.slot(op.name, Role.LOCK),
        }
    return {
        "name": op.name,
        "func_name": _function(op),
        _block_field(plan): op.blocks,
        "kernel_type": op.kernel_type.value,
        "op_type": node.kernel.type_name,
        "task_type": "dynamic" if op.dynamic else "normal",
        "split_mode": op.copies,
        "stream_id": op.stream,
        "send_event_list": _event_ids(node.sends),
        "recv_event_list": _event_ids(node.receives),
        "debugOptions": list(facts_of(node.kernel).debug_options),
        "arg_list": {
            "param_offset": op.first_slot,
            "param_count": len(node.kernel.params),
            "notify_param_offset": slots.of_events(op.name, SENDS),
            "wait_param_offset": slots.of_events(op.name, RECEIVES),
            **dynamic,
        },
    }


def _event_ids(events: Sequence[str]) -> list[int | str]:
    """Numbers as numbers: the label of an event is the text of its id."""
    return [int(event) if event.isascii() and event.isdecimal() else event for event in listed_events(events)]


def unsigned_key(key: int) -> str:
    """A tiling key as metadata write it: cores compare 64 bits with a sign, CANN's tools write them without."""
    return str(key % 2**64)


def _function(op: EmittedOp) -> Any:
    """One name; per class where they differ; per tiling key where it is chosen at run time."""

    def of(core_class: CoreClass) -> Any:
        variants = op.variants[core_class]
        return {unsigned_key(v.key): v.functions[0] for v in variants} if op.dynamic else variants[0].functions[0]

    names = {core_class.value: of(core_class) for core_class in op.variants}
    return next(iter(names.values())) if len(names) == 1 else names
