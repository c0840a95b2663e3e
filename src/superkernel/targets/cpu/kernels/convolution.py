"""targets.cpu.kernels.convolution: an image, filters and a bias by name in, one op that convolves them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....errors import GraphError, UnsupportedError
from ....model.op import Op, Place
from .shipping import Tensor, parameters, place, shipped, shown, stride_params

_TILE = 64  # output positions that are computed together, or fewer, so that their patches stay in a cache
_TILE_BYTES = 256 * 1024
_FEWEST_FILTERS = 16  # of a part
_MULTIPLICATIONS_PER_BLOCK = 16_384  # least work of a block

_PARAMS = (
    *parameters(
        "in:input in:weight out:out workspace:room images groups channels filters height width filter_height "
        "filter_width out_height out_width step_row step_column pad_row pad_column dilation_row dilation_column"
    ),
    *stride_params("input weight out", "batch channel row column"),
    *parameters("tile parts"),
)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: Tensor,
    cores: int,
    scratch: Callable[[int], Place],
) -> Op:
    _check(input, weight, bias, out, transposed)
    images, filters, results = _image(input), _image(weight), _image(out)
    one_dimension = len(input.shape) == 3
    steps = [
        (missing, given[0]) if one_dimension else (given[0], given[-1])
        for given, missing in ((stride, 1), (padding, 0), (dilation, 1))
    ]
    count, channels, height, width = filters.shape
    if images.shape[1] != groups * channels or results.shape[1] != count or count % groups:
        raise GraphError(f"convolution: {shown(input)} by {shown(weight)} in {groups} groups cannot give {shown(out)}")
    if not _dense(filters.shape[1:], filters.strides[1:]):
        raise UnsupportedError("convolution by filters with gaps in memory")
    if results.shape[2] > 1 and results.strides[2] != results.shape[3] * results.strides[3]:
        raise UnsupportedError("convolution to rows with gaps in memory")
    depth = channels * height * width
    positions = results.shape[2] * results.shape[3]
    tile = max(1, min(_TILE, positions, _TILE_BYTES // (4 * max(1, depth))))
    units = images.shape[0] * groups * -(-positions // tile)
    work = images.shape[0] * positions * count * depth // _MULTIPLICATIONS_PER_BLOCK
    parts = max(1, min(-(-cores // max(1, units)), count // groups // _FEWEST_FILTERS, work))
    sizes = [images.shape[0], groups, channels, count // groups, *images.shape[2:], height, width, *results.shape[2:]]
    arguments: list[Any] = [place(input), place(weight), place(out), scratch(max(1, cores * tile * depth) * 4), *sizes]
    arguments += [number for pair in steps for number in pair]
    arguments += [*images.strides, *filters.strides, *results.strides, tile, parts]
    symbol, params = "convolution", _PARAMS
    if bias is not None:
        symbol, params = "convolution_bias", (*_PARAMS, "in:bias", "scalar:bias_step:int64")
        arguments += [place(bias), *bias.strides]
    blocks = max(1, min(cores, units * parts, work))
    kernel = shipped("convolution.cpp", symbol, params, blocks=blocks, op_type="Convolution")
    return Op(kernel, arguments, "convolution")


def _check(input: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, transposed: bool) -> None:
    if transposed:
        raise UnsupportedError("transposed convolution")
    dtypes = {tensor.dtype for tensor in (input, weight, out, bias) if tensor is not None}
    if dtypes != {"float32"}:
        raise UnsupportedError(f"convolution of {', '.join(sorted(dtypes))}; on the CPU there is a kernel for float32")
    if len(input.shape) not in (3, 4):
        raise UnsupportedError(f"convolution in {len(input.shape) - 2} dimensions; one or two have a kernel")


def _image(tensor: Tensor) -> Tensor:
    """Batches of channels of rows of columns; a one-dimensional image has one row, with a stride of 0."""
    shape, strides = tuple(tensor.shape), tuple(tensor.strides)
    if len(shape) == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], 0, strides[2])
    return replace(tensor, shape=shape, strides=strides)


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these dimensions fill their memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return expected == math.prod(shape)
