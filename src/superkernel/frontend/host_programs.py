"""frontend.host_programs: a call of an operator -> how the cpu target's kernels compute it, as a HostProgram.

The operator alone is lowered as a part of a model is: what Inductor generates for it, and sub-kernels for library
calls. So it is computed by the same text as on the cpu target, as far as that target computes it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..cache import Cache
from ..errors import UnsupportedError
from ..model.op import Op, Place
from ..model.params import Kind, Number
from ..model.tensor_arg import TensorArg
from ..targets import DEFAULT_TARGET, find_target, model_support_of
from ..targets.operator_library import HostCall, HostPlace, HostProgram, HostTransfer
from .lowering import find_lowering
from .lowering.op_list import decomposed
from .lowering.program_trace import KernelCall, LibraryCall, StorageOrigin, TracedTensor, kernel_argument
from .lowering.protocol import LoweredProgram
from .segments import MatchedProgram, match_calls

_copy, _copy_strided = torch.ops.aten.copy_.default, torch.ops.prims.copy_strided.default


@dataclass(frozen=True)
class LoweredOperator:
    """An operator for which Inductor has generated code; nothing is compiled yet."""

    op: Op
    call: LibraryCall
    operator: _Operator
    lowered: LoweredProgram
    matched: MatchedProgram

    def compile(self) -> HostProgram:
        """Compile the kernels. Several threads may do so at once, each with an operator of its own."""
        support = model_support_of(find_target(DEFAULT_TARGET))
        ops = _host_ops(self.matched, self.lowered.kernels.compile(support, self.matched.scratch, Cache()))
        buffers = _Buffers.of(self.matched)
        compiled = support.compile_kernels([host_op.kernel for host_op in ops])
        calls = tuple(
            HostCall(host_op.kernel, path, symbol, tuple(map(buffers.argument, host_op.args)))
            for host_op, (path, symbol) in zip(ops, compiled, strict=True)
        )
        reads = _reads(self.op, self.operator, self.matched, buffers)
        return HostProgram(buffers.sizes, reads, calls, _writes(self.op, self.call, self.matched, buffers))


def lower_operator(op: Op, call: LibraryCall) -> LoweredOperator:
    """How the host computes `op`, which the call stands for; UnsupportedError: it has no kernels for that."""
    host = find_target(DEFAULT_TARGET)
    support, cores = model_support_of(host), host.planner.core_count()
    operator = _Operator.of(call)
    graph = decomposed(operator.function(), operator.fakes)
    lowered = find_lowering(support.kernel_language).lower(graph, operator.fakes, cores, Cache(), support)
    if lowered is None:
        raise UnsupportedError(f"{call.op}: Inductor generates nothing for it")
    matched = match_calls(lowered.trace, host, cores)
    if matched.unfusible:
        raise UnsupportedError(f"{call.op}: the host has no kernel for it: {matched.unfusible[0]}")
    return LoweredOperator(op, call, operator, lowered, matched)


def _host_ops(matched: MatchedProgram, kernel_ops: Callable[[KernelCall], list[Op]]) -> list[Op]:
    ops: list[Op] = []
    for call, match in matched.calls:
        ops += kernel_ops(call) if isinstance(call, KernelCall) else match  # type: ignore[arg-type]
    return ops


@dataclass(frozen=True)
class _Operator:
    """An operator as a function of its tensors, each of which is passed once."""

    call: LibraryCall
    tensors: tuple[TracedTensor, ...]
    fakes: tuple[Any, ...]

    @classmethod
    def of(cls, call: LibraryCall) -> _Operator:
        leaves, _ = _flattened(call)
        skipped = call.args[0] if call.op is _copy else None  # only its layout counts
        tensors = tuple(dict.fromkeys(x for x in leaves if isinstance(x, TracedTensor) and x is not skipped))
        with detect_fake_mode(()) or FakeTensorMode():
            fakes = tuple(torch.empty_strided(x.shape, x.strides, dtype=x.dtype) for x in tensors)
        return cls(call, tensors, fakes)

    def function(self) -> Callable[..., Any]:
        call = self.call
        leaves, structure = _flattened(call)

        def compute(*given: Any) -> Any:
            values = dict(zip(self.tensors, given, strict=True))
            if call.op is _copy:
                source, target = values[call.args[1]], call.args[0]
                return (_restrided(source.to(target.dtype).expand(target.shape), target.strides),)
            tensors = [values[leaf] if isinstance(leaf, TracedTensor) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(tensors, structure)
            if call.op is _copy_strided:
                return (_restrided(args[0], args[1]),)
            result = call.op(*args, **kwargs)
            results = result if isinstance(result, list | tuple) else [result]
            return tuple(value for value in results if value is not None)

        return compute


def _flattened(call: LibraryCall) -> tuple[list[Any], Any]:
    leaves, structure = tree_flatten((call.args, call.kwargs), is_leaf=lambda value: isinstance(value, TracedTensor))
    return leaves, structure


def _restrided(tensor: Any, strides: Sequence[int]) -> Any:
    """A copy whose elements lie in the order of the strides."""
    order = sorted(range(tensor.dim()), key=lambda dimension: strides[dimension], reverse=True)
    inverse = sorted(range(tensor.dim()), key=lambda dimension: order[dimension])
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


@dataclass(frozen=True)
class _Buffers:
    """The storages and scratch buffers of a lowered operator, numbered."""

    numbers: Mapping[str, int]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, matched: MatchedProgram) -> _Buffers:
        for storage in matched.trace.storages:
            if storage.origin is StorageOrigin.CONSTANT:
                raise UnsupportedError("an operator that Inductor computes with a table of constants")
        sizes = {storage.name: storage.nbytes for storage in matched.trace.storages} | matched.scratch.sizes
        return cls({name: number for number, name in enumerate(sizes)}, tuple(sizes.values()))

    def argument(self, value: Any) -> HostPlace | Number:
        if isinstance(value, Place):
            return HostPlace(self.numbers[value.name], value.offset)
        return HostPlace(self.numbers[value]) if isinstance(value, str) else value

    def place(self, view: TracedTensor) -> HostPlace:
        return HostPlace(self.numbers[view.storage.name], view.offset)


def _reads(op: Op, operator: _Operator, matched: MatchedProgram, buffers: _Buffers) -> tuple[HostTransfer, ...]:
    """What a kernel of the lowered operator may read of the op's inputs."""
    reads = []
    for traced, view in zip(operator.tensors, matched.trace.inputs, strict=True):
        parameter = _parameter(op, kernel_argument(traced), written=False)
        assert isinstance(view, TracedTensor)
        reads.append(HostTransfer(parameter, buffers.place(view), view.storage.nbytes))
    return tuple(reads)


