"""targets.ascend.descriptor: an emitted super kernel -> the JSON that a host run time launches it by."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ...model.argument_layout import Role
from .core_types import CoreClass
from .facts import facts_of
from .kernel_description import EmittedKernel, EmittedOp
from .oplist import ORDER_EVENT
from .plan import AscendPlan


def describe(plan: AscendPlan, emitted: EmittedKernel, binary: Path | None) -> dict[str, Any]:
    """Names of CANN's own descriptors where there are such names; offsets in bytes from the parameter block's begin."""
    binary_hash = file_hash(binary.read_bytes()) if binary else file_hash(emitted.source.encode())
    fields: dict[str, Any] = {
        "kernelName": emitted.entry,
        "binFileName": emitted.name,
        "binFileSuffix": ".o",
        "blockDim": emitted.launch.blocks,
        "taskRation": emitted.launch.type.value,
        "coreType": emitted.launch.type.name,
        "workspace": _workspace(emitted),
        "sha256": binary_hash,
        "chip": plan.chip.name,
        "options": str(plan.options),
        "paramBytes": 8 * len(emitted.layout),
        "SuperkernelInfo": {"kernelList": [_op(plan, op) for op in emitted.ops]},
    }
    if emitted.profiling is not None and emitted.profiling_slot is not None and emitted.task_id_slot is not None:
        fields["profiling"] = {
            "param_offset": 8 * emitted.profiling_slot,
            "task_id_offset": 8 * emitted.task_id_slot,
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
                "notify_param_offset": 8 * prefetch.go_slot,
                "wait_param_offset": 8 * prefetch.done_slot,
                "buffers": list(prefetch.buffers),
                "bytes": prefetch.budget,
            }
            for prefetch in emitted.prefetches
        ]
    return fields


def _workspace(emitted: EmittedKernel) -> dict[str, Any]:
    if emitted.workspace_slot is None:
        return {"num": 0, "size": []}
    return {"num": 1, "size": [emitted.workspace_bytes], "param_offset": 8 * emitted.workspace_slot}


def file_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _op(plan: AscendPlan, op: EmittedOp) -> dict[str, Any]:
    node = plan.graph.nodes[op.index]
    slots = plan.slots
    dynamic = {}
    if op.dynamic:
        dynamic = {
            "tiling_key_offset": 8 * slots.slot(op.name, Role.TILING_KEY),
            "block_dim_offset": 8 * slots.slot(op.name, Role.BLOCK_COUNT),
            "lock_offset": 8 * slots.slot(op.name, Role.LOCK),
        }
    return {
        "name": op.name,
        "func_name": _function(op),
        "blockDim": op.blocks,
        "kernel_type": op.kernel_type.value,
        "op_type": node.kernel.type_name,
        "task_type": "dynamic" if op.dynamic else "normal",
        "split_mode": op.copies,
        "stream_id": op.stream,
        "send_event_list": [event for event in node.sends if not event.startswith(ORDER_EVENT)],
        "recv_event_list": [event for event in node.receives if not event.startswith(ORDER_EVENT)],
        "debugOptions": list(facts_of(node.kernel).debug_options),
        "arg_list": {
            "param_offset": 8 * op.first_slot,
            "param_count": len(node.kernel.params),
            "notify_param_offset": [8 * slot.index for slot in slots.all(op.name, Role.SEND)],
            "wait_param_offset": [8 * slot.index for slot in slots.all(op.name, Role.RECV)],
            **dynamic,
        },
    }


def _function(op: EmittedOp) -> Any:
    """One name; per class where they differ; per tiling key where it is chosen at run time."""

    def of(core_class: CoreClass) -> Any:
        variants = op.variants[core_class]
        return {str(v.key): v.functions[0] for v in variants} if op.dynamic else variants[0].functions[0]

    names = {core_class.value: of(core_class) for core_class in op.variants}
    return next(iter(names.values())) if len(names) == 1 else names
