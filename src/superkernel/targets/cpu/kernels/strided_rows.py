"""targets.cpu.kernels.lines: tensors and a dimension in, the sizes and strides of their lines along it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import UnsupportedError
from .shipping import Tensor

_DIRECTIONS = 3  # around a line, as in strided_rows.h

# dtype -> the type of its elements in C++
ELEMENTS = {
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "Float16",
    "bfloat16": "Bfloat16",
    "float32": "float",
    "float64": "double",
}

_ELEMENTS_PER_BLOCK = 4096  # one more block is worth its while if it takes over this much


@dataclass(frozen=True)
class Lines:
    """Lines along one dimension of tensors that agree in all others."""

    around: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # per tensor: along, then from line to line

    @property
    def count(self) -> int:
        total = 1
        for size in self.around:
            total *= size
        return total

    def blocks(self, length: int, cores: int) -> int:
        return max(1, min(cores, self.count, self.count * length // _ELEMENTS_PER_BLOCK))


def lines_of(operator: str, dim: int, *tensors: Tensor) -> Lines:
    """Dimensions that lie in memory as one, in all tensors, become one."""
    if not tensors[0].shape:  # a number is a line of one
        return Lines((1,) * _DIRECTIONS, ((1, 0, 0, 0),) * len(tensors))
    rank = len(tensors[0].shape)
    dim += rank if dim < 0 else 0
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []  # per direction, of each tensor
    for other in range(rank):
        size, step = tensors[0].shape[other], tuple(tensor.strides[other] for tensor in tensors)
        if other == dim or size == 1:
            continue
        if steps and all(before == size * now for before, now in zip(steps[-1], step, strict=True)):
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    missing = _DIRECTIONS - len(sizes)
    if missing < 0:
        raise UnsupportedError(f"{operator} of a tensor with more than {_DIRECTIONS} strided dimensions beside {dim}")
    sizes, steps = [1] * missing + sizes, [(0,) * len(tensors)] * missing + steps
    strides = tuple(
        (tensor.strides[dim], *(step[position] for step in steps)) for position, tensor in enumerate(tensors)
    )
    return Lines(tuple(sizes), strides)


def line_params(*names: str) -> tuple[str, ...]:
    """The parameters that `Lines` gives: sizes around, then strides of each tensor."""
    sizes = [f"size{direction}" for direction in range(_DIRECTIONS)]
    strides = [f"{name}_{step}" for name in names for step in ("along", *range(_DIRECTIONS))]
    return tuple(f"scalar:{name}:int64" for name in (*sizes, *strides))


def line_arguments(lines: Lines) -> list[int]:
    return [*lines.around, *(stride for strides in lines.strides for stride in strides)]


def element(operator: str, tensor: Tensor, known: Sequence[str] = tuple(ELEMENTS)) -> str:
    """The C++ type of a tensor's elements."""
    if tensor.dtype not in known:
        raise UnsupportedError(f"{operator} of {tensor.dtype}; on the CPU there are kernels for {', '.join(known)}")
    return ELEMENTS[tensor.dtype]
