"""targets.cpu.kernels.quant_matmul: tensors by name in, the op that multiplies int8 matrices and scales out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import UnsupportedError
from ....model.op import Argument, Op
from .matmul import block_count
from .shipping import Tensor, parameters, place, shipped, stride_params

# As `DType` in quant_elements.h names them; 0 is a tensor that is not given.
DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 4, "int8": 5}

_FACTORS = ("scale", "pertoken_scale", "bias", "offset")
_PARAMS = (
    *parameters("in:x1 in:x2 out:out out_dtype batches m n k"),
    *stride_params("x1 x2 out"),
    *(param for name in _FACTORS for param in (f"in:{name}", *stride_params(name, "dtype batch step"))),
)


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: Any,
    group_sizes: Any,
    out: Tensor,
    cores: int,
) -> Op:
    """The arguments are those that the operator accepts; the element type of the result is that of `out`."""
    m, k = x1.shape[-2:]
    n = x2.shape[-1]
    batched_bias = bias if bias is not None and len(bias.shape) == 3 else None
    batches, steps = collapse_batch(
        out.shape[:-2], (x1, x2, out) if batched_bias is None else (x1, x2, out, batched_bias)
    )
    if out.strides[-1] != 1 and n > 1:
        raise UnsupportedError("quant_matmul: rows of the result that are not contiguous")
    arguments: list[Argument] = [place(x1), place(x2), place(out), DTYPES[out.dtype], batches, m, n, k]
    for tensor, step in zip((x1, x2, out), steps, strict=False):
        arguments += [step, *tensor.strides[-2:]]
    arguments += factor(scale, x1)
    arguments += factor(pertoken_scale, x1)
    arguments += factor(bias, x1, 0 if batched_bias is None else steps[3])
    arguments += factor(offset, x1)
    blocks = block_count(batches, m, n, k, 1, cores)
    return Op(shipped("quant_matmul.cpp", "quant_matmul", _PARAMS, blocks=blocks, op_type="QuantMatMul"), arguments)


def factor(tensor: Tensor | None, instead: Tensor, batch: int = 0) -> list[Argument]:
    """Address, dtype and strides of a tensor of one element per column, or one for all; `instead` if it is missing."""
    if tensor is None:
        return [place(instead), 0, 0, 0]
    step = 0 if tensor.shape[-1] == 1 else tensor.strides[-1]
    return [place(tensor), DTYPES[tensor.dtype], batch, step]


def collapse_batch(batch: Sequence[int], tensors: Sequence[Tensor]) -> tuple[int, list[int]]:
    """Batch dimensions as one: the number of matrices, and the batch stride of each tensor."""
    merged: list[tuple[int, list[int]]] = []  # size and strides of dimensions that remain, the innermost last
    for dimension in range(len(batch)):
        if batch[dimension] == 1:
            continue
        steps = [_batch_stride(tensor, dimension - len(batch)) for tensor in tensors]
        outer = merged[-1][1] if merged else []
        if merged and all(far == near * batch[dimension] for far, near in zip(outer, steps, strict=True)):
            merged[-1] = merged[-1][0] * batch[dimension], steps
        else:
            merged.append((batch[dimension], steps))
    if len(merged) > 1:
        raise UnsupportedError(f"batches of the shape {tuple(batch)}, which no single stride walks")
    return merged[0] if merged else (1, [0] * len(tensors))


def _batch_stride(tensor: Tensor, dimension: int) -> int:
    """0 where a tensor is repeated; `dimension` counts from the last batch dimension backwards."""
    at = len(tensor.shape) - 2 + dimension
    return 0 if at < 0 or tensor.shape[at] == 1 else tensor.strides[at]
