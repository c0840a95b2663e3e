"""ops.swiglu: dequant_swiglu_quant: rows of gates and values in, int8 rows and their scales out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .argument_checks import FLOATS, ArgumentChecks, shape_text
from .custom_op import define_operator
from .rounding import to_int8

_SCHEMA = (
    "(Tensor x, Tensor? weight_scale, Tensor? activation_scale, Tensor? bias, "
    "Tensor? quant_scale, Tensor? quant_offset, Tensor? group_index, bool activate_left, "
    "int quant_mode) -> (Tensor, Tensor)"
)
_checks = ArgumentChecks("dequant_swiglu_quant")


def dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """Dequantise rows (m, 2h), apply SwiGLU, quantise: int8 (m, h), and one scale per row (m,).

    quant_mode 0 is static: product * quant_scale + quant_offset. 1 is dynamic: the largest of each row becomes 127.
    The scales are those of mode 1; in mode 0 they are zeros. All is computed in float64, and rounded once.
    """
    result: tuple[Tensor, Tensor] = torch.ops.superkernel.dequant_swiglu_quant(
        x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left, quant_mode
    )
    return result


def _eager(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    _check(x, *arguments)
    weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left, quant_mode = arguments
    rows = x.shape[0]
    if group_index is not None:
        counts = group_index.tolist()
        rows = sum(counts)
        _checks.fits(all(count >= 0 for count in counts), f"group_index has a negative count: {counts}")
        _checks.fits(rows <= x.shape[0], f"group_index adds up to {rows}, but x has {x.shape[0]} rows")
        of_row = torch.repeat_interleave(group_index)
        weight_scale = None if weight_scale is None else weight_scale[of_row]
        quant_scale = None if quant_scale is None else quant_scale[of_row]
        activation_scale = None if activation_scale is None else activation_scale[:rows]

    values = (x[:rows] if bias is None else x + bias).double()
    if weight_scale is not None:
        values = values * weight_scale.double()
    if activation_scale is not None:
        values = values * activation_scale.double().reshape(-1, 1)
    left, right = values.chunk(2, dim=-1)
    gate, value = (left, right) if activate_left else (right, left)
    product = gate / (1 + torch.exp(-gate)) * value
    if quant_scale is not None:
        product = product * quant_scale.double()

    y = x.new_zeros((x.shape[0], x.shape[1] // 2), dtype=torch.int8)
    scale = x.new_zeros(x.shape[0], dtype=torch.float32)
    if quant_mode == 0:
        y[:rows] = to_int8(product if quant_offset is None else product + quant_offset.double())
    else:
        scale[:rows] = (product.abs().amax(-1) / 127).float()
        y[:rows] = to_int8(product / scale[:rows].double().unsqueeze(-1))
    return y, scale


def _fake(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    _check(x, *arguments)
    y = x.new_empty((x.shape[0], x.shape[1] // 2), dtype=torch.int8)
    return y, x.new_empty(x.shape[0], dtype=torch.float32)


def _check(
    x: Tensor,
    weight_scale: Tensor | None,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    quant_scale: Tensor | None,
    quant_offset: Tensor | None,
    group_index: Tensor | None,
    activate_left: bool,
    quant_mode: int,
) -> None:
    scales = {"weight_scale": weight_scale, "quant_scale": quant_scale, "quant_offset": quant_offset}
    _checks.same_device(x=x, activation_scale=activation_scale, bias=bias, group_index=group_index, **scales)
    _checks.dtype("x", x, (torch.int32, *FLOATS))
    _checks.dimensions("x", x, 2, 2)
    m, width = x.shape
    _checks.fits(width > 0 and width % 2 == 0, f"x is {shape_text(x)}; its rows must have an even number of elements")
    _checks.supported(quant_mode in (0, 1), f"quant_mode is {quant_mode}; supported: 0 (static), 1 (dynamic)")
    if x.dtype is torch.int32:
        _checks.fits(weight_scale is not None, "an int32 x needs a weight_scale")
    if group_index is None:
        _check_broadcast("weight_scale", weight_scale, m, width)
        _check_broadcast("quant_scale", quant_scale, m, width // 2)
        _check_broadcast("quant_offset", quant_offset, m, width // 2)
    else:
        _checks.dtype("group_index", group_index, (torch.int64,))
        _checks.dimensions("group_index", group_index, 1, 1)
        _checks.supported(quant_mode == 1, "group_index is for quant_mode=1")
        _checks.supported(bias is None, "bias is not supported with group_index")
        _checks.supported(quant_offset is None, "quant_offset is not supported with group_index")
        _check_per_group("weight_scale", weight_scale, group_index.shape[0], width)
        _check_per_group("quant_scale", quant_scale, group_index.shape[0], width // 2)
    if activation_scale is not None:
        _checks.dtype("activation_scale", activation_scale, (torch.float32,))
        fits = tuple(activation_scale.shape) in ((m,), (m, 1))
        _checks.fits(fits, f"activation_scale is {shape_text(activation_scale)}; it must be ({m},) or ({m}, 1)")
    if bias is not None:
        _checks.dtype("bias", bias, (torch.int32,))
        _checks.supported(x.dtype is torch.int32, "bias is for an int32 x")
        fits = tuple(bias.shape) in ((width,), (1, width))
        _checks.fits(fits, f"bias is {shape_text(bias)}; it must be ({width},) or (1, {width})")
    _checks.supported(quant_mode == 0 or quant_offset is None, "quant_offset is for quant_mode=0")


def _check_broadcast(name: str, tensor: Tensor | None, rows: int, columns: int) -> None:
    if tensor is None:
        return
    _checks.dtype(name, tensor, (torch.float32,))
    shape = (1,) * (2 - tensor.dim()) + tuple(tensor.shape)
    fits = len(shape) == 2 and shape[0] in (1, rows) and shape[1] in (1, columns)
    _checks.fits(fits, f"{name} is {shape_text(tensor)}; it must be broadcastable to ({rows}, {columns})")


def _check_per_group(name: str, tensor: Tensor | None, groups: int, columns: int) -> None:
    if tensor is None:
        return
    _checks.dtype(name, tensor, (torch.float32,))
    fits = tuple(tensor.shape) == (groups, columns)
    _checks.fits(fits, f"{name} is {shape_text(tensor)}; with {groups} groups it must be ({groups}, {columns})")


define_operator("dequant_swiglu_quant", _SCHEMA, _eager, _fake)
