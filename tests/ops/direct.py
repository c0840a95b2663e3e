"""Sub-kernels called without a graph: arguments of an operator in, what its sub-kernel writes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import superkernel as sk
from superkernel.model.op import Place
from superkernel.model.params import Kind
from superkernel.model.tensor_arg import TensorArg


class Launcher:
    """Kernels compiled once per symbol, flags and block count: numbers and tensors are passed by name."""

    def __init__(self) -> None:
        self.kernels: dict[Any, sk.SuperKernel] = {}

    def __call__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        results: Sequence[Tensor],
        blocks: int = 2,
        flags: tuple[str, ...] = (),
    ) -> list[Tensor]:
        """The results, which held 77 before."""
        memory: dict[str, Tensor] = {}
        outs = [torch.full(_at_least_one(out.shape), 77, dtype=out.dtype) for out in results]
        named = {name: _described(name, value, memory) for name, value in arguments.items()}
        for number, (out, shape) in enumerate(zip(outs, results, strict=True)):
            name = "out" if len(outs) == 1 else f"out{number}"
            named[name] = TensorArg(name, 0, _dtype(out), tuple(shape.shape), tuple(shape.stride()))
            memory[name] = out.reshape(-1)
        made = function(**named, cores=2)
        for op in [made] if isinstance(made, sk.Op) else made:
            self._launch(op, memory, blocks, flags)
        return [memory[name][: out.numel()].reshape(out.shape) for name, out in _named(results)]

    def _launch(self, op: sk.Op, memory: dict[str, Tensor], blocks: int, flags: tuple[str, ...]) -> None:
        params = op.kernel.params
        key = (op.kernel.name, tuple(map(str, params)), blocks, flags)
        if key not in self.kernels:
            binary = replace(op.kernel.binary, flags=(*op.kernel.binary.flags, *flags))
            kernel = replace(op.kernel, block_dim=blocks, grid=None, binary=binary)
            general = sk.Op(kernel, [param.name for param in params])
            self.kernels[key] = sk.compile([general], f"{op.kernel.name}_{blocks}", cores=2)
        passed: dict[str, Any] = {}
        for param, argument in zip(params, op.args, strict=True):
            if param.kind is Kind.SCALAR:
                passed[param.name] = argument
            else:
                assert isinstance(argument, Place)
                whole = memory[argument.name]
                passed[param.name] = whole[argument.offset // whole.element_size() :]
        self.kernels[key](passed)

    def close(self) -> None:
        for kernel in self.kernels.values():
            kernel.close()


def _named(results: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [("out" if len(results) == 1 else f"out{number}", out) for number, out in enumerate(results)]


def _at_least_one(shape: Sequence[int]) -> list[int]:
    return list(shape) if math.prod(shape) else [1]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _described(name: str, value: Any, memory: dict[str, Tensor]) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [_described(f"{name}{number}", tensor, memory) for number, tensor in enumerate(value)]
    if not isinstance(value, Tensor):
        return value
    room = value.untyped_storage().nbytes() // value.element_size()
    base = torch.as_strided(value, (room,), (1,), 0) if room else torch.zeros(1, dtype=value.dtype)
    memory[name] = base
    offset = value.storage_offset() * value.element_size()
    return TensorArg(name, offset, _dtype(value), tuple(value.shape), tuple(value.stride()))
