"""Shipped kernels launched on torch tensors: what a function of a kernel module makes of them, for any block count."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import superkernel as sk
from superkernel.model.op import Place
from superkernel.model.params import Kind
from superkernel.model.tensor_arg import TensorArg

BLOCKS = (1, 2, 3, 7)
LAYOUTS = ("rows", "turned", "gaps")


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, in memory in rows, in the opposite order of dimensions, or with gaps between them."""
    if layout == "turned":
        order = tuple(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    if layout == "gaps" and values.dim():
        wide = torch.full((*values.shape[:-1], 2 * values.shape[-1] + 1), 7, dtype=values.dtype)
        wide[..., : 2 * values.shape[-1] : 2] = values
        return wide[..., : 2 * values.shape[-1] : 2]
    return values.contiguous()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """NaN equals NaN, whatever its sign; zeros of either sign are different."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if not left.is_floating_point():
        return torch.equal(left, right)
    nan = left.isnan()
    signs = torch.equal(left.signbit() | nan, right.signbit() | nan)
    return torch.equal(nan, right.isnan()) and signs and torch.equal(left.nan_to_num(nan=0), right.nan_to_num(nan=0))


class Launcher:
    """Kernels compiled once per object, as dynamic ops: numbers are passed by name, block counts by the tiling."""

    def __init__(self, march: str | None = None) -> None:
        self._march = march
        self._kernels: dict[Any, sk.SuperKernel] = {}
        self._bases: dict[str, torch.Tensor] = {}

    def __call__(self, function: Callable[..., Any], blocks: int, *arguments: Any, **keywords: Any) -> None:
        """Call the function with tensors described, and run its op or ops on them."""
        self._bases = {}
        described = [self._described(argument) for argument in arguments]
        named = {name: self._described(value) for name, value in keywords.items()}
        wanted = inspect.signature(function).parameters
        named["cores"] = max(BLOCKS)
        if "scratch" in wanted:
            named["scratch"] = self._scratch
        returned = function(*described, **named)
        for op in [returned] if isinstance(returned, sk.Op) else returned:
            self._launch(op, blocks)

    def _described(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._described(one) for one in value]
        if not isinstance(value, torch.Tensor):
            return value
        assert value.storage_offset() == 0
        name = f"tensor{len(self._bases)}"
        count = value.untyped_storage().nbytes() // value.element_size()
        self._bases[name] = torch.as_strided(value, (count,), (1,))
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorArg(name, 0, dtype, tuple(value.shape), tuple(value.stride()))

    def _scratch(self, nbytes: int) -> Place:
        name = f"scratch{len(self._bases)}"
        self._bases[name] = torch.full((nbytes,), 255, dtype=torch.uint8)
        return Place(name)

    def _launch(self, op: sk.Op, blocks: int) -> None:
        params = op.kernel.params
        key = (op.kernel.binary, op.kernel.name)
        if key not in self._kernels:
            widest = replace(op.kernel, block_dim=max(BLOCKS), grid=None)
            general = sk.Op(widest, [param.name for param in params], name="op", task="dynamic")
            self._kernels[key] = sk.compile([general], op.kernel.name, cores=2, march=self._march)
        values: dict[str, Any] = {}
        for param, argument in zip(params, op.args, strict=True):
            if param.kind is Kind.SCALAR:
                values[param.name] = argument
            else:
                assert isinstance(argument, Place) and argument.offset == 0
                values[param.name] = self._bases[argument.name]
        self._kernels[key](values, tiling={"op": lambda _: (0, blocks)})

    def close(self) -> None:
        for kernel in self._kernels.values():
            kernel.close()
