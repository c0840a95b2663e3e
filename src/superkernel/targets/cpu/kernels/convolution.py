"""targets.cpu.kernels.convolution: images, filters and a bias by name in, the ops that convolve them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....errors import UnsupportedError
from ....model.op import Op, Place
from . import winograd
from .convolution_problem import (
    ConvolutionProblem,
    UnitSize,
    axis_names,
    choose_unit_size,
    convolution_op,
    float_scratch,
    is_contiguous,
    pixel_step,
)
from .matmul import ELEMENT_BYTES, matmul_op
from .shipping import Tensor, parameters, place, shipped

_MULTIPLICATIONS_PER_BLOCK = 16_384  # least work of a block
_ELEMENTS_PER_BLOCK = 4_096  # least elements that a block copies
_SKINNY_ROWS = 32  # up to so many positions a pointwise convolution is bound by its weights, as in skinny.h
# Upper limits of sizes in convolution.cpp and depthwise.cpp, for the scratch memory
_PATCH_CHUNK, _GATHERED_ROWS, _TILE_ROWS, _TILE_COLUMNS, _CHANNEL_PART = 256, 96, 6, 64, 64


_TILING = parameters("transposed taps_inner most_positions most_filters")
_COPY = parameters(
    f"in:input out:out images channels {axis_names('input')} input_batch input_channel {axis_names('input_stride')}"
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
) -> list[Op]:
    _check_dtypes(input, weight, bias, out)
    steps = stride, padding, dilation, output_padding
    problem = ConvolutionProblem.of(input, weight, bias, out, steps, transposed, groups)
    if problem.is_depthwise:
        return [_depthwise(problem, cores, scratch)]
    if (product := _as_matmul(problem, cores)) is not None:
        return [product]
    copies: list[Op] = []
    if not problem.channels_adjacent:
        copy, problem = _channels_last(problem, cores, scratch)
        copies.append(copy)
    if winograd.fits(problem):
        return copies + winograd.winograd(problem, cores, _block_count(problem, cores), scratch)
    return [*copies, _tiled(problem, cores, scratch)]


def _check_dtypes(input: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    dtypes = {tensor.dtype for tensor in (input, weight, out, bias) if tensor is not None}
    if len(dtypes) > 1 or not dtypes <= set(ELEMENT_BYTES):
        known = ", ".join(ELEMENT_BYTES)
        raise UnsupportedError(f"convolution of {', '.join(sorted(dtypes))}; on the CPU there are kernels for {known}")
    if len(input.shape) not in (3, 4, 5):
        raise UnsupportedError(f"convolution in {len(input.shape) - 2} dimensions; one to three have a kernel")


def _tiled(problem: ConvolutionProblem, cores: int, scratch: Callable[[int], Place]) -> Op:
    """Patches times filters in register tiles."""
    blocks = _block_count(problem, cores)
    size = choose_unit_size(problem, blocks)
    extras = [int(problem.transposed), int(problem.taps_inner), size.positions, size.filters]
    room = float_scratch(scratch, cores, _scratch_floats(size))
    return convolution_op("convolution", problem, room, blocks, _TILING, extras)


def _scratch_floats(size: UnitSize) -> int:
    rows, columns = _round_up(size.positions, _TILE_ROWS), _round_up(size.filters, _TILE_COLUMNS)
    return rows * columns + (columns + _GATHERED_ROWS) * _PATCH_CHUNK


def _depthwise(problem: ConvolutionProblem, cores: int, scratch: Callable[[int], Place]) -> Op:
    room = float_scratch(scratch, cores, (problem.taps + 1) * _CHANNEL_PART)
    return convolution_op("depthwise", problem, room, _block_count(problem, cores))


def _block_count(problem: ConvolutionProblem, cores: int) -> int:
    return max(1, min(cores, problem.multiplications // _MULTIPLICATIONS_PER_BLOCK))


def _channels_last(
    problem: ConvolutionProblem, cores: int, scratch: Callable[[int], Place]
) -> tuple[Op, ConvolutionProblem]:
    """An op that copies the input to scratch memory in which channels are neighbours, and the problem that reads it."""
    source = problem.input
    images, channels, *sizes = source.shape
    memory = scratch(max(1, source.numel) * source.itemsize)
    depth, height, width = sizes
    strides = (depth * height * width * channels, 1, height * width * channels, width * channels, channels)
    copied = replace(source, name=memory.name, offset=memory.offset, strides=strides)
    # Planes without gaps are one line: vectors then run over the ends of rows.
    dense = is_contiguous(sizes, source.strides[2:])
    lines = (1, 1, depth * height * width) if dense else tuple(sizes)
    steps = (0, 0, 1) if dense else source.strides[2:]
    blocks = max(1, min(cores, source.numel // _ELEMENTS_PER_BLOCK))
    dtype = source.dtype
    defines = (f"SK_CHANNELS_LAST_{dtype.upper()}",)
    kernel = shipped(
        "channels_last.cpp", f"channels_last_{dtype}", _COPY, blocks=blocks, op_type="Transpose", defines=defines
    )
    arguments: list[Place | int] = [place(source), memory, images, channels, *lines, *source.strides[:2], *steps]
    return Op(kernel, arguments, "channels_last"), replace(problem, input=copied)


def _as_matmul(problem: ConvolutionProblem, cores: int) -> Op | None:
    """A pointwise convolution as a matmul, where that has the faster kernel: few positions, or channels in planes."""
    step, out_step = (pixel_step(image.shape[2:], image.strides[2:]) for image in (problem.input, problem.out))
    if not problem.is_pointwise or step == 0 or out_step == 0:
        return None
    images, channels = problem.input.shape[:2]
    filters, positions = problem.out.shape[1], problem.positions
    weight, bias = problem.weight, problem.bias
    if positions == 1 or (images == 1 and positions <= _SKINNY_ROWS):
        rows, out_rows = (problem.input.strides[0], problem.out.strides[0]) if positions == 1 else (step, out_step)
        a = replace(problem.input, shape=(images * positions, channels), strides=(rows, problem.input.strides[1]))
        b = replace(weight, shape=(channels, filters), strides=(weight.strides[1], weight.strides[0]))
        out = replace(problem.out, shape=(images * positions, filters), strides=(out_rows, problem.out.strides[1]))
        return matmul_op(a, b, out, bias, cores=cores, name="convolution")
    if step != 1 or out_step != 1 or channels == 1:
        return None
    a = replace(weight, shape=(images, filters, channels), strides=(0, *weight.strides[:2]))
    b = replace(problem.input, shape=(images, channels, positions), strides=(*problem.input.strides[:2], 1))
    out = replace(problem.out, shape=(images, filters, positions), strides=(*problem.out.strides[:2], 1))
    if bias is not None:
        bias = replace(bias, shape=(filters, 1), strides=(*bias.strides, 0))
    return matmul_op(a, b, out, bias, cores=cores, name="convolution")


def _round_up(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple
