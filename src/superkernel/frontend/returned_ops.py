"""frontend.returned_ops: the ops that a registered function returned -> the same, checked against the operator's use.

The plan believes what parameters declare. A tensor that no op is said to write, or that one is said to write without
the program's knowledge, would be read too early or changed for others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GraphError
from ..model.op import Op, Place
from ..model.params import DTYPES, Param
from ..model.tensor_arg import TensorArg


@dataclass(frozen=True)
class _PassedTensor:
    """A tensor, or another place, that an op takes for a parameter."""

    op: Op
    param: Param
    place: Place

    def __str__(self) -> str:
        return f"{self.op.kernel.name!r} takes it as {self.param.name!r}, declared {self.param.kind.value}"


def check_returned_ops(
    ops: Sequence[Op],
    arguments: Mapping[str, Any],
    mutated: Collection[str],
    outs: Mapping[str, TensorArg],
    where: str,
) -> None:
    """`mutated`: the names of the arguments that the operator writes."""
    passed = list(_tensors_of(ops))
    _check_results(passed, outs, where)
    _check_arguments(passed, arguments, mutated, outs, where)
    for tensor in passed:
        _check_type(tensor, where)


def _tensors_of(ops: Sequence[Op]) -> Iterator[_PassedTensor]:
    for op in ops:
        for param, arg in zip(op.kernel.params, op.args, strict=True):
            if isinstance(arg, Place):
                yield _PassedTensor(op, param, arg)


def _check_results(passed: Sequence[_PassedTensor], outs: Mapping[str, TensorArg], where: str) -> None:
    """A result that ops only read has no writer in the plan: ops that need it would not wait."""
    written = {tensor.place.name for tensor in passed if tensor.param.kind.writes}
    for out, result in outs.items():
        for tensor in passed:
            if tensor.place.name == result.name and result.name not in written:
                raise GraphError(
                    f"{where}: no op writes the result {out!r}: {tensor}; declare the parameter that writes it as out "
                    "or inout"
                )


def _check_arguments(
    passed: Sequence[_PassedTensor],
    arguments: Mapping[str, Any],
    mutated: Collection[str],
    outs: Mapping[str, TensorArg],
    where: str,
) -> None:
    """What the operator does not change, the rest of the program may hold for unchanged."""
    writable = {out.name for out in outs.values()}
    writable |= {tensor.name for name in mutated for tensor in _tensors_in(arguments.get(name))}
    for name, argument in arguments.items():
        read_only = {tensor.name for tensor in _tensors_in(argument)} - writable
        for tensor in passed:
            if tensor.param.kind.writes and tensor.place.name in read_only:
                raise GraphError(
                    f"{where}: the operator does not write its argument {name!r}: {tensor}; declare the parameter as "
                    f"in, or the operator with mutates_args=({name!r},)"
                )


def _tensors_in(argument: Any) -> list[TensorArg]:
    values = argument if isinstance(argument, list | tuple) else [argument]
    return [value for value in values if isinstance(value, TensorArg)]


def _check_type(tensor: _PassedTensor, where: str) -> None:
    """The kernel would read or write other memory than the tensor's."""
    param, given = tensor.param, tensor.place
    if param.dtype is None or not isinstance(given, TensorArg):
        return
    is_larger = param.nbytes is not None and param.nbytes > _extent(given)
    if is_larger or DTYPES[param.dtype][0] != given.itemsize:
        raise GraphError(
            f"{where}: {tensor.op.kernel.name!r} declares {str(param)!r} and is given a tensor of "
            f"{given.dtype}{list(given.shape)}; raise UnsupportedError for tensors that it cannot take"
        )


def _extent(tensor: TensorArg) -> int:
    """Bytes from its first element to the end of its last."""
    if tensor.numel == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return (last + 1) * tensor.itemsize
