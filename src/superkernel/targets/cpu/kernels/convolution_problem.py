"""targets.cpu.kernels.convolution_problem: tensors and steps of a convolution -> checked, as its kernels take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....errors import GraphError
from ....model.op import Op, Place
from .shipping import Tensor, parameters, place, shipped, shown

AXES = 3  # depth, row, column; a convolution in fewer dimensions has axes of size 1

# Estimated cycles per element, measured with AVX2. Gathering and packing are slow where they take single elements.
_CYCLES_PER_MULTIPLICATION = 1 / 14
_GATHER_CYCLES, _SLOW_GATHER_CYCLES = 0.2, 1.0
_PACK_CYCLES, _SLOW_PACK_CYCLES = 0.5, 1.3
_MOST_SUMS = 98_304  # of a unit: a part of an L2 cache
_MOST_FILTERS = 256
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def axis_names(name: str) -> str:
    """The names of a parameter that every axis has."""
    return " ".join(f"{name}_{axis}" for axis in range(AXES))


_SIZES = " ".join(map(axis_names, ("input", "filter", "out", "stride", "padding", "dilation")))
_SHAPE = parameters(
    f"images groups channels filters {_SIZES} input_batch input_channel {axis_names('input_stride')} "
    f"out_batch out_channel {axis_names('out_stride')} "
    f"weight_group weight_filter weight_channel {axis_names('weight_stride')}"
)
_BUFFERS = parameters("in:input in:weight out:out workspace:room")
_BIAS = parameters("in:bias bias_step")


@dataclass(frozen=True)
class ConvolutionProblem:
    """Tensors with a batch, channels and three axes; the steps of every axis. Filters are those of one group."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    out: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        steps: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
        transposed: bool,
        groups: int,
    ) -> ConvolutionProblem:
        """`steps`: stride, padding, dilation and output padding, as many of each as there are axes, or one for all."""
        ranks = {len(tensor.shape) for tensor in (input, weight, out)}
        axes = len(input.shape) - 2
        if len(ranks) > 1 or any(len(step) not in (1, axes) for step in steps):
            tensors = f"{shown(input)}, {shown(weight)} and {shown(out)}"
            raise GraphError(f"convolution: {tensors} need equal ranks, and every step one number, or one per axis")
        if groups < 1 or any(number < low for step, low in zip(steps, (1, 0, 1, 0), strict=True) for number in step):
            raise GraphError(f"convolution in {groups} groups: stride and dilation are at least 1, paddings at least 0")
        stride, padding, dilation, output_padding = (
            _with_three_axes(step, axes, missing) for step, missing in zip(steps, (1, 0, 1, 0), strict=True)
        )
        problem = cls(
            _image(input), _image(weight), bias, _image(out), stride, padding, dilation, bool(transposed), groups
        )
        expected = problem._out_sizes(output_padding)
        channels = problem.weight.shape[0] if problem.transposed else problem.weight.shape[1] * groups
        filters = problem.weight.shape[1] * groups if problem.transposed else problem.weight.shape[0]
        if (
            problem.input.shape[1] != channels
            or problem.out.shape != (problem.input.shape[0], filters, *expected)
            or problem.weight.shape[0] % groups
            or (bias is not None and tuple(bias.shape) != (filters,))
        ):
            raise GraphError(
                f"convolution: {shown(input)} by {shown(weight)} in {groups} groups cannot give {shown(out)}"
            )
        return problem

    def _out_sizes(self, output_padding: Sequence[int]) -> tuple[int, ...]:
        sizes = []
        for axis in range(AXES):
            size, reach = self.input.shape[2 + axis], self.dilation[axis] * (self.weight.shape[2 + axis] - 1)
            stride, padding = self.stride[axis], self.padding[axis]
            if self.transposed:
                sizes.append((size - 1) * stride - 2 * padding + reach + output_padding[axis] + 1)
            else:
                sizes.append((size + 2 * padding - reach - 1) // stride + 1)
        return tuple(sizes)

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.input.shape[1] // self.groups

    @property
    def filters(self) -> int:
        return self.out.shape[1] // self.groups

    @property
    def taps(self) -> int:
        """Elements of a filter per channel."""
        return math.prod(self.weight.shape[2:])

    @property
    def positions(self) -> int:
        return math.prod(self.out.shape[2:])

    @property
    def phases(self) -> int:
        """A transposed convolution is one convolution per remainder of the output's coordinates by the stride."""
        return math.prod(self.stride) if self.transposed else 1

    @property
    def multiplications(self) -> int:
        return self.out.numel * self.channels * max(1, self.taps // self.phases)

    @property
    def is_depthwise(self) -> bool:
        """Every channel has filters of its own, and vectors can run over channels or columns."""
        in_planes = self.input.strides[1] != 1 or self.out.strides[1] != 1
        return self.channels == 1 < self.groups and not self.transposed and (self.filters == 1 or in_planes)

    @property
    def is_pointwise(self) -> bool:
        """Every output is computed from the input at the same position only, with the same weights."""
        plain = self.taps == 1 and self.groups == 1 and set(self.stride) == {1} and set(self.padding) == {0}
        return plain and not self.transposed

    @property
    def channels_adjacent(self) -> bool:
        return self.input.strides[1] == 1 or self.input.shape[1] == 1

    @property
    def taps_inner(self) -> bool:
        """Whether the elements of a patch are numbered as torch keeps filters.

        Then packing filters is fast and gathering patches slow: for more filters than positions. The choice fixes the
        order of the sums, so it may depend on nothing but the problem.
        """
        as_in_torch = is_contiguous(self.weight.shape[1:], self.weight.strides[1:])
        return not self.transposed and as_in_torch and self.taps > 1 < self.channels and self.filters > self.positions

    @property
    def scalars(self) -> list[int]:
        """The parameters of every convolution kernel behind its buffers, as convolution_problem.h lists them."""
        filter_strides = self.weight.strides[:2]
        if self.transposed:  # the first dimension of the filters are the input channels
            of_weight = (self.channels * filter_strides[0], filter_strides[1], filter_strides[0])
        else:
            of_weight = (self.filters * filter_strides[0], filter_strides[0], filter_strides[1])
        sizes = self.input.shape[2:], self.weight.shape[2:], self.out.shape[2:]
        steps = self.stride, self.padding, self.dilation
        numbers = [self.input.shape[0], self.groups, self.channels, self.filters]
        numbers += [number for triple in (*sizes, *steps) for number in triple]
        strides = list(self.input.strides)
        if self.input.shape[1] == 1:
            strides[1] = 1  # whatever torch says of a single channel: it is its own neighbour
        return [*numbers, *strides, *self.out.strides, *of_weight, *self.weight.strides[2:]]


@dataclass(frozen=True)
class UnitSize:
    """The most positions and filters that a unit of work covers."""

    positions: int
    filters: int


def choose_unit_size(problem: ConvolutionProblem, blocks: int) -> UnitSize:
    """The division with the least estimated time of the block that has most to do."""
    phases = problem.phases
    positions = math.prod(
        -(-size // (stride if problem.transposed else 1))
        for size, stride in zip(problem.out.shape[2:], problem.stride, strict=True)
    )
    positions, filters = max(1, positions), max(1, problem.filters)
    depth = max(1, problem.channels * problem.taps // phases)
    others = problem.input.shape[0] * problem.groups * phases
    fast_pack = problem.taps_inner or problem.weight.strides[0 if problem.transposed else 1] == 1
    pack = _PACK_CYCLES if fast_pack else _SLOW_PACK_CYCLES
    gather = _SLOW_GATHER_CYCLES if problem.taps_inner else _GATHER_CYCLES
    best, least = UnitSize(1, 1), math.inf
    for filter_parts in _PARTS:
        size = -(-filters // filter_parts)
        if filter_parts > 1:
            size = -(-size // 16) * 16
        if size > _MOST_FILTERS:
            continue
        for position_parts in _PARTS:
            rows = -(-positions // position_parts)
            if rows * size > _MOST_SUMS and position_parts != _PARTS[-1]:
                continue
            units = others * -(-filters // size) * -(-positions // rows)
            multiplied = -(-rows // 6) * 6 * -(-size // 8) * 8 * _CYCLES_PER_MULTIPLICATION
            cost = -(-units // blocks) * depth * (multiplied + rows * gather + size * pack)
            if cost < least:
                best, least = UnitSize(rows, size), cost
            if rows == 1:
                break
        if size <= 16:
            break
    return best


def convolution_op(
    source: str,
    problem: ConvolutionProblem,
    room: Place,
    blocks: int,
    more_params: tuple[str, ...] = (),
    more_arguments: Sequence[int] = (),
) -> Op:
    """A call of the kernel of this source; each block has an equal part of `room`."""
    symbol, params = f"{source}_{problem.input.dtype}", (*_BUFFERS, *_SHAPE, *more_params)
    arguments: list[Place | int] = [place(problem.input), place(problem.weight), place(problem.out), room]
    arguments += [*problem.scalars, *more_arguments]
    if problem.bias is not None:
        symbol, params = f"{symbol}_bias", (*params, *_BIAS)
        arguments += [place(problem.bias), *problem.bias.strides]
    defines = (f"SK_{source.upper()}_{problem.input.dtype.upper()}",)
    kernel = shipped(f"{source}.cpp", symbol, params, blocks=blocks, op_type="Convolution", defines=defines)
    return Op(kernel, arguments, "convolution")


def float_scratch(scratch: Callable[[int], Place], cores: int, floats: int) -> Place:
    """Scratch memory with as many floats for every block."""
    return scratch(max(1, cores) * floats * 4)


def _with_three_axes(step: Sequence[int], axes: int, missing: int) -> tuple[int, ...]:
    given = list(step) if len(step) == axes else list(step) * axes
    return (*(missing,) * (AXES - axes), *given)


def _image(tensor: Tensor) -> Tensor:
    """The tensor with three axes; those that it lacks have one element and a stride of 0."""
    missing = AXES + 2 - len(tensor.shape)
    shape = (*tensor.shape[:2], *(1,) * missing, *tensor.shape[2:])
    return replace(tensor, shape=shape, strides=(*tensor.strides[:2], *(0,) * missing, *tensor.strides[2:]))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return pixel_step(shape, strides) == 1


def pixel_step(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The distance in memory between neighbours where it is the same for all of them, else 0. A single pixel: 1."""
    step = expected = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if expected == 0:
            step = expected = stride
        if stride != expected:
            return 0
        expected *= size
    return step if expected else 1
