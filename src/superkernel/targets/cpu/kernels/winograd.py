"""targets.cpu.kernels.winograd: a convolution by 3 x 3 filters in, the two ops of Winograd's algorithm out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ....model.op import Op, Place
from .convolution_problem import ConvolutionProblem, convolution_op, float_scratch
from .shipping import parameters, place, shipped

_POINTS = 16
_TILE_ROWS = 6
_MOST_TILE_COLUMNS = 64  # of the kernels, with AVX-512
_LANES = 16  # channels fill the widest vectors
_FEWEST_TILES = 48  # with fewer the transform of the filters costs more than it saves
_FEWEST_FILTERS = 16
_UNIT_BYTES = 700 * 1024  # transformed tiles and products of a unit, in the L2 cache
_UNIT_FILTERS = 64  # products that are kept at a time, with AVX2

_FILTERS = parameters(
    "in:weight out:transformed channels filters weight_filter weight_channel "
    "weight_stride_0 weight_stride_1 weight_stride_2"
)


def fits(problem: ConvolutionProblem) -> bool:
    """Whether the kernels compute it, and faster than direct sums. Depends on nothing but the problem: bits differ."""
    plain = set(problem.stride) == set(problem.dilation) == {1} and problem.groups == 1 and not problem.transposed
    adjacent = problem.channels_adjacent and problem.out.strides[1] == 1
    return (
        plain
        and adjacent
        and problem.weight.shape[2:] == (1, 3, 3)
        and problem.input.shape[2] == 1
        and problem.padding[0] == 0
        and problem.input.dtype == "float32"
        and problem.channels % _LANES == 0
        and problem.filters >= _FEWEST_FILTERS
        and problem.input.shape[0] * _tiles(problem) >= _FEWEST_TILES
    )


def winograd(problem: ConvolutionProblem, cores: int, blocks: int, scratch: Callable[[int], Place]) -> list[Op]:
    """Two ops: the filters are transformed, then the convolution reads them."""
    channels, filters = problem.channels, problem.filters
    columns = -(-filters // _MOST_TILE_COLUMNS) * _MOST_TILE_COLUMNS
    transformed = scratch(_POINTS * channels * columns * 4)
    kernel = shipped("winograd.cpp", "winograd_filters_float32", _FILTERS, blocks=blocks, op_type="ConvolutionFilters")
    strides = problem.weight.strides
    arguments: list[Place | int] = [place(problem.weight), transformed, channels, filters, *strides]
    transform = Op(kernel, arguments, "convolution_filters")
    tiles = unit_tiles(problem, blocks)
    held = -(-tiles // _TILE_ROWS) * _TILE_ROWS
    room = float_scratch(scratch, cores, _POINTS * held * (channels + 4 * _MOST_TILE_COLUMNS))
    weight = replace(problem.weight, name=transformed.name, offset=transformed.offset)
    reads = replace(problem, weight=weight)
    return [transform, convolution_op("winograd", reads, room, blocks, parameters("unit_tiles"), [tiles])]


def unit_tiles(problem: ConvolutionProblem, blocks: int) -> int:
    """Tiles of a unit of work: few idle rows of register tiles, equal shares, and all of it in the L2 cache."""
    tiles, images = _tiles(problem), problem.input.shape[0]
    row_bytes = _POINTS * (problem.channels + _UNIT_FILTERS) * 4
    most = max(_TILE_ROWS, _UNIT_BYTES // row_bytes)
    fewest_parts = -(-tiles // most)
    best, least = tiles, math.inf
    for parts in range(fewest_parts, fewest_parts + 4 * blocks):
        count = -(-tiles // parts)
        rows = -(-images * parts // blocks) * -(-count // _TILE_ROWS) * _TILE_ROWS
        if rows < least:
            best, least = count, rows
    return best


def _tiles(problem: ConvolutionProblem) -> int:
    height, width = problem.out.shape[3:]
    return -(-height // 2) * -(-width // 2)
