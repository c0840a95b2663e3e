"""ops.rounding: int8 matrices in, their exact product out; floating-point values in, the nearest int8 out."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_DEPTH = 131_071  # products of two int8 are at most 2**14: a sum of this many fits an int32


def exact_product(x1: Tensor, x2: Tensor) -> Tensor:
    """The int32 product of int8 matrices. Every partial sum is below 2**53, so float64 is exact."""
    return (x1.double() @ x2.double()).to(torch.int32)


def to_int8(values: Tensor) -> Tensor:
    """Rounds to nearest, ties to even; saturates; NaN becomes 0."""
    nearest = values.round().clamp(-128, 127)
    return torch.where(nearest.isnan(), torch.zeros_like(nearest), nearest).to(torch.int8)


def dequantised(
    sums: Tensor, scale: Tensor, per_row: Tensor | None, bias: Tensor | None, offset: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """(sums + bias) * scale * per_row + offset in float32, rounded; a bias that is not int32 is added last."""
    integer_bias = bias is not None and bias.dtype is torch.int32
    values = (sums + bias if integer_bias else sums).float() * scale.float()
    if per_row is not None:
        values = values * per_row.unsqueeze(-1)
    if bias is not None and not integer_bias:
        values = values + bias.float()
    if offset is not None:
        values = values + offset
    return to_int8(values) if dtype is torch.int8 else values.to(dtype)
