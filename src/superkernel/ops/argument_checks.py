"""ops.argument_checks: arguments of an operator -> an error that names the operator, the argument and the mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import LaunchError, UnsupportedError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ArgumentChecks:
    """The checks of one operator; every method raises if its condition does not hold."""

    operator: str

    def fits(self, condition: bool, message: str) -> None:
        """Refuses arguments that contradict each other."""
        if not condition:
            raise LaunchError(f"{self.operator}: {message}")

    def supported(self, condition: bool, message: str) -> None:
        """Refuses arguments that are valid, but not supported."""
        if not condition:
            raise UnsupportedError(f"{self.operator}: {message}")

    def absent(self, **arguments: Sequence[Any] | None) -> None:
        """Refuses lists that are not supported; an empty list is the same as none."""
        for name, value in arguments.items():
            self.supported(not value, f"{name} is not supported; leave it out")

    def dtype(self, name: str, tensor: Tensor, allowed: Sequence[torch.dtype], why: str = "") -> None:
        known = ", ".join(dtype_name(dtype) for dtype in allowed)
        self.supported(tensor.dtype in allowed, f"{name} is {dtype_name(tensor.dtype)}{why}; supported: {known}")

    def dimensions(self, name: str, tensor: Tensor, least: int, most: int) -> None:
        wanted = str(least) if least == most else f"{least} to {most}"
        fits = least <= tensor.dim() <= most
        self.fits(fits, f"{name} has the shape {shape_text(tensor)}; it must have {wanted} dimensions")

    def same_device(self, **tensors: Tensor | None) -> None:
        devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        self.fits(len(set(devices.values())) <= 1, f"the tensors are on different devices: {listed}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
