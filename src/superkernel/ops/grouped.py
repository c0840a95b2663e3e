"""ops.grouped: grouped_matmul: groups of rows and a weight per group in, their products out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .custom_op import define_operator
from .grouped_layout import CHECKS, GroupLayout, check_arguments, group_ends_of
from .rounding import dequantised, exact_product

_SCHEMA = (
    "(Tensor[] x, Tensor[] weight, Tensor[]? bias, Tensor[]? scale, Tensor[]? per_token_scale, Tensor? group_list, "
    "int[]? group_ends, int split_item, int group_list_type, ScalarType? output_dtype) -> Tensor[]"
)


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
    CHECKS.absent(offset=offset, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset)
    CHECKS.absent(activation_input=activation_input, activation_quant_scale=activation_quant_scale)
    CHECKS.absent(activation_quant_offset=activation_quant_offset, tuning_config=tuning_config)
    CHECKS.supported(act_type == 0, f"act_type is {act_type}; supported: 0 (no activation)")
    CHECKS.supported(group_type in (None, -1, 0), f"group_type is {group_type}; supported: -1 (none), 0 (rows)")
    in_rows = group_type != -1 or group_list is None
    CHECKS.fits(in_rows, "a group_list divides rows: pass group_type=0, or no group_list")
    listed = (group_list, None) if isinstance(group_list, Tensor) else (None, group_list)
    optional = (bias or None, scale or None, per_token_scale or None, *listed)
    result: list[Tensor] = torch.ops.superkernel.grouped_matmul(
        x, weight, *optional, split_item, group_list_type, output_dtype
    )
    return result


def _eager(x: Sequence[Tensor], weight: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    layout = check_arguments(x, weight, *arguments)
    bias, scale, per_token_scale, group_list, group_ends, _, group_list_type, _ = arguments
    ends = group_ends_of(layout, x, group_list, group_ends, group_list_type)
    products = []
    for group in range(layout.groups):
        rows = slice(ends[group - 1] if group else 0, ends[group]) if layout.stacked_x else slice(None)
        by_rows = (_of_group(tensors, group, layout.stacked_x, rows) for tensors in (x, per_token_scale))
        by_weight = (_of_group(tensors, group, layout.stacked_weight) for tensors in (weight, bias, scale))
        products.append(_product(layout.dtype, *by_rows, *by_weight))
    return [torch.cat(products)] if layout.stacked_result else products


def _fake(x: Sequence[Tensor], weight: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    layout = check_arguments(x, weight, *arguments)
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


define_operator("grouped_matmul", _SCHEMA, _eager, _fake)
