"""ops.checks: arguments of an operator in, or an error that names the operator, the argument and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import LaunchError, UnsupportedError


@dataclass(frozen=True)
class Checks:
    """What an operator demands; every method returns only if it is so."""

    operator: str

    def fits(self, condition: bool, message: str) -> None:
        """Arguments that contradict each other are refused."""
        if not condition:
            raise LaunchError(f"{self.operator}: {message}")

    def supported(self, condition: bool, message: str) -> None:
        """What could be meant, but is not offered here."""
        if not condition:
            raise UnsupportedError(f"{self.operator}: {message}")

    def absent(self, **arguments: Any) -> None:
        for name, value in arguments.items():
            self.supported(value is None, f"{name} is not supported; leave it out")

    def dtype(self, name: str, tensor: Tensor, allowed: Sequence[torch.dtype], why: str = "") -> None:
        known = ", ".join(shown(dtype) for dtype in allowed)
        self.supported(tensor.dtype in allowed, f"{name} is {shown(tensor.dtype)}{why}; supported: {known}")

    def dimensions(self, name: str, tensor: Tensor, least: int, most: int) -> None:
        wanted = str(least) if least == most else f"{least} to {most}"
        self.fits(
            least <= tensor.dim() <= most, f"{name} has the shape {sizes(tensor)}; it must have {wanted} dimensions"
        )

    def same_device(self, **tensors: Tensor | None) -> None:
        given = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
        told = ", ".join(f"{name} on {device}" for name, device in given.items())
        self.fits(len(set(given.values())) <= 1, f"the tensors are on different devices: {told}")


def shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sizes(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
