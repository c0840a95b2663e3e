"""targets.cpu.kernels.swiglu_quant: tensors by name in, the op that dequantises, applies SwiGLU and quantises out."""

from __future__ import annotations

from dataclasses import replace

from ....errors import UnsupportedError
from ....model.op import Argument, Op
from .quant_matmul import DTYPES
from .shipping import Tensor, parameters, place, shipped, stride_params

_ELEMENTS_PER_BLOCK = 512  # least work of a block


def _matrix_params(name: str) -> tuple[str, ...]:
    return (f"in:{name}", *stride_params(name, "dtype row column"))


_OPTIONAL = ("weight_scale", "activation_scale", "bias", "quant_scale", "quant_offset")
_PARAMS = (
    *_matrix_params("x"),
    *parameters("out:y out:scale rows half left dynamic"),
    *(param for name in _OPTIONAL for param in _matrix_params(name)),
    *parameters("in:group_index groups group_step"),
)


def dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    quant_scale: Tensor | None,
    quant_offset: Tensor | None,
    group_index: Tensor | None,
    activate_left: bool,
    quant_mode: int,
    out0: Tensor,
    out1: Tensor,
    cores: int,
) -> Op:
    """The arguments are those that the operator accepts."""
    rows, width = x.shape
    if rows > 1 and tuple(out0.strides) != (width // 2, 1):
        raise UnsupportedError("dequant_swiglu_quant: a result that is not contiguous")
    arguments: list[Argument] = [*_matrix_arguments(x, x), place(out0), place(out1)]
    arguments += [rows, width // 2, int(activate_left), int(quant_mode == 1)]
    if activation_scale is not None:  # one element per row: a matrix of one column
        strides = (activation_scale.strides[0], 0)
        activation_scale = replace(activation_scale, shape=(rows, 1), strides=strides)
    for tensor in (weight_scale, activation_scale, bias, quant_scale, quant_offset):
        arguments += _matrix_arguments(tensor, x)
    if group_index is None:
        arguments += [place(x), -1, 0]
    else:
        arguments += [place(group_index), group_index.shape[0], group_index.strides[0]]
    blocks = max(1, min(cores, rows, rows * width // _ELEMENTS_PER_BLOCK))
    kernel = shipped("swiglu_quant.cpp", "swiglu_quant", _PARAMS, blocks=blocks, op_type="DequantSwigluQuant")
    return Op(kernel, arguments)


def _matrix_arguments(tensor: Tensor | None, instead: Tensor) -> list[Argument]:
    """Address, dtype, and strides by row and column (0: broadcast); the address of `instead` if it is missing."""
    if tensor is None:
        return [place(instead), 0, 0, 0]
    strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return [place(tensor), DTYPES[tensor.dtype], *[0] * (2 - len(strides)), *strides]
