"""targets.cpu.kernels.grouped_mm: tensors by name in, one op that multiplies group by group out: experts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....errors import GraphError, UnsupportedError
from ....model.op import Op
from .matmul import matmul_op
from .shipping import Tensor, parameters, place, shipped, shown, stride_params
from .strided_rows import element

_DTYPES = ("float32", "bfloat16", "float16")
_MULTIPLICATIONS_PER_BLOCK = 16_384  # least work of a block
_GRANULE = 16  # as in grouped_mm.cpp: columns that one block computes

_PARAMS = (
    *parameters("in:a in:b out:out in:ends step groups m n k"),
    *stride_params("a b out", "group row column"),
)
_OFFSETS = {"int32": "int32_t", "int64": "int64_t"}


def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor, *, out: Tensor, cores: int) -> Op:
    """transformers::grouped_mm_fallback, which its models call for dtypes that torch has no grouped matmul for."""
    return _groups_of_rows(input, weight, offs, out, cores)


def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    *,
    out: Tensor,
    cores: int,
) -> Op:
    if bias is not None:
        raise UnsupportedError("grouped matmul with a bias")
    ranks = len(self.shape), len(mat2.shape)
    if offs is None:
        if ranks != (3, 3):
            raise UnsupportedError(f"grouped matmul of {shown(self)} and {shown(mat2)} without ends of groups")
        return matmul_op(self, mat2, out, cores=cores, name="grouped_mm")
    if ranks == (2, 3):
        return _groups_of_rows(self, mat2, offs, out, cores)
    if ranks == (3, 2):  # groups of columns: the transposed problem has groups of rows
        return _groups_of_rows(_transposed(mat2), _transposed(self), offs, _transposed(out), cores)
    if ranks == (2, 2):
        groups, m, n = out.shape
        k = self.shape[1]
        strides = [0, *self.strides, 0, *mat2.strides, *out.strides]
        if (self.shape[0], mat2.shape[1], mat2.shape[0], offs.shape) != (m, n, k, (groups,)):
            raise GraphError(f"grouped matmul: {shown(self)} times {shown(mat2)} cannot give {shown(out)}")
        return _op("groups_of_depth", self, mat2, out, offs, (groups, m, n, k), strides, cores)
    raise UnsupportedError(f"grouped matmul of {shown(self)} and {shown(mat2)} with ends of groups")


def _transposed(tensor: Tensor) -> Tensor:
    *batch, rows, columns = tensor.shape
    *batch_strides, row, column = tensor.strides
    return replace(tensor, shape=(*batch, columns, rows), strides=(*batch_strides, column, row))


def _groups_of_rows(a: Tensor, b: Tensor, ends: Tensor, out: Tensor, cores: int) -> Op:
    """Rows of a up to each of the ends, times the matrix of b that belongs to the group."""
    if len(a.shape) == 2 and len(b.shape) == 3:
        (m, k), (groups, depth, n) = a.shape, b.shape
        if depth == k and tuple(ends.shape) == (groups,) and tuple(out.shape) == (m, n):
            strides = [0, *a.strides, *b.strides, 0, *out.strides]
            return _op("groups_of_rows", a, b, out, ends, (groups, m, n, k), strides, cores)
    raise GraphError(f"grouped matmul: {shown(a)} times {shown(b)} by {shown(ends)} cannot give {shown(out)}")


def _op(
    symbol: str, a: Tensor, b: Tensor, out: Tensor, ends: Tensor, sizes: Sequence[int], strides: list[int], cores: int
) -> Op:
    if a.dtype != b.dtype or a.dtype != out.dtype:
        raise UnsupportedError(f"grouped matmul of mixed dtypes: {a.dtype}, {b.dtype}, {out.dtype}")
    of_elements = element("grouped matmul", a, _DTYPES)
    if ends.dtype not in _OFFSETS:
        raise UnsupportedError(f"grouped matmul with ends of groups in {ends.dtype}; they must be int32 or int64")
    _, m, n, k = sizes
    blocks = max(1, min(cores, m * n * k // _MULTIPLICATIONS_PER_BLOCK, -(-n // _GRANULE)))
    defines = (f"SK_ELEMENT={of_elements}", f"SK_OFFSET={_OFFSETS[ends.dtype]}")
    kernel = shipped("grouped_mm.cpp", symbol, _PARAMS, blocks=blocks, op_type="GroupedMatMul", defines=defines)
    tensors = [place(a), place(b), place(out), place(ends)]
    return Op(kernel, [*tensors, *ends.strides, *sizes, *strides], "grouped_mm")
