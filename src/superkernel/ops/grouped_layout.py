"""ops.grouped_layout: the arguments of grouped_matmul, checked -> the layout of its groups, tensors and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .argument_checks import FLOATS, ArgumentChecks, dtype_name, shape_text
from .rounding import MAX_DEPTH

CHECKS = ArgumentChecks("grouped_matmul")
MAX_GROUPS = 1024


@dataclass(frozen=True)
class GroupLayout:
    """How tensors hold the groups: a tensor per group, or one tensor for all groups (stacked)."""

    groups: int
    stacked_x: bool  # one tensor holds the rows of all groups
    stacked_weight: bool  # one tensor holds the matrices of all groups
    stacked_result: bool
    dtype: torch.dtype  # of the results


def check_arguments(
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
    CHECKS.fits(len(x) > 0 and len(weight) > 0, "x and weight must have at least one tensor")
    tensors = [*x, *weight, *(bias or ()), *(scale or ()), *(per_token_scale or ())]
    CHECKS.same_device(**{f"tensor {number}": tensor for number, tensor in enumerate(tensors)})
    CHECKS.supported(split_item in (0, 1, 2, 3), f"split_item is {split_item}; supported: 0 to 3")
    divided = group_list is not None or group_ends is not None
    stacked_weight = len(weight) == 1 and weight[0].dim() == 3
    groups = weight[0].shape[0] if stacked_weight else len(weight)
    CHECKS.supported(1 <= groups <= MAX_GROUPS, f"{groups} groups; supported: 1 to {MAX_GROUPS}")
    stacked_x = len(x) == 1 and (divided or stacked_weight)
    _check_shapes(x, weight, groups, stacked_x, stacked_weight, divided, split_item)
    _check_list(group_list, group_ends, group_list_type, groups, stacked_x, split_item)
    dtype = _check_dtypes(x, weight, bias, scale, per_token_scale, output_dtype)
    for name, given in (("bias", bias), ("scale", scale)):
        _check_per_column(name, given, weight, groups, stacked_weight)
    if per_token_scale is not None:
        count = len(per_token_scale)
        CHECKS.fits(count == len(x), f"per_token_scale has {count} tensors, x has {len(x)}")
        for rows, factors in zip(x, per_token_scale, strict=True):
            fits = tuple(factors.shape) == tuple(rows.shape[:-1])
            CHECKS.fits(fits, f"a per_token_scale of {shape_text(factors)} does not fit an x of {shape_text(rows)}")
    return GroupLayout(groups, stacked_x, stacked_weight, split_item >= 2, dtype)


def group_ends_of(
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
    check_ends(ends, x[0].shape[0] if layout.stacked_x else sum(sizes_of_x))
    CHECKS.fits(layout.stacked_x or ends == ends_of_x, f"group_list ends at {ends}, but x has {sizes_of_x} rows")
    return ends


def check_ends(ends: Sequence[int], rows: int) -> None:
    rising = all(first <= second for first, second in zip([0, *ends], ends, strict=False))
    CHECKS.fits(rising, f"group_list gives a group less than no rows: groups end at {list(ends)}")
    CHECKS.fits(ends[-1] == rows, f"group_list adds up to {ends[-1]} rows, but x has {rows}")


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
    CHECKS.fits(enough, f"x has {len(x)} tensors for {groups} groups; it must have one, or {groups}")
    CHECKS.fits(not stacked_x or divided, "the rows of one x need a group_list to be divided by")
    CHECKS.supported(stacked_x or not stacked_weight, "a weight of three dimensions is for one x with a group_list")
    for rows in x:
        CHECKS.dimensions("x", rows, 2, 6 if not stacked_x and not divided and split_item < 2 else 2)
    for matrix in weight:
        CHECKS.dimensions("weight", matrix, 3 if stacked_weight else 2, 3 if stacked_weight else 2)
    for group in range(groups):
        rows, matrix = x[0 if stacked_x else group], weight[0 if stacked_weight else group]
        fits = rows.shape[-1] == matrix.shape[-2]
        CHECKS.fits(fits, f"x {shape_text(rows)} cannot be multiplied by weight {shape_text(matrix)} of group {group}")
        exact, k = rows.dtype is not torch.int8 or rows.shape[-1] <= MAX_DEPTH, rows.shape[-1]
        CHECKS.supported(exact, f"k is {k}; sums of more than {MAX_DEPTH} products may not fit an int32")
    widths = [matrix.shape[-1] for matrix in weight]
    equal = all(width == widths[0] for width in widths)
    CHECKS.fits(split_item < 2 or equal, f"one result needs weights of equal width, not {widths}")


def _check_list(
    group_list: Tensor | None,
    group_ends: Sequence[int] | None,
    group_list_type: int,
    groups: int,
    stacked_x: bool,
    split_item: int,
) -> None:
    if group_ends is not None:
        CHECKS.supported(group_list_type == 0, "a group_list of numbers has group_list_type=0")
        CHECKS.fits(len(group_ends) == groups, f"group_list has {len(group_ends)} numbers for {groups} groups")
        check_ends(group_ends, group_ends[-1])
    if group_list is not None:
        known = group_list_type in (0, 1)
        CHECKS.supported(known, f"group_list_type is {group_list_type}; supported: 0 (ends), 1 (counts)")
        CHECKS.dtype("group_list", group_list, (torch.int64,))
        fits = tuple(group_list.shape) == (groups,)
        CHECKS.fits(fits, f"group_list is {shape_text(group_list)}; it must be ({groups},)")
        message = "a result per group, of sizes that only the values of a tensor say; pass group_list as numbers"
        CHECKS.supported(split_item >= 2 or not stacked_x, message)


def _check_dtypes(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] | None,
    scale: Sequence[Tensor] | None,
    per_token_scale: Sequence[Tensor] | None,
    output_dtype: torch.dtype | None,
) -> torch.dtype:
    dtype = x[0].dtype
    CHECKS.dtype("x", x[0], (*FLOATS, torch.int8))
    for name, tensor in (*(("x", tensor) for tensor in x), *(("weight", tensor) for tensor in weight)):
        same = tensor.dtype is dtype
        CHECKS.supported(same, f"{name} is {dtype_name(tensor.dtype)}, but x[0] is {dtype_name(dtype)}")
    result = dtype if output_dtype is None else output_dtype
    if dtype is not torch.int8:
        known = f"of {dtype_name(dtype)} the result is {dtype_name(dtype)}"
        CHECKS.supported(result is dtype, f"output_dtype is {result}; {known}")
        CHECKS.absent(scale=scale, per_token_scale=per_token_scale)
        for tensor in bias or ():
            CHECKS.dtype("bias", tensor, (torch.float32, dtype), f" beside an x of {dtype_name(dtype)}")
        return result
    is_known = result in (torch.int8, torch.float16, torch.bfloat16, torch.int32)
    CHECKS.supported(is_known, f"output_dtype is {result}; supported: int8, float16, bfloat16, int32")
    if result is torch.int32:
        CHECKS.supported(scale is None and per_token_scale is None, "an int32 result is the sums: it takes no scale")
    else:
        CHECKS.fits(scale is not None, f"of int8, a result of {dtype_name(result)} needs a scale")
    is_integer = result in (torch.int8, torch.int32)
    scaled = not is_integer or per_token_scale is None
    CHECKS.supported(scaled, f"per_token_scale is not for results of {dtype_name(result)}")
    for tensor in scale or ():
        CHECKS.dtype("scale", tensor, (torch.float32, torch.bfloat16))
    for tensor in per_token_scale or ():
        CHECKS.dtype("per_token_scale", tensor, (torch.float32,))
    for tensor in bias or ():
        CHECKS.dtype("bias", tensor, (torch.int32,) if is_integer else (torch.int32, *FLOATS))
    return result


def _check_per_column(
    name: str, given: Sequence[Tensor] | None, weight: Sequence[Tensor], groups: int, stacked_weight: bool
) -> None:
    if given is None:
        return
    CHECKS.fits(len(given) == len(weight), f"{name} has {len(given)} tensors, weight has {len(weight)}")
    for tensor, matrix in zip(given, weight, strict=True):
        wanted = (groups, matrix.shape[-1]) if stacked_weight else (matrix.shape[-1],)
        CHECKS.fits(tuple(tensor.shape) == wanted, f"{name} is {shape_text(tensor)}; it must be {wanted}")
