"""targets.cpu.kernels.scans: a tensor by name in, one op that runs along its rows out: cumsum, cummax and others."""

from __future__ import annotations

from functools import partial
from typing import Any

from ....errors import UnsupportedError
from ....model.op import Op
from .shipping import Tensor, place, shipped
from .strided_rows import NUMBERS, element, row_arguments, row_params, strided_rows


def _total(operator: str, self: Tensor, dim: int, *, dtype: Any = None, out: Tensor, cores: int) -> Op:
    """The requested dtype is that of `out`."""
    types = element(operator, self), element(f"{operator} to elements", out, NUMBERS)
    return _scan(operator, self, dim, {"out": out}, types, cores)


def _extreme(operator: str, self: Tensor, dim: int, *, out0: Tensor, out1: Tensor, cores: int) -> Op:
    of_elements = element(operator, self)
    if out0.dtype != self.dtype or out1.dtype != "int64":
        raise UnsupportedError(f"{operator} of {self.dtype} to {out0.dtype} and {out1.dtype}")
    return _scan(operator, self, dim, {"values": out0, "indices": out1}, (of_elements, of_elements), cores)


def _scan(operator: str, self: Tensor, dim: int, results: dict[str, Tensor], types: tuple[str, str], cores: int) -> Op:
    defines = (f"SK_FROM={types[0]}", f"SK_TO={types[1]}", f"SK_{operator.upper()}")
    length = self.shape[dim] if self.shape else 1
    rows = strided_rows(operator, dim, self, *results.values())
    params = ("in:self", *(f"out:{name}" for name in results), "scalar:length:int64", *row_params("self", *results))
    blocks = rows.blocks(length, cores)
    kernel = shipped("scans.cpp", "scanned_rows", params, blocks=blocks, op_type=operator, defines=defines)
    return Op(kernel, [place(self), *map(place, results.values()), length, *row_arguments(rows)], operator)


cumsum, cumprod = partial(_total, "cumsum"), partial(_total, "cumprod")
cummax, cummin = partial(_extreme, "cummax"), partial(_extreme, "cummin")
