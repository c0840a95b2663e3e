"""frontend.export.changed_values: a module that is traced -> the Python values in its attributes that a call changes.

torch.export computes with the values before the call. It finds tensors that are assigned to attributes of modules, and
puts back what these were; it overlooks numbers, texts, and everything in objects of other classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from .entry_requests import OWNER

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_NO_HOLDERS = (torch.nn.Module, torch.Tensor, type, FunctionType, MethodType, ModuleType)
_DEEPEST, _MOST_PLACES = 4, 100_000


@dataclass(frozen=True)
class ValuePlace:
    """An attribute of a module, or what lies inside, by keys: torch.export puts copies of dicts and lists back."""

    module: torch.nn.Module
    keys: tuple[Any, ...]
    path: str  # as the user writes it
    is_in_object: bool = False  # of a class that is no module

    def get(self, otherwise: Any = None) -> Any:
        """`otherwise`: where it was taken out."""
        try:
            return self._holder()[self.keys[-1]]
        except (LookupError, TypeError):
            return otherwise

    def set(self, value: Any) -> None:
        self._holder()[self.keys[-1]] = value

    def _holder(self) -> Any:
        found: Any = vars(self.module)
        for key in self.keys[:-1]:
            found = found[key] if isinstance(found[key], dict | list) else vars(found[key])
        return found


@dataclass(frozen=True)
class ChangedValue:
    place: ValuePlace
    before: Any
    after: Any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.after, torch.Tensor)

    def __str__(self) -> str:
        return f"{self.place.path} (from {self.before!r} to {self.after!r})"


@contextmanager
def observed_values(module: torch.nn.Module) -> Iterator[list[ChangedValue]]:
    """The list holds, after a call of the module, the values that it changed. They get their old values at the end."""
    before: list[tuple[ValuePlace, Any]] = []
    changed: list[ChangedValue] = []

    def remember(module: torch.nn.Module, args: Any) -> None:
        before[:] = [(place, place.get()) for place in islice(_places(module), _MOST_PLACES)]

    def compare(module: torch.nn.Module, args: Any, result: Any) -> None:
        pairs = [ChangedValue(place, value, place.get(value)) for place, value in before]
        changed[:] = [pair for pair in pairs if _differs(pair)]

    hooks = (module.register_forward_pre_hook(remember), module.register_forward_hook(compare))
    try:
        yield changed
    finally:
        for hook in hooks:
            hook.remove()
        for value in changed:
            value.place.set(value.before)


@contextmanager
def tensors_as_before(module: torch.nn.Module) -> Iterator[None]:
    """Tensors that are no buffers: torch.export writes into some of them for real while it traces."""
    kept = [(tensor, tensor.detach().clone()) for _, tensor in tensor_paths(module)]
    try:
        yield
    finally:
        for tensor, value in kept:
            if not torch.equal(tensor, value):
                tensor.detach().copy_(value)


def tensor_paths(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain tensors that modules hold elsewhere than in buffers and parameters, by the attributes that lead to them."""
    for place in islice(_places(module), _MOST_PLACES):
        value = place.get()
        if type(value) is torch.Tensor and value.layout is torch.strided and value.is_cpu:
            yield place.path.removeprefix("self."), value


@contextmanager
def values_after_a_call(changed: Sequence[ChangedValue]) -> Iterator[None]:
    """The module as the call left it."""
    try:
        for value in changed:
            value.place.set(value.after)
        yield
    finally:
        for value in changed:
            value.place.set(value.before)


def _differs(pair: ChangedValue) -> bool:
    if isinstance(pair.before, torch.Tensor) or pair.is_tensor:
        return pair.place.is_in_object and pair.after is not pair.before
    is_same_kind = type(pair.before) is type(pair.after)
    return _is_plain(pair.after) and not (is_same_kind and pair.before == pair.after)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _places(module: torch.nn.Module) -> Iterator[ValuePlace]:
    """Of everything plain that modules hold in their attributes, and of tensors in objects of other classes."""
    seen: set[int] = set()
    for path, inner in module.named_modules():
        where = ".".join(["self", *filter(None, path.removeprefix(OWNER).split("."))])
        for name in vars(inner):
            if name not in _OF_EVERY_MODULE or name == "training":
                yield from _places_in(ValuePlace(inner, (name,), f"{where}.{name}"), seen)


def _places_in(place: ValuePlace, seen: set[int]) -> Iterator[ValuePlace]:
    value = place.get()
    if _is_plain(value) or isinstance(value, torch.Tensor):
        yield place
        return
    if isinstance(value, _NO_HOLDERS) or id(value) in seen or len(place.keys) > _DEEPEST:
        return
    seen.add(id(value))
    is_object = not isinstance(value, dict | list)
    for key in _keys(value):
        path = f"{place.path}.{key}" if is_object else f"{place.path}[{key!r}]"
        inner = ValuePlace(place.module, (*place.keys, key), path, place.is_in_object or is_object)
        yield from _places_in(inner, seen)


def _keys(value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        return range(len(value))
    return tuple(value) if isinstance(value, dict) else tuple(getattr(value, "__dict__", ()))
