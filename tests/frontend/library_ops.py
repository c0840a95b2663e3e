"""The sub-kernels that stand for library operators in these tests."""

from __future__ import annotations

from superkernel.registry import ship_kernel
from superkernel.targets.cpu.kernels import convolution, grouped_mm, scans, scatter, sorting

OPERATORS = {
    "aten::sort": sorting.sort,
    "aten::topk": sorting.topk,
    "aten::cumsum": scans.cumsum,
    "aten::cumprod": scans.cumprod,
    "aten::cummax": scans.cummax,
    "aten::cummin": scans.cummin,
    "aten::histc": scatter.histc,
    "aten::scatter_reduce_": scatter.scatter_reduce_,
    "aten::index_put_": scatter.index_put_,
    "aten::searchsorted": scatter.searchsorted,
    "aten::bucketize": scatter.bucketize,
    "aten::convolution": convolution.convolution,
    "aten::_grouped_mm": grouped_mm._grouped_mm,
    "transformers::grouped_mm_fallback": grouped_mm.grouped_mm_fallback,
}


def ship() -> None:
    for operator, function in OPERATORS.items():
        ship_kernel(operator, "cpu", function)