def _writes(op: Op, call: LibraryCall, matched: MatchedProgram, buffers: _Buffers) -> tuple[HostTransfer, ...]:
    results = [result for result in call.results if result is not None]
    writes = []
    for result, view in zip(results, matched.trace.outputs, strict=True):
        assert isinstance(view, TracedTensor)
        layout, computed = ([s for n, s in zip(x.shape, x.strides, strict=True) if n > 1] for x in (result, view))
        argument = kernel_argument(result)
        if layout != computed or view.shape != result.shape or view.conjugated or view.negated:
            raise UnsupportedError(f"{call.op}: the host computes it in another layout")
        parameter = _parameter(op, argument, written=True)
        if op.kernel.params[parameter].kind is Kind.INOUT:
            raise UnsupportedError(f"{call.op}: a result with gaps between its elements")
        writes.append(HostTransfer(parameter, buffers.place(view), argument.numel * argument.itemsize))
    return tuple(writes)


def _parameter(op: Op, argument: TensorArg, written: bool) -> int:
    """The number of the parameter that is given this tensor."""
    for number, (param, given) in enumerate(zip(op.kernel.params, op.args, strict=True)):
        if given == argument and param.kind.writes is written:
            return number
    raise UnsupportedError(f"op {op.name!r} has no parameter for {argument.name}")
