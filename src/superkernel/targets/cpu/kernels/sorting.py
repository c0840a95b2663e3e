"""targets.cpu.kernels.sorting: a tensor by name in, one op that sorts its rows out: sort, topk."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import UnsupportedError
from ....model.op import Op, Place
from ....model.params import DTYPES
from .shipping import Tensor, parameters, place, shipped
from .strided_rows import element, row_arguments, row_params, strided_rows

_MOST_SELECTED = 64  # as in sorting.cpp: so many are sorted without scratch memory
_LONGEST = 2**32 - 1  # the largest index of the lists

_PARAMS = (
    *parameters("in:self out:values out:indices workspace:room length count largest"),
    *row_params("self", "values", "indices"),
)

Scratch = Callable[[int], Place]


def sort(
    self: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    out0: Tensor,
    out1: Tensor,
    cores: int,
    scratch: Scratch,
) -> Op:
    """Always stable, with or without `stable`."""
    length = self.shape[dim] if self.shape else 1
    return _sorted_op("sort", (self, out0, out1), dim, length, descending, cores, scratch)


def topk(
    self: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out0: Tensor,
    out1: Tensor,
    cores: int,
    scratch: Scratch,
) -> Op:
    """Always sorted, and of equal elements the first: both are among the results that torch may give."""
    length = self.shape[dim] if self.shape else 1
    if not 0 <= k <= length:
        raise UnsupportedError(f"topk: {k} of the {length} elements of dimension {dim}")
    return _sorted_op("topk", (self, out0, out1), dim, k, largest, cores, scratch)


def _sorted_op(
    operator: str, tensors: tuple[Tensor, ...], dim: int, count: int, largest: bool, cores: int, scratch: Scratch
) -> Op:
    """`tensors`: what is sorted, the values and the indices."""
    self, values, indices = tensors
    length = self.shape[dim] if self.shape else 1
    defines = (f"SK_ELEMENT={element(operator, self)}",)
    if indices.dtype != "int64" or values.dtype != self.dtype:
        raise UnsupportedError(f"{operator} of {self.dtype} to {values.dtype} and {indices.dtype}")
    if length > _LONGEST:
        raise UnsupportedError(f"{operator} of lines of {length} elements; at most {_LONGEST} have a kernel")
    rows = strided_rows(operator, dim, self, values, indices)
    key_bytes = 8 if DTYPES[self.dtype][0] == 8 else 4
    room = scratch(cores * length * 2 * (key_bytes + 4) if count > _MOST_SELECTED else 8)
    blocks = rows.blocks(length, cores)
    kernel = shipped("sorting.cpp", "sorted_rows", _PARAMS, blocks=blocks, op_type=operator, defines=defines)
    arguments: list[Place | int] = [place(self), place(values), place(indices), room, length, count, int(largest)]
    return Op(kernel, [*arguments, *row_arguments(rows)], operator)
