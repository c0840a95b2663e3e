"""targets.cpu.kernels.scatter: tensors by name in, one op out: scatter_reduce, index_put, histc, searchsorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....errors import UnsupportedError
from ....model.op import Op, Place
from ....model.params import scalar_bits
from .shipping import Tensor, broadcast_strides, parameters, place, shipped, shown
from .strided_rows import NUMBERS, StridedRows, element, row_arguments, row_params, strided_rows

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")  # in the order of scatter.cpp
_MOST_INDICES = 3
_ELEMENTS_PER_BLOCK = 4096  # least work of a block


def scatter_reduce_(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor,
    cores: int,
    scratch: Callable[[int], Place],
) -> Op:
    """In place: `out` is self."""
    defines = (f"SK_ELEMENT={element('scatter_reduce', self, NUMBERS)}", "SK_SCATTER_REDUCE")
    if src.dtype != self.dtype or index.dtype != "int64":
        raise UnsupportedError(f"scatter_reduce of {src.dtype} into {self.dtype} by {index.dtype}")
    if reduce not in _REDUCTIONS:
        raise UnsupportedError(f"scatter_reduce by {reduce!r}; there are kernels for {', '.join(_REDUCTIONS)}")
    if not self.shape or not index.shape:
        raise UnsupportedError("scatter_reduce of a tensor without dimensions")
    rows = strided_rows("scatter_reduce", dim, index, src, self)
    of_index, of_src, of_self = rows.strides
    rows = StridedRows(rows.outer_sizes, (of_self, of_index, of_src))
    size, length = self.shape[dim], index.shape[dim]
    params = parameters("inout:self in:index in:src workspace:room length size how include_self")
    params += row_params("self", "index", "src")
    blocks = rows.blocks(size + length, cores)
    kernel = shipped("scatter.cpp", "scatter_reduce", params, blocks=blocks, op_type="scatter_reduce", defines=defines)
    room = scratch(cores * size * 16)
    numbers = [length, size, _REDUCTIONS.index(reduce), int(include_self)]
    return Op(kernel, [place(self), place(index), place(src), room, *numbers, *row_arguments(rows)], "scatter_reduce")


def index_put_(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *, out: Tensor, cores: int
) -> Op:
    """In place: `out` is self. The indices must be adjacent, and each contiguous or evenly strided in memory."""
    of_elements = element("index_put", self)
    given = [position for position, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if values.dtype != self.dtype or any(index.dtype != "int64" for index in tensors):
        dtypes = ", ".join(index.dtype for index in tensors)
        raise UnsupportedError(f"index_put of {values.dtype} into {self.dtype} by {dtypes}")
    if not 1 <= len(given) <= _MOST_INDICES or given != list(range(given[0], given[-1] + 1)):
        raise UnsupportedError(f"index_put by {len(given)} indices; up to {_MOST_INDICES} side by side have a kernel")
    index_shape = _broadcast([index.shape for index in tensors])
    first, end = given[0], given[-1] + 1
    whole = (*self.shape[:first], *index_shape, *self.shape[end:])
    value_strides = _strides_as(values, whole)
    index_strides = [_strides_as(index, index_shape) for index in tensors]
    length, steps = _collapsed(index_shape, [*index_strides, value_strides[first : first + len(index_shape)]])
    *index_steps, value_step = steps
    outer = (*self.shape[:first], *self.shape[end:])
    self_strides = (*self.strides[:first], *self.strides[end:])
    values_outer = (*value_strides[:first], *value_strides[first + len(index_shape) :])
    views = [
        Tensor("", 0, self.dtype, (length, *outer), (step, *strides))
        for step, strides in ((0, self_strides), (value_step, values_outer))
    ]
    rows = strided_rows("index_put", 0, *views)
    numbered = " ".join(f"in:index{n} step{n} size_of{n} stride{n}" for n in range(_MOST_INDICES))
    params = parameters(f"inout:self in:values length indices accumulate {numbered}")
    params += row_params("self", "values")
    arguments: list[Any] = [place(self), place(values), length, len(tensors), int(accumulate)]
    for n in range(_MOST_INDICES):
        if n < len(tensors):
            dim = first + n
            arguments += [place(tensors[n]), index_steps[n], self.shape[dim], self.strides[dim]]
        else:
            arguments += [place(tensors[0]), 0, 0, 0]
    blocks = max(1, min(cores, rows.count, rows.count * length // _ELEMENTS_PER_BLOCK))
    defines = (f"SK_ELEMENT={of_elements}", "SK_INDEX_PUT")
    kernel = shipped("scatter.cpp", "index_put", params, blocks=blocks, op_type="index_put", defines=defines)
    return Op(kernel, [*arguments, *row_arguments(rows)], "index_put")


def histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0, *, out: Tensor, cores: int) -> Op:
    of_elements = element("histc", self, ("float32", "float64"))
    if out.dtype != self.dtype:
        raise UnsupportedError(f"histc of {self.dtype} to {out.dtype}")
    for what, value in (("min", min), ("max", max)):
        if not isinstance(value, int | float) or value - value != 0:
            raise UnsupportedError(f"histc: {what} is {value!r}; a finite number is needed")
        scalar_bits(float(value), self.dtype, f"histc: {what}", UnsupportedError)
    if min > max:
        raise UnsupportedError(f"histc from {min} to {max}")
    rows = strided_rows("histc", -1, self)
    length = self.shape[-1] if self.shape else 1
    params = parameters("in:self out:out length bins scalar:least:float64 scalar:most:float64 step")
    params += row_params("self")
    blocks = 1 if rows.count * length < 4 * _ELEMENTS_PER_BLOCK or bins < cores else cores
    defines = (f"SK_ELEMENT={of_elements}", "SK_HISTC")
    kernel = shipped("scatter.cpp", "histc", params, blocks=blocks, op_type="histc", defines=defines)
    numbers = [length, bins, float(min), float(max), out.strides[0]]
    return Op(kernel, [place(self), place(out), *numbers, *row_arguments(rows)], "histc")


def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    out: Tensor,
    cores: int,
) -> Op:
    return _search("searchsorted", sorted_sequence, self, right or side == "right", sorter, out, cores)


def bucketize(
    self: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False, out: Tensor, cores: int
) -> Op:
    return _search("bucketize", boundaries, self, right, None, out, cores)


def _search(
    operator: str, sequence: Tensor, values: Tensor | float, right: bool, sorter: Tensor | None, out: Tensor, cores: int
) -> Op:
    if isinstance(values, bool | int | float):
        raise UnsupportedError(f"{operator} of a number; pass a tensor")
    of_elements = element(operator, values, NUMBERS)
    if sequence.dtype != values.dtype:
        raise UnsupportedError(f"{operator} of {values.dtype} among {sequence.dtype}")
    if sorter is not None and sorter.dtype != "int64":
        raise UnsupportedError(f"{operator} with a sorter of {sorter.dtype}")
    if out.dtype not in ("int32", "int64"):
        raise UnsupportedError(f"{operator} to {out.dtype}")
    views = [_value_by_value(values.shape, tensor.strides, 1) for tensor in (values, out)]
    for tensor in (sequence, sorter or sequence):  # a sequence for all values, or one per row of them
        outer = tensor.strides[:-1] if len(tensor.shape) > 1 else (0,) * (len(values.shape) - 1)
        views.append(_value_by_value(values.shape, (*outer, 0)[: len(values.shape)], tensor.strides[-1]))
    rows = strided_rows(operator, 0, *views)
    params = parameters("in:sequence in:values out:out in:sorter length right sorted")
    params += row_params("values", "out", "sequence", "sorter")
    defines = (f"SK_ELEMENT={of_elements}", f"SK_SEARCH={'int32_t' if out.dtype == 'int32' else 'int64_t'}")
    kernel = shipped("scatter.cpp", "search", params, blocks=rows.blocks(8, cores), op_type=operator, defines=defines)
    tensors = [place(tensor) for tensor in (sequence, values, out, sorter or sequence)]
    numbers = [sequence.shape[-1], int(right), int(sorter is not None)]
    return Op(kernel, [*tensors, *numbers, *row_arguments(rows)], operator)


def _value_by_value(shape: Sequence[int], strides: Sequence[int], along: int) -> Tensor:
    return Tensor("", 0, "", (1, *shape), (along, *strides))


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def _strides_as(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    return broadcast_strides(tensor, shape, f"index_put: {shown(tensor)} cannot be broadcast to {tuple(shape)}")


def _collapsed(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
    """Several dimensions as one: how long it is, and the step of each tensor along it."""
    length, steps = 1, [0] * len(strides)
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            continue
        stride = [of_tensor[dim] for of_tensor in strides]
        if length == 1:
            steps = stride
        elif stride != [length * step for step in steps]:
            raise UnsupportedError("index_put by indices that do not lie in memory as one line")
        length *= shape[dim]
    return length, steps
