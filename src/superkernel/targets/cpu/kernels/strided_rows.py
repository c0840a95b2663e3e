"""targets.cpu.kernels.strided_rows: tensors and a dimension in, outer sizes and strides of their rows along it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import UnsupportedError
from .shipping import Tensor

_OUTER = 6  # outer dimensions, as in strided_rows.h

# dtype -> the type of its elements in C++
ELEMENTS = {
    "bool": "bool", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "float16": "Float16", "bfloat16": "Bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip
NUMBERS = tuple(dtype for dtype in ELEMENTS if dtype != "bool")

_ELEMENTS_PER_BLOCK = 4096  # least work of a block


@dataclass(frozen=True)
class StridedRows:
    """Rows along one dimension of tensors that agree in all others."""

    outer_sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # per tensor: along a row, then the outer strides

    @property
    def count(self) -> int:
        return math.prod(self.outer_sizes)

    def blocks(self, length: int, cores: int) -> int:
        return max(1, min(cores, self.count, self.count * length // _ELEMENTS_PER_BLOCK))


def strided_rows(operator: str, dim: int, *tensors: Tensor) -> StridedRows:
    """The rows along `dim`; outer dimensions that are contiguous with each other in all tensors are collapsed."""
    if not tensors[0].shape:  # a scalar is a row of length 1
        return StridedRows((1,) * _OUTER, ((1, *(0,) * _OUTER),) * len(tensors))
    rank = len(tensors[0].shape)
    dim += rank if dim < 0 else 0
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []  # per outer dimension, of each tensor
    for other in range(rank):
        size, step = tensors[0].shape[other], tuple(tensor.strides[other] for tensor in tensors)
        if other == dim or size == 1:
            continue
        if steps and all(before == size * now for before, now in zip(steps[-1], step, strict=True)):
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    missing = _OUTER - len(sizes)
    if missing < 0:
        raise UnsupportedError(f"{operator} of a tensor with more than {_OUTER} strided dimensions beside {dim}")
    sizes, steps = [1] * missing + sizes, [(0,) * len(tensors)] * missing + steps
    strides = tuple(
        (tensor.strides[dim], *(step[position] for step in steps)) for position, tensor in enumerate(tensors)
    )
    return StridedRows(tuple(sizes), strides)


def row_params(*names: str) -> tuple[str, ...]:
    """The parameters that hold `StridedRows`: outer sizes, then strides of each tensor."""
    sizes = [f"size{dimension}" for dimension in range(_OUTER)]
    strides = [f"{name}_{step}" for name in names for step in ("along", *range(_OUTER))]
    return tuple(f"scalar:{name}:int64" for name in (*sizes, *strides))


def row_arguments(rows: StridedRows) -> list[int]:
    return [*rows.outer_sizes, *(stride for strides in rows.strides for stride in strides)]


def element(operator: str, tensor: Tensor, known: Sequence[str] = tuple(ELEMENTS)) -> str:
    """The C++ type of a tensor's elements."""
    if tensor.dtype not in known:
        raise UnsupportedError(f"{operator} of {tensor.dtype}; on the CPU there are kernels for {', '.join(known)}")
    return ELEMENTS[tensor.dtype]
