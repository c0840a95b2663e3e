"""frontend.emulated_launch: a segment whose super kernel cannot be launched here -> a launch on the emulator.

The same ops, in the same order, on as many blocks and cores; sub-kernels compute what the cpu target's kernels do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from itertools import count
from typing import Any

from ..model.op import Op
from ..model.options import Options
from ..model.subkernel import SubKernel
from ..runtime.compile import compile as link_ops
from ..runtime.super_kernel import SuperKernel
from ..targets.buffers import bytes_at
from ..targets.operator_library import OperatorLibrary
from .host_programs import LoweredOperator, lower_operator
from .lowering.program_trace import LibraryCall, ProgramCall
from .profit_gate import LaunchFunction
from .segments import ProgramStep, Segment
from .settings import BackendSettings, Fuse

_COMPILERS = os.cpu_count() or 1


def emulate_segments(steps: Sequence[ProgramStep], options: Options, settings: BackendSettings) -> None:
    """Let segments that cannot be launched here be emulated."""
    library = settings.model_support.operators
    assert library is not None
    for segment in (step for step in steps if isinstance(step, Segment)):
        assert segment.kernel is not None
        if segment.emulated:
            ops = host_ops(segment.described, segment.calls, library)
            buffers = list(segment.kernel.graph.buffers)
            segment.launch = emulated_launch(ops, buffers, options, settings, segment.kernel.name)


def host_ops(ops: Sequence[Op], calls: Sequence[ProgramCall], library: OperatorLibrary) -> list[Op]:
    """The ops with sub-kernels for the emulator; ops of one kernel share what is built for it."""
    lowered: dict[SubKernel, LoweredOperator] = {}
    for op, call in zip(ops, calls, strict=True):
        if not library.has_code(op) and op.kernel not in lowered:
            assert isinstance(call, LibraryCall), "only operators are described"
            lowered[op.kernel] = lower_operator(op, call)  # one after the other: Inductor is not for several threads

    def compile_op(operator: LoweredOperator) -> SubKernel:
        return library.host_op(operator.op, operator.compile()).kernel

    context = copy_context()  # of the cache
    with ThreadPoolExecutor(_COMPILERS, "superkernel-host-op") as pool:
        made = dict(
            zip(lowered, pool.map(lambda op: context.copy().run(compile_op, op), lowered.values()), strict=True)
        )
    return [replace(op, kernel=made.get(op.kernel, op.kernel)) for op in ops]


def emulated_launch(
    ops: Sequence[Op], names: Sequence[str], options: Options, settings: BackendSettings, name: str
) -> LaunchFunction:
    """A function of the values and sizes of a launch; `names` are the buffers that these stand for.

    Each call has another seed, and so another order of the cores. Unfused, every op is a launch.
    """
    groups = [list(ops)] if settings.fuse is not Fuse.OFF else [[op] for op in ops]
    kernels: list[SuperKernel] = [
        link_ops(group, name, options, settings.target, chip=settings.chip, title="segment") for group in groups
    ]
    seeds = count()

    def launch(values: Any, sizes: Any) -> None:
        seed = next(seeds)
        buffers = {buffer: bytes_at(values[at], sizes[at]) for at, buffer in enumerate(names)}
        for kernel in kernels:
            kernel.emulate({buffer: buffers[buffer] for buffer in kernel.graph.buffers}, seed=seed, record=False)

    return launch
