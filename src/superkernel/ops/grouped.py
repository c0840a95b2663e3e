"""ops.grouped: grouped_matmul: groups of rows and a weight per group in, their products out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .argument_checks import FLOATS, ArgumentChecks, dtype_name, shape_text
from .custom_op import define_operator
from .rounding import MAX_DEPTH, dequantised, exact_product

_SCHEMA = (
    "(Tensor[] x, Tensor[] weight, Tensor[]? bias, Tensor[]? scale, Tensor[]? per_token_scale, Tensor? group_list, "
    "int[]? group_ends, int split_item, int group_list_type, ScalarType? output_dtype) -> Tensor[]"
)
_checks = ArgumentChecks("grouped_matmul")
_MAX_GROUPS = 1024


@dataclass(frozen=True)
class GroupLayout:
    """How tensors hold the groups: a tensor per group, or one tensor for all groups (stacked)."""

    groups: int
    stacked_x: bool  # one tensor holds the rows of all groups
    stacked_weight: bool  # one tensor holds the matrices of all groups
    stacked_result: bool
    dtype: torch.dtype  # of the results


def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    scale: Sequence[Tensor] | None = None,
    offset: Sequence[Tensor] | None = None,
    antiquant_scale: Sequence[Tensor] | None = None,
    antiquant_offset: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    activation_input: Sequence[Tensor] | None = None,
    activation_quant_scale: Sequence[Tensor] | None = None,
    activation_quant_offset: Sequence[Tensor] | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    act_type: int = 0,
    output_dtype: torch.dtype | None = None,
    tuning_config: Sequence[int] | None = None,
) -> list[Tensor]:
    """x_i @ weight_i + bias_i for every group i; for int8: (x_i @ weight_i + bias_i) * scale_i * per_token_scale_i.

    Either x has a tensor per group, or one whose rows group_list divides: by where groups end (group_list_type 0) or by
    how many rows they have (1). weight has a matrix per group, or one tensor (groups, k, n). split_item 0 and 1 give a
    result per group, 2 and 3 give one with the rows of all groups.
    """
    _checks.absent(offset=offset, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset)
    _checks.absent(activation_input=activation_input, activation_quant_scale=activation_quant_scale)
    _checks.absent(activation_quant_offset=activation_quant_offset, tuning_config=tuning_config)
    _checks.supported(act_type == 0, f"act_type is {act_type}; supported: 0 (no activation)")
    _checks.supported(group_type in (None, -1, 0), f"group_type is {group_type}; supported: -1 (none), 0 (rows)")
    in_rows = group_type != -1 or group_list is None
    _checks.fits(in_rows, "a group_list divides rows: pass group_type=0, or no group_list")
    listed = (group_list, None) if isinstance(group_list, Tensor) else (None, group_list)
    optional = (bias or None, scale or None, per_token_scale or None, *listed)
    result: list[Tensor] = torch.ops.superkernel.grouped_matmul(
        x, weight, *optional, split_item, group_list_type, output_dtype
    )
    return result


def _eager(x: Sequence[Tensor], weight: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    layout = _checked_layout(x, weight, *arguments)
    bias, scale, per_token_scale, group_list, group_ends, _, group_list_type, _ = arguments
    ends = _group_ends(layout, x, group_list, group_ends, group_list_type)
    products = []
    for group in range(layout.groups):
        rows = slice(ends[group - 1] if group else 0, ends[group]) if layout.stacked_x else slice(None)
        by_rows = (_of_group(tensors, group, layout.stacked_x, rows) for tensors in (x, per_token_scale))
        by_weight = (_of_group(tensors, group, layout.stacked_weight) for tensors in (weight, bias, scale))
        products.append(_product(layout.dtype, *by_rows, *by_weight))
    return [torch.cat(products)] if layout.stacked_result else products


def _fake(x: Sequence[Tensor], weight: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    layout = _checked_layout(x, weight, *arguments)
    group_ends = arguments[4]
    return [x[0].new_empty(shape, dtype=layout.dtype) for shape in _shapes(layout, x, weight, group_ends)]


def _shapes(
    layout: GroupLayout, x: Sequence[Tensor], weight: Sequence[Tensor], group_ends: Sequence[int] | None
) -> list[tuple[int, ...]]:
    if layout.stacked_result:
        return [(sum(rows.shape[0] for rows in x), weight[0].shape[-1])]
    if not layout.stacked_x:
        return [(*rows.shape[:-1], matrix.shape[-1]) for rows, matrix in zip(x, weight, strict=True)]
    ends = [0, *(group_ends or ())]
    return [(ends[group + 1] - ends[group], matrix.shape[-1]) for group, matrix in enumerate(weight)]


def _of_group(tensors: Sequence[Tensor] | None, group: int, stacked: bool, rows: slice | None = None) -> Any:
    """The tensor of a group: from a list, or a part of the stacked tensor, by rows or by the first axis."""
    if tensors is None:
        return None
    if not stacked:
        return tensors[group]
    return tensors[0][group] if rows is None else tensors[0][rows]


def _product(
    dtype: torch.dtype, x: Tensor, row_scale: Tensor | None, weight: Tensor, bias: Tensor | None, scale: Tensor | None
) -> Tensor:
    if x.dtype is torch.int8:
        sums = exact_product(x, weight)
        if scale is None:
            return sums if bias is None else sums + bias
        return dequantised(sums, scale, row_scale, bias, None, dtype)
    values = x.float() @ weight.float()
    return (values if bias is None else values + bias.float()).to(dtype)


def _checked_layout(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] | None,
    scale: Sequence[Tensor] | None,
    per_token_scale: Sequence[Tensor] | None,
    group_list: Tensor | None,
    group_ends: Sequence[int] | None,
    split_item: int,
    group_list_type: int,
    output_dtype: torch.dtype | None,
) -> GroupLayout:
    _checks.fits(len(x) > 0 and len(weight) > 0, "x and weight must have at least one tensor")
    tensors = [*x, *weight, *(bias or ()), *(scale or ()), *(per_token_scale or ())]
    _checks.same_device(**{f"tensor {number}": tensor for number, tensor in enumerate(tensors)})
    _checks.supported(split_item in (0, 1, 2, 3), f"split_item is {split_item}; supported: 0 to 3")
    divided = group_list is not None or group_ends is not None
    stacked_weight = len(weight) == 1 and weight[0].dim() == 3
    groups = weight[0].shape[0] if stacked_weight else len(weight)
    _checks.supported(1 <= groups <= _MAX_GROUPS, f"{groups} groups; supported: 1 to {_MAX_GROUPS}")
    stacked_x = len(x) == 1 and (divided or stacked_weight)
    _check_shapes(x, weight, groups, stacked_x, stacked_weight, divided, split_item)
    _check_list(group_list, group_ends, group_list_type, groups, stacked_x, split_item)
    dtype = _check_dtypes(x, weight, bias, scale, per_token_scale, output_dtype)
    for name, given in (("bias", bias), ("scale", scale)):
        _check_per_column(name, given, weight, groups, stacked_weight)
    if per_token_scale is not None:
        count = len(per_token_scale)
        _checks.fits(count == len(x), f"per_token_scale has {count} tensors, x has {len(x)}")
        for rows, factors in zip(x, per_token_scale, strict=True):
            fits = tuple(factors.shape) == tuple(rows.shape[:-1])
            _checks.fits(fits, f"a per_token_scale of {shape_text(factors)} does not fit an x of {shape_text(rows)}")
    return GroupLayout(groups, stacked_x, stacked_weight, split_item >= 2, dtype)


def _group_ends(
    layout: GroupLayout,
    x: Sequence[Tensor],
    group_list: Tensor | None,
    group_ends: Sequence[int] | None,
    group_list_type: int,
) -> list[int]:
    """The row at which each group ends. A list that contradicts x is refused."""
    sizes_of_x = [] if layout.stacked_x else [rows.shape[0] for rows in x]
    ends_of_x = list(accumulate(sizes_of_x))
    ends = list(group_ends) if group_ends is not None else ends_of_x
    if group_list is not None:
        ends = group_list.tolist() if group_list_type == 0 else list(accumulate(group_list.tolist()))
    _check_ends(ends, x[0].shape[0] if layout.stacked_x else sum(sizes_of_x))
    _checks.fits(layout.stacked_x or ends == ends_of_x, f"group_list ends at {ends}, but x has {sizes_of_x} rows")
    return ends


def _check_ends(ends: Sequence[int], rows: int) -> None:
    rising = all(first <= second for first, second in zip([0, *ends], ends, strict=False))
    _checks.fits(rising, f"group_list gives a group less than no rows: groups end at {list(ends)}")
    _checks.fits(ends[-1] == rows, f"group_list adds up to {ends[-1]} rows, but x has {rows}")


def _check_shapes(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    groups: int,
    stacked_x: bool,
    stacked_weight: bool,
    divided: bool,
    split_item: int,
) -> None:
    enough = stacked_x or len(x) == groups
    _checks.fits(enough, f"x has {len(x)} tensors for {groups} groups; it must have one, or {groups}")
    _checks.fits(not stacked_x or divided, "the rows of one x need a group_list to be divided by")
    _checks.supported(stacked_x or not stacked_weight, "a weight of three dimensions is for one x with a group_list")
    for rows in x:
        _checks.dimensions("x", rows, 2, 6 if not stacked_x and not divided and split_item < 2 else 2)
    for matrix in weight:
        _checks.dimensions("weight", matrix, 3 if stacked_weight else 2, 3 if stacked_weight else 2)
    for group in range(groups):
        rows, matrix = x[0 if stacked_x else group], weight[0 if stacked_weight else group]
        fits = rows.shape[-1] == matrix.shape[-2]
        _checks.fits(fits, f"x {shape_text(rows)} cannot be multiplied by weight {shape_text(matrix)} of group {group}")
        exact, k = rows.dtype is not torch.int8 or rows.shape[-1] <= MAX_DEPTH, rows.shape[-1]
        _checks.supported(exact, f"k is {k}; sums of more than {MAX_DEPTH} products may not fit an int32")
    widths = [matrix.shape[-1] for matrix in weight]
    equal = all(width == widths[0] for width in widths)
    _checks.fits(split_item < 2 or equal, f"one result needs weights of equal width, not {widths}")


def _check_list(
    group_list: Tensor | None,
    group_ends: Sequence[int] | None,
    group_list_type: int,
    groups: int,
    stacked_x: bool,
    split_item: int,
) -> None:
    if group_ends is not None:
        _checks.supported(group_list_type == 0, "a group_list of numbers has group_list_type=0")
        _checks.fits(len(group_ends) == groups, f"group_list has {len(group_ends)} numbers for {groups} groups")
        _check_ends(group_ends, group_ends[-1])
    if group_list is not None:
        known = group_list_type in (0, 1)
        _checks.supported(known, f"group_list_type is {group_list_type}; supported: 0 (ends), 1 (counts)")
        _checks.dtype("group_list", group_list, (torch.int64,))
        fits = tuple(group_list.shape) == (groups,)
        _checks.fits(fits, f"group_list is {shape_text(group_list)}; it must be ({groups},)")
        message = "a result per group, of sizes that only the values of a tensor say; pass group_list as numbers"
        _checks.supported(split_item >= 2 or not stacked_x, message)


def _check_dtypes(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] | None,
    scale: Sequence[Tensor] | None,
    per_token_scale: Sequence[Tensor] | None,
    output_dtype: torch.dtype | None,
) -> torch.dtype:
    dtype = x[0].dtype
    _checks.dtype("x", x[0], (*FLOATS, torch.int8))
    for name, tensor in (*(("x", tensor) for tensor in x), *(("weight", tensor) for tensor in weight)):
        same = tensor.dtype is dtype
        _checks.supported(same, f"{name} is {dtype_name(tensor.dtype)}, but x[0] is {dtype_name(dtype)}")
    result = dtype if output_dtype is None else output_dtype
    if dtype is not torch.int8:
        known = f"of {dtype_name(dtype)} the result is {dtype_name(dtype)}"
        _checks.supported(result is dtype, f"output_dtype is {result}; {known}")
        _checks.absent(scale=scale, per_token_scale=per_token_scale)
        for tensor in bias or ():
            _checks.dtype("bias", tensor, (torch.float32, dtype), f" beside an x of {dtype_name(dtype)}")
        return result
    is_known = result in (torch.int8, torch.float16, torch.bfloat16, torch.int32)
    _checks.supported(is_known, f"output_dtype is {result}; supported: int8, float16, bfloat16, int32")
    if result is torch.int32:
        _checks.supported(scale is None and per_token_scale is None, "an int32 result is the sums: it takes no scale")
    else:
        _checks.fits(scale is not None, f"of int8, a result of {dtype_name(result)} needs a scale")
    is_integer = result in (torch.int8, torch.int32)
    scaled = not is_integer or per_token_scale is None
    _checks.supported(scaled, f"per_token_scale is not for results of {dtype_name(result)}")
    for tensor in scale or ():
        _checks.dtype("scale", tensor, (torch.float32, torch.bfloat16))
    for tensor in per_token_scale or ():
        _checks.dtype("per_token_scale", tensor, (torch.float32,))
    for tensor in bias or ():
        _checks.dtype("bias", tensor, (torch.int32,) if is_integer else (torch.int32, *FLOATS))
    return result


def _check_per_column(
    name: str, given: Sequence[Tensor] | None, weight: Sequence[Tensor], groups: int, stacked_weight: bool
) -> None:
    if given is None:
        return
    _checks.fits(len(given) == len(weight), f"{name} has {len(given)} tensors, weight has {len(weight)}")
    for tensor, matrix in zip(given, weight, strict=True):
        wanted = (groups, matrix.shape[-1]) if stacked_weight else (matrix.shape[-1],)
        _checks.fits(tuple(tensor.shape) == wanted, f"{name} is {shape_text(tensor)}; it must be {wanted}")


define_operator("grouped_matmul", _SCHEMA, _eager, _fake)
