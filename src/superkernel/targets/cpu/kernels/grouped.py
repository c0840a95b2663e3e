"""targets.cpu.kernels.grouped: lists of tensors by name in, the ops that multiply the rows of every group out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from ....errors import UnsupportedError
from ....model.op import Argument, Op
from .matmul import ELEMENT_BYTES, block_count, three_strides
from .quant_matmul import DTYPES
from .shipping import Tensor, parameters, place, shipped, stride_params

_NUMBERS = (
    "list_kind list_step groups first_group count rows n k x_row x_column weight_group weight_row weight_column out_row"
)
_BYTES = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True)
class _ListedGroups:
    """The groups that an op multiplies: from `first` on, of those that a list divides the rows of x into."""

    list: Tensor
    kind: int  # as `ListKind` in grouped.h names them
    first: int
    groups: int


@dataclass(frozen=True)
class _Epilogue:
    """Bias and scales of an op; of weights in one tensor, the first axis is the group."""

    bias: Tensor | None
    scale: Tensor | None
    per_token_scale: Tensor | None


def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] | None,
    scale: Sequence[Tensor] | None,
    per_token_scale: Sequence[Tensor] | None,
    group_list: Tensor | None,
    group_ends: Sequence[int] | None,
    split_item: int,
    group_list_type: int,
    output_dtype: Any,
    *,
    cores: int,
    **results: Tensor,
) -> list[Op]:
    """The arguments are those that the operator accepts. One op per weight, or per group of known rows."""
    outs = [results[name] for name in sorted(results, key=lambda name: int(name.removeprefix("out") or 0))]
    stacked_weight = len(weight[0].shape) == 3
    if group_list is not None and len(x) != 1:
        raise UnsupportedError(
            "grouped_matmul: a group_list beside an x per group, whose values would have to be compared"
        )
    if group_list is not None:
        groups = weight[0].shape[0] if stacked_weight else len(weight)
        ops = []
        for number, matrices in enumerate(weight):
            listed = _ListedGroups(group_list, group_list_type, number, groups)
            epilogue = _Epilogue(_item(bias, number), _item(scale, number), _item(per_token_scale, 0))
            ops.append(_op(x[0], matrices, outs[0], epilogue, listed, cores, part=not stacked_weight))
        return ops
    if group_ends is not None and len(x) == 1:
        x, per_token_scale = _divided(x, group_ends), _divided(per_token_scale, group_ends)
    if stacked_weight:
        weight, bias, scale = _matrices(weight), _matrices(bias), _matrices(scale)
    rows = [_flat(tensor) for tensor in x]
    if split_item >= 2:
        outs = _divided(outs, list(accumulate(tensor.shape[0] for tensor in rows)))
    ops = []
    for group, tensor in enumerate(rows):
        epilogue = _Epilogue(_item(bias, group), _item(scale, group), _item(per_token_scale, group))
        part = split_item >= 2 and len(rows) > 1
        ops.append(_op(tensor, weight[group], _flat(outs[group]), epilogue, None, cores, part=part))
    return ops


def _op(
    x: Tensor, weight: Tensor, out: Tensor, epilogue: _Epilogue, listed: _ListedGroups | None, cores: int, *, part: bool
) -> Op:
    rows, k = x.shape
    n = weight.shape[-1]
    count = weight.shape[0] if len(weight.shape) == 3 else 1
    if out.strides[-1] != 1 and n > 1:
        raise UnsupportedError("grouped_matmul: rows of a result that are not contiguous")
    arguments: list[Argument] = [place(x), place(weight), place(out)]
    if listed is None:
        arguments += [place(x), -1, 0, 1, 0]
    else:
        arguments += [place(listed.list), listed.kind, listed.list.strides[0], listed.groups, listed.first]
    arguments += [count, rows, n, k, *x.strides, *three_strides(weight), out.strides[0]]
    blocks = block_count(count, max(1, rows // max(1, count)), n, k, _BYTES[x.dtype], cores)
    written = "inout:out" if part else "out:out"
    params = [*parameters(f"in:x in:weight {written} in:list {_NUMBERS}")]
    if x.dtype == "int8":
        arguments.append(DTYPES[out.dtype])
        params.append("scalar:out_dtype:int64")
        named = {"scale": epilogue.scale, "per_token_scale": epilogue.per_token_scale, "bias": epilogue.bias}
        for name, tensor in named.items():
            arguments += _factor(tensor, x)
            params += [f"in:{name}", *stride_params(name, "dtype group step")]
        kernel = shipped("grouped_int8.cpp", "grouped_int8", tuple(params), blocks=blocks, op_type="GroupedMatmul")
        return Op(kernel, arguments)
    if k == 0 or x.dtype not in ELEMENT_BYTES:
        raise UnsupportedError(f"grouped_matmul: {x.dtype} with k = {k}")
    if epilogue.bias is not None and epilogue.bias.dtype != x.dtype:
        raise UnsupportedError(f"grouped_matmul: a bias of {epilogue.bias.dtype} beside an x of {x.dtype}")
    bias, given, *strides = _factor(epilogue.bias, x)
    arguments += [bias, int(bool(given)), *strides]
    params += parameters("in:bias bias_given bias_group bias_step")
    defines = (f"SK_GROUPED_{x.dtype.upper()}",)
    symbol = f"grouped_{x.dtype}"
    kernel = shipped("grouped.cpp", symbol, tuple(params), blocks=blocks, op_type="GroupedMatmul", defines=defines)
    return Op(kernel, arguments)


def _factor(tensor: Tensor | None, instead: Tensor) -> list[Argument]:
    """Address, dtype, and strides by group and column; the address of `instead` if it is missing."""
    if tensor is None:
        return [place(instead), 0, 0, 0]
    return [place(tensor), DTYPES[tensor.dtype], *[0] * (2 - len(tensor.strides)), *tensor.strides]


def _item(tensors: Sequence[Tensor] | None, number: int) -> Tensor | None:
    return None if tensors is None else tensors[number]


def _rows(tensor: Tensor, begin: int, end: int) -> Tensor:
    offset = tensor.offset + begin * tensor.strides[0] * _BYTES[tensor.dtype]
    return replace(tensor, offset=offset, shape=(end - begin, *tensor.shape[1:]))


def _divided(tensors: Sequence[Tensor] | None, ends: Sequence[int]) -> Any:
    """The rows of the only tensor, as a list."""
    if tensors is None:
        return None
    return [_rows(tensors[0], begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _matrices(tensors: Sequence[Tensor] | None) -> Any:
    """The first axis of the only tensor, as a list."""
    if tensors is None:
        return None
    views = (_rows(tensors[0], group, group + 1) for group in range(tensors[0].shape[0]))
    return [replace(view, shape=view.shape[1:], strides=view.strides[1:]) for view in views]


def _flat(tensor: Tensor) -> Tensor:
    """As a matrix: all dimensions but the last are rows."""
    *rows, columns = tensor.shape
    *strides, step = tensor.strides
    outer = [(size, stride) for size, stride in zip(rows, strides, strict=True) if size != 1]
    for (_, far), (size, near) in pairwise(outer):
        if far != size * near:
            raise UnsupportedError(f"grouped_matmul: rows of the shape {tuple(rows)} that no single stride walks")
    row_stride = outer[-1][1] if outer else columns
    return replace(tensor, shape=(math.prod(rows), columns), strides=(row_stride, step))
