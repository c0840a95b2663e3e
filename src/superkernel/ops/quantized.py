"""ops.quantized: quant_matmul: int8 matrices and their scales in, the scaled product out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .argument_checks import FLOATS, ArgumentChecks, shape_text
from .custom_op import define_operator
from .rounding import MAX_DEPTH, dequantised, exact_product

_SCHEMA = (
    "(Tensor x1, Tensor x2, Tensor scale, Tensor? offset, Tensor? pertoken_scale, Tensor? bias, "
    "ScalarType? output_dtype, int[]? group_sizes) -> Tensor"
)
_OUTPUTS = (torch.int8, torch.float16, torch.bfloat16, torch.int32)
_checks = ArgumentChecks("quant_matmul")


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    group_sizes: Sequence[int] | None = None,
) -> Tensor:
    """(x1 @ x2 + bias) * scale * pertoken_scale + offset, with an int32 bias; a floating-point one is added last.

    x1 (..., m, k) and x2 (..., k, n) are int8, and their product is exact. The result is int8 (the default), float16,
    bfloat16, or int32: then it is the sums, without the scale.
    """
    result: Tensor = torch.ops.superkernel.quant_matmul(
        x1, x2, scale, offset, pertoken_scale, bias, output_dtype, group_sizes
    )
    return result


def _eager(x1: Tensor, x2: Tensor, *arguments: Any) -> Tensor:
    dtype, _ = _checked(x1, x2, *arguments)
    scale, offset, pertoken_scale, bias, *_ = arguments
    sums = exact_product(x1, x2)
    if dtype is torch.int32:
        return sums if bias is None else sums + bias
    return dequantised(sums, scale, pertoken_scale, bias, offset, dtype)


def _fake(x1: Tensor, *arguments: Any) -> Tensor:
    dtype, shape = _checked(x1, *arguments)
    return x1.new_empty(shape, dtype=dtype)


def _checked(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype | None,
    group_sizes: Sequence[int] | None,
) -> tuple[torch.dtype, tuple[int, ...]]:
    """Element type and shape of the result."""
    _checks.supported(group_sizes is None, "group_sizes is not supported; leave it out")
    _checks.same_device(x1=x1, x2=x2, scale=scale, offset=offset, pertoken_scale=pertoken_scale, bias=bias)
    for name, matrix in (("x1", x1), ("x2", x2)):
        packed = " (int4 in int32)" if matrix.dtype is torch.int32 else ""
        _checks.dtype(name, matrix, (torch.int8,), packed)
        _checks.dimensions(name, matrix, 2, 6)
    m, k, n = x1.shape[-2], x1.shape[-1], x2.shape[-1]
    _checks.fits(x2.shape[-2] == k, f"x1 {shape_text(x1)} cannot be multiplied by x2 {shape_text(x2)}")
    _checks.supported(k <= MAX_DEPTH, f"k is {k}; sums of more than {MAX_DEPTH} products may not fit an int32")
    try:
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except RuntimeError:
        _checks.fits(False, f"the batches of x1 {shape_text(x1)} and x2 {shape_text(x2)} cannot be broadcast")
    shape = (*batch, m, n)

    dtype = torch.int8 if output_dtype is None else output_dtype
    _checks.supported(dtype in _OUTPUTS, f"output_dtype is {dtype}; supported: int8, float16, bfloat16, int32")
    origin = " (made by npu_trans_quant_param)" if scale.dtype is torch.int64 else ""
    _checks.dtype("scale", scale, (torch.float32, torch.bfloat16), origin)
    _check_per_column("scale", scale, n)
    if offset is not None:
        _checks.dtype("offset", offset, (torch.float32,))
        _check_per_column("offset", offset, n)
        _checks.supported(dtype is torch.int8, f"offset is for int8 results, not for {dtype}")
    if pertoken_scale is not None:
        _checks.dtype("pertoken_scale", pertoken_scale, (torch.float32,))
        fits = tuple(pertoken_scale.shape) == (m,)
        _checks.fits(fits, f"pertoken_scale is {shape_text(pertoken_scale)}; it must be ({m},)")
        scaled = dtype in (torch.float16, torch.bfloat16)
        _checks.supported(scaled, f"pertoken_scale is for float16 and bfloat16 results, not for {dtype}")
    if bias is not None:
        _checks.dtype("bias", bias, (torch.int32, *FLOATS))
        if bias.dtype is not torch.int32:
            scaled = dtype in (torch.float16, torch.bfloat16)
            _checks.supported(scaled, f"a bias that is no int32 is for float16 and bfloat16 results, not for {dtype}")
        allowed = [(n,), (*batch, 1, n)] if len(shape) == 3 else [(n,)]
        wanted = " or ".join(str(tuple(shape)) for shape in allowed)
        _checks.fits(tuple(bias.shape) in allowed, f"bias is {shape_text(bias)}; it must be {wanted}")
    return dtype, shape


def _check_per_column(name: str, tensor: Tensor, columns: int) -> None:
    fits = tensor.dim() == 1 and tensor.shape[0] in (1, columns)
    _checks.fits(fits, f"{name} is {shape_text(tensor)}; it must be (1,) or ({columns},)")


define_operator("quant_matmul", _SCHEMA, _eager, _fake)
