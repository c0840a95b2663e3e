"""targets.cpu.kernels.scans: a tensor by name in, one op that runs along its rows out: cumsum, cummax and others."""

from __future__ import annotations

from typing import Any

from ....errors import UnsupportedError
from ....model.op import Op
from .shipping import Tensor, place, shipped
from .strided_rows import element, row_arguments, row_params, strided_rows

_TOTALS = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def cumsum(self: Tensor, dim: int, *, dtype: Any = None, out: Tensor, cores: int) -> Op:
    return _total("cumsum", self, dim, out, cores)


def cumprod(self: Tensor, dim: int, *, dtype: Any = None, out: Tensor, cores: int) -> Op:
    return _total("cumprod", self, dim, out, cores)


def cummax(self: Tensor, dim: int, *, out0: Tensor, out1: Tensor, cores: int) -> Op:
    return _extreme("cummax", self, dim, out0, out1, cores)


def cummin(self: Tensor, dim: int, *, out0: Tensor, out1: Tensor, cores: int) -> Op:
    return _extreme("cummin", self, dim, out0, out1, cores)


def _total(operator: str, self: Tensor, dim: int, out: Tensor, cores: int) -> Op:
    """The requested dtype is that of `out`."""
    types = (f"SK_FROM={element(operator, self)}", f"SK_TO={element(f'{operator} to elements', out, _TOTALS)}")
    length = self.shape[dim] if self.shape else 1
    rows = strided_rows(operator, dim, self, out)
    params = ("in:self", "out:out", "scalar:length:int64", *row_params("self", "out"))
    kernel = shipped(
        "scans.cpp",
        "scanned_rows",
        params,
        blocks=rows.blocks(length, cores),
        op_type=operator,
        defines=(*types, f"SK_{operator.upper()}"),
    )
    return Op(kernel, [place(self), place(out), length, *row_arguments(rows)], operator)


def _extreme(operator: str, self: Tensor, dim: int, values: Tensor, indices: Tensor, cores: int) -> Op:
    of_elements = element(operator, self)
    if values.dtype != self.dtype or indices.dtype != "int64":
        raise UnsupportedError(f"{operator} of {self.dtype} to {values.dtype} and {indices.dtype}")
    length = self.shape[dim] if self.shape else 1
    rows = strided_rows(operator, dim, self, values, indices)
    params = ("in:self", "out:values", "out:indices", "scalar:length:int64", *row_params("self", "values", "indices"))
    kernel = shipped(
        "scans.cpp",
        "scanned_rows",
        params,
        blocks=rows.blocks(length, cores),
        op_type=operator,
        defines=(f"SK_FROM={of_elements}", f"SK_TO={of_elements}", f"SK_{operator.upper()}"),
    )
    return Op(kernel, [place(self), place(values), place(indices), length, *row_arguments(rows)], operator)
