"""targets.ascend.operators.describe_op: an operator and its tensors -> an op of a CANN type, without code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....cache import digest
from ....errors import UnsupportedError
from ....model.op import Op
from ....model.params import Kind, Param
from ....model.subkernel import SubKernel
from ....model.tensor_arg import TensorArg
from ..chips import Chip
from ..core_types import KernelType, OpClass
from ..facts import CORE_OF, as_type
from .op_types import TYPE_BY_NAME, Operator, OpType

DESCRIBED = Path(__file__).parent / "described.cpp"
BYTES_PER_BLOCK = 1024  # of results; fewer do not occupy another core
_NOT_COMPUTED = ("float64", "complex64", "complex128")  # by AI cores; CANN leaves them to the AI CPU
_RESULT = re.compile(r"out\d*")  # how a registered kernel is given its results
_MOVES = ("aten::clone", "aten::lift_fresh_copy", "aten::copy_", "prims::copy_strided")


@dataclass(frozen=True)
class OperatorDescriber:
    """Describes the calls of one operator; takes the place of a registered kernel function."""

    op_type: OpType
    operator: Operator
    chip: Chip

    def __call__(self, /, **arguments: Any) -> Op:
        results = [arguments.pop(name) for name in list(arguments) if _is_result(name, arguments[name])]
        inputs = list(_inputs(self.operator, arguments))
        row = self._row(inputs, results)
        for name, tensor in [*inputs, *(("its result", tensor) for tensor in results)]:
            if tensor.dtype in _NOT_COMPUTED:
                raise UnsupportedError(f"{row.name}: {name} is {tensor.dtype}, which AI cores do not compute")
            if tensor.numel == 0:
                raise UnsupportedError(f"{row.name}: {name} has no elements")
        names = row.outputs if len(row.outputs) == len(results) else _numbered("y", len(results))
        params = [Param(Kind.IN, name) for name, _ in inputs]
        params += [Param(self._result_kind(tensor), name) for name, tensor in zip(names, results, strict=True)]
        attributes = {name: value for name, value in arguments.items() if not list(_tensors(value))}
        tensors = [tensor for _, tensor in inputs] + results
        same = [tensors.index(tensor) for tensor in tensors]  # which arguments are the same tensor
        details = f"{self.operator.name} {sorted(attributes.items())} {same}"
        kernel = described_kernel(row, params, tensors, details, self.chip)
        return Op(kernel, tensors, name=row.name)

    def _row(self, inputs: Sequence[tuple[str, TensorArg]], results: Sequence[TensorArg]) -> OpType:
        """Copies are named after what they do to the layout."""
        if self.operator.name not in _MOVES:
            return self.op_type
        (_, source), result = inputs[0], results[0]
        return TYPE_BY_NAME[_move_type(source, result)]

    @staticmethod
    def _result_kind(result: TensorArg) -> Kind:
        """What lies between the elements of a result with gaps must stay."""
        return Kind.OUT if is_dense(result) else Kind.INOUT


def described_kernel(
    row: OpType, params: Sequence[Param], tensors: Sequence[TensorArg], details: str, chip: Chip
) -> SubKernel:
    """A sub-kernel that stands for the compiled kernel of an op with these sizes; `details` is what else decides it."""
    layouts = [f"{tensor.dtype}{tensor.shape}{tensor.strides}" for tensor in tensors]
    kinds = [str(param) for param in params]
    written = [t for p, t in zip(params, tensors, strict=True) if p.kind is not Kind.IN]
    blocks = block_count(row.type, written, chip)
    if any(param.kind is Kind.INOUT for param in params):
        blocks = 1
    name = f"{row.name}_{digest(row.name, details, *layouts, *kinds)[:10]}"
    kernel = SubKernel.from_source(
        DESCRIBED, name, block_dim=blocks, params=params, core=CORE_OF[row.type.op_class].value, op_type=row.name,
        sync_all=False, early_start=False,
    )  # fmt: skip
    return as_type(kernel, row.type.value)


def block_count(kind: KernelType, results: Sequence[TensorArg], chip: Chip) -> int:
    """As many as have something to store, and as the chip has cores of the class."""
    cores = chip.vector_cores if kind.op_class is OpClass.AIV else chip.cube_cores
    nbytes = sum(result.numel * result.itemsize for result in results)
    return max(1, min(cores, math.ceil(nbytes / BYTES_PER_BLOCK)))


def is_described(kernel: SubKernel) -> bool:
    """Whether it stands for a compiled kernel that is not known."""
    return kernel.binary.path == DESCRIBED


def is_dense(tensor: TensorArg) -> bool:
    """Whether its elements fill the memory from its first to its last element, in whatever order."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return span == tensor.numel and 0 not in (s for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1)


def _move_type(source: TensorArg, result: TensorArg) -> str:
    strides = [stride for size, stride in zip(source.shape, source.strides, strict=True) if size > 1]
    target = [stride for size, stride in zip(result.shape, result.strides, strict=True) if size > 1]
    if source.dtype != result.dtype:
        return "Cast"
    if source.shape != result.shape or 0 in strides:
        return "BroadcastTo"
    if strides == target:
        return "TensorMove"
    if is_dense(source) and is_dense(result):
        return "Transpose"
    return "StridedSlice" if strides == sorted(strides, reverse=True) and result.contiguous else "AsStrided"


def _is_result(name: str, value: object) -> bool:
    return _RESULT.fullmatch(name) is not None and isinstance(value, TensorArg)


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}{number}" for number in range(count))


def _inputs(operator: Operator, arguments: Mapping[str, Any]) -> Iterator[tuple[str, TensorArg]]:
    """The tensors among the arguments in CANN's order; the items of a list are numbered."""
    renamed = dict(operator.inputs)
    for name in (*renamed, *(name for name in arguments if name not in renamed)):
        given, shown = arguments.get(name), renamed.get(name, name)
        if operator.name == "aten::copy_" and name == "self":
            continue  # the destination, which is also the result
        if isinstance(given, TensorArg):
            yield shown, given
        else:
            yield from ((f"{shown}{number}", tensor) for number, tensor in enumerate(_tensors(given)))


def _tensors(value: Any) -> Iterator[TensorArg]:
    if isinstance(value, TensorArg):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
