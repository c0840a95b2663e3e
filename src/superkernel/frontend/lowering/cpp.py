"""frontend.lowering.cpp: lowering to C++ kernels: Inductor writes OpenMP loops, which become blocks of sub-kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from ...cache import Cache
from ...model.op import Op
from ...model.subkernel import SubKernel
from ...model.tensor_arg import ScratchBuffers
from ...targets.protocol import ModelSupport
from .cpp_compiler import cached_compiler_flags, cpu_capability, vectorized_for
from .cpp_kernels import KERNEL_PREFIX, describe_part, kernel_source
from .cpp_outline import OutlinedKernel, outline, parameters_of
from .cpp_parser import OutlineError
from .inductor import MATMULS, GeneratedProgram, generate_program
from .lowering_cache import cached_program
from .program_trace import KernelCall, KernelText, ProgramTrace, TracedTensor, kernel_argument
from .protocol import KernelOps, LoweredProgram
from .trace_program import ProgramDialect, trace_program

DIALECT = ProgramDialect(kernel_factory="cpp_pybinding", allocator="empty_strided_cpu", device="cpu")
# either could move the first use of a collective's result before the ops that run while other ranks arrive
_PROGRAM_ORDER = {"reorder_for_locality": False, "reorder_for_peak_memory": False}


def inductor_config(threads: int) -> dict[str, Any]:
    """What Inductor is asked for: a Python program that calls kernels for so many threads."""
    return {"cpp_wrapper": False, "cpp.threads": threads}


@dataclass(frozen=True)
class CppLowering:
    kernel_prefix: str = KERNEL_PREFIX
    attention_operators: tuple[Any, ...] = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)
    has_int8_weights: bool = True

    def kept_operators(self, target: ModelSupport) -> Collection[str]:
        return MATMULS

    def for_inductor(self, module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
        return module  # Inductor knows the matmuls

    def lower(
        self, module: GraphModule, inputs: Sequence[Any], cores: int, cache: Cache, target: ModelSupport
    ) -> LoweredProgram | None:
        """Let Inductor generate kernels for so many cores."""
        generated = _generate(module, inputs, cores, target.march, cache)
        if generated is None:
            return None
        trace = trace_program(generated, inputs, DIALECT)
        outlined, refused = _outline_all(trace.kernels, cores)
        if refused:
            serial = _generate(module, inputs, 1, target.march, cache)
            assert serial is not None
            trace, outlined = _with_serial_kernels(trace, trace_program(serial, inputs, DIALECT), outlined, refused)
        return LoweredProgram(generated, trace, CppKernels(trace, outlined))


LOWERING = CppLowering()


def _generate(
    module: GraphModule, inputs: Sequence[Any], threads: int, march: str, cache: Cache
) -> GeneratedProgram | None:
    config = inductor_config(threads)
    if any(str(node.target).startswith("_c10d_functional.") for node in module.graph.nodes):
        config |= _PROGRAM_ORDER

    def generate(copied: GraphModule) -> GeneratedProgram | None:
        with vectorized_for(march):
            return generate_program(copied, inputs, config)

    return cached_program(module, inputs, config, cpu_capability(march), generate, cache)


def _outline_all(kernels: Mapping[str, KernelText], cores: int) -> tuple[dict[str, OutlinedKernel], list[str]]:
    """The outlined kernels, and the names of those that cannot be outlined."""
    outlined, refused = {}, []
    for name, text in kernels.items():
        try:
            outlined[name] = outline(text.source, cores)
        except OutlineError:
            refused.append(name)
    return outlined, refused


def _with_serial_kernels(
    parallel: ProgramTrace, serial: ProgramTrace, outlined: dict[str, OutlinedKernel], refused: Sequence[str]
) -> tuple[ProgramTrace, dict[str, OutlinedKernel]]:
    """Kernels of the program for one thread replace those that cannot be outlined, or all of them if types differ."""
    if {n: k.types for n, k in parallel.kernels.items()} == {n: k.types for n, k in serial.kernels.items()}:
        texts = {name: serial.kernels[name] for name in refused}
        trace = replace(parallel, kernels={**parallel.kernels, **texts})
        return trace, {**outlined, **{name: outline(text.source, 1) for name, text in texts.items()}}
    return serial, {name: outline(text.source, 1) for name, text in serial.kernels.items()}


@dataclass(frozen=True)
class CppKernels:
    """The C++ kernels that a program calls, cut into parts."""

    trace: ProgramTrace
    outlined: Mapping[str, OutlinedKernel]

    def compile(self, target: ModelSupport, scratch: ScratchBuffers, cache: Cache) -> KernelOps:
        flags = cached_compiler_flags(target.machine_key(), target.march, cache)
        calls = [call for call in self.trace.calls if isinstance(call, KernelCall)]
        used = dict.fromkeys(call.kernel for call in calls)
        shared = {call.kernel for call in calls if _writes_shared_memory(call, self.trace.kernels[call.kernel])}
        sources = {name: kernel_source(_readable(name), self.outlined[name], name not in shared) for name in used}
        texts = [(source.includes, source.functions) for source in sources.values()]
        objects = target.compile_generated(texts, flags.flags)
        kernels: dict[str, list[SubKernel]] = {}
        for (name, source), path in zip(sources.items(), objects, strict=True):
            parts, op_type = zip(self.outlined[name].parts, source.symbols, strict=True), _readable(name)
            kernels[name] = [describe_part(part, symbol, path, op_type, flags.libraries) for part, symbol in parts]
        names = {name: [p.name for p in parameters_of(self.trace.kernels[name].source)] for name in used}

        def ops_of(call: KernelCall) -> list[Op]:
            """An op for each part of a called kernel."""
            parts = self.outlined[call.kernel].parts
            arguments = dict(zip(names[call.kernel], call.args, strict=True))
            workspaces = {part.workspace: part.workspace_bytes for part in parts if part.workspace}
            places = {workspace: scratch(nbytes) for workspace, nbytes in workspaces.items()}
            ops = []
            for part, kernel in zip(parts, kernels[call.kernel], strict=True):
                args = [kernel_argument(arguments[parameter.name]) for parameter in part.parameters]
                if part.workspace:
                    args.append(places[part.workspace])
                ops.append(Op(kernel, args, name=_readable(call.kernel)))
            return ops

        return ops_of


def _writes_shared_memory(call: KernelCall, kernel: KernelText) -> bool:
    """Whether a kernel writes memory that two of its arguments lie in: its loads then cannot move over its stores."""
    written = [not parameter.const for parameter in parameters_of(kernel.source)]
    arguments = [
        (argument.storage, writes)
        for argument, writes in zip(call.args, written, strict=True)
        if isinstance(argument, TracedTensor)
    ]
    uses = Counter(storage for storage, _ in arguments)
    return any(writes and uses[storage] > 1 for storage, writes in arguments)


def _readable(kernel: str) -> str:
    """Inductor's name without its serial number, which differs between equal scopes."""
    return re.sub(r"_\d+$", "", kernel.removeprefix(KERNEL_PREFIX))
