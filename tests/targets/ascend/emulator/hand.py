"""Kernels emitted by hand: entry texts around a few ops, so that the emulator is tested without the emitter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from superkernel.model.argument_layout import Layout, Role, Slot, make_layout
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.subkernel import SubKernel
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass, KernelType, LaunchType
from superkernel.targets.ascend.emulator import Emulation, emulate
from superkernel.targets.ascend.kernel_description import EmittedKernel, EmittedOp, Variant
from superkernel.targets.ascend.launch_shape import LaunchShape
from superkernel.targets.protocol import LaunchInputs

KERNELS = Path(__file__).with_name("kernels.cpp")
PART = 32
DEFINES: Mapping[CoreClass, tuple[str, ...]] = {
    CUBE: ("-D__DAV_C220_CUBE__",),
    VECTOR: ("-D__DAV_C220_VEC__",),
}

HEAD = """
#include "kernel_operator.h"
#include <cstdint>
#if defined(__DAV_C220_CUBE__)
constexpr bool is_cube = true;
#else
constexpr bool is_cube = false;
#endif
static uint64_t slot(int n) { return ((uint64_t*)get_para_base())[n]; }
static uint64_t vector_index() { return get_block_idx() * get_subblockdim() + get_subblockid(); }
static void arrive(int flag) {
    pipe_barrier(PIPE_ALL);
    ffts_cross_core_sync(is_cube ? PIPE_FIX : PIPE_MTE3, 1 | flag << 8);
}
static void inside(int flag) { ffts_cross_core_sync(is_cube ? PIPE_FIX : PIPE_MTE3, 1 | 2 << 4 | flag << 8); }
static void clean_all() { dcci((uint64_t*)0, ENTIRE_DATA_CACHE, CACHELINE_OUT); }
"""


@dataclass(frozen=True)
class HandOp:
    """An op of a kernel written by hand."""

    kernel: str
    args: tuple[str | int, ...]
    kind: KernelType
    blocks: int
    functions: tuple[str, ...] = ()


def params(op: HandOp) -> list[str]:
    size = op.blocks * PART
    return [
        f"scalar:n{i}:int64" if isinstance(arg, int) else f"inout:p{i}:int32[{size}]" for i, arg in enumerate(op.args)
    ]


def emitted_by_hand(body: str, ops: Sequence[HandOp], launch: LaunchShape) -> tuple[EmittedKernel, Any]:
    """The kernel and its graph; `body` is what stands between the braces of the entry. Compiled once per test run."""
    return _emitted(body, tuple(ops), launch)


@cache
def _emitted(body: str, ops: tuple[HandOp, ...], launch: LaunchShape) -> tuple[EmittedKernel, Any]:
    name = "hand"
    kernels = [SubKernel.from_source(KERNELS, op.kernel, block_dim=op.blocks, params=params(op)) for op in ops]
    graph = build_graph(
        [Op(k, list(op.args), name=f"op{i}") for i, (k, op) in enumerate(zip(kernels, ops, strict=True))]
    )
    given = make_layout(graph)
    first = Slot(0, "sync", "", Role.PARAM, None, None)
    layout = Layout((first, *(replace(slot, index=slot.index + 1) for slot in given)))
    emitted_ops = []
    for index, (kernel, op) in enumerate(zip(kernels, ops, strict=True)):
        functions = op.functions or (op.kernel,)
        classes = op.kind.op_class.classes
        emitted_ops.append(
            EmittedOp(
                index,
                f"op{index}",
                kernel,
                op.kind,
                op.blocks,
                0,
                False,
                next((slot.index for slot in layout if slot.op == f"op{index}"), len(layout)),
                {one: (Variant(0, functions),) for one in classes},
                {one: {0: op.kernel} for one in classes},
                len(functions),
            )
        )
    declared = "\n".join(
        f'extern "C" void {f}(uint64_t);'
        for f in dict.fromkeys(f for op in ops for f in (op.functions or (op.kernel,)))
    )
    source = f'{HEAD}{declared}\nextern "C" __global__ __aicore__ void auto_gen_{name}_kernel() {{\n'
    source += f"    KERNEL_TASK_TYPE_DEFAULT({launch.type.macro});\n    set_ffts_base_addr(slot(0));\n{body}\n"
    source += "    pipe_barrier(PIPE_ALL);\n}\n"
    emitted = EmittedKernel(
        name,
        f"auto_gen_{name}_kernel",
        source,
        find_chip(None),
        launch,
        layout,
        tuple(emitted_ops),
        defines=DEFINES,
        watchdog_s=2.0,
    )
    return emitted, graph


def run(emitted: EmittedKernel, graph: Any, buffers: Mapping[str, Any], seed: int = 0, **more: Any) -> Emulation:
    return emulate(emitted, graph, buffers, LaunchInputs({}, {}), seed=seed, **more)


def vector_launch(blocks: int) -> LaunchShape:
    return LaunchShape(LaunchType.MIX_AIV_1_0, blocks)


def mixed_launch(blocks: int) -> LaunchShape:
    return LaunchShape(LaunchType.MIX_AIC_1_2, blocks)


def numbers(blocks: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1000, blocks * PART).astype(np.int32)


def turned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `bulk` and its like compute: the parts in reverse order, plus one."""
    return array.reshape(-1, PART)[::-1].reshape(-1) + 1
