"""frontend.export.changed_numbers: a module that is traced -> the Python numbers in its attributes that a call changes.

torch.export computes with their values before the call, and puts those back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .entry_requests import OWNER


@dataclass(frozen=True)
class ChangedNumber:
    owner: torch.nn.Module
    path: str  # of the owner
    name: str
    before: float
    after: float

    def __str__(self) -> str:
        where = f"{self.path}.{self.name}".removeprefix(f"{OWNER}.").removeprefix(".")
        return f"self.{where} (from {self.before} to {self.after})"


@contextmanager
def observed_numbers(module: torch.nn.Module) -> Iterator[list[ChangedNumber]]:
    """The list holds, after a call of the module, the numbers that it changed."""
    before: list[tuple[torch.nn.Module, str, str, float]] = []
    changed: list[ChangedNumber] = []

    def remember(module: torch.nn.Module, args: Any) -> None:
        before[:] = [
            (inner, path, name, value)
            for path, inner in module.named_modules()
            for name, value in vars(inner).items()
            if isinstance(value, int | float)
        ]

    def compare(module: torch.nn.Module, args: Any, result: Any) -> None:
        numbers = [(*place, value, vars(place[0]).get(place[2])) for *place, value in before]
        changed[:] = [
            ChangedNumber(*number)
            for number in numbers
            if isinstance(number[-1], int | float) and number[-1] != number[-2]
        ]

    hooks = (module.register_forward_pre_hook(remember), module.register_forward_hook(compare))
    try:
        yield changed
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def numbers_after_a_call(changed: Sequence[ChangedNumber]) -> Iterator[None]:
    """The module as the call left it."""
    try:
        for number in changed:
            vars(number.owner)[number.name] = number.after
        yield
    finally:
        for number in changed:
            vars(number.owner)[number.name] = number.before
