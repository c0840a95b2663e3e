"""frontend.export.held_values: a module -> what it holds in Python, beside weights and buffers, and as it was before.

torch.export calls a model once to trace it. It puts back tensors and containers that are attributes of modules, and
leaves what that call did to everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from .entry_requests import OWNER

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_NO_HOLDERS = (torch.Tensor, type, FunctionType, MethodType, ModuleType, Enum)
_LIBRARIES = ("torch", "builtins", "typing", "collections")  # whose classes keep nothing of a model
_DEEPEST, _MOST_HOLDERS = 6, 100_000  # inside of a module
_ALL = None  # the key of a value that is compared as a whole


@dataclass(frozen=True)
class Holder:
    """An object that holds values by keys, and what it held when it was found."""

    value: Any
    content: Mapping[Any, Any]
    path: str  # as the user writes it
    is_object: bool  # keys are attributes
    is_in_object: bool  # of a class that is no module

    def path_of(self, key: Any) -> str:
        if key is _ALL:
            return self.path
        return f"{self.path}.{key}".removeprefix(".") if self.is_object else f"{self.path}[{key!r}]"


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def holders(module: torch.nn.Module) -> list[Holder]:
    """Modules, the containers and objects in their attributes, their classes, and what a function remembers."""
    return list(islice(_of_module(module, "self", set()), _MOST_HOLDERS))


def _of_module(module: torch.nn.Module, path: str, seen: set[int]) -> Iterator[Holder]:
    found = [(inner_path, inner) for inner_path, inner in module.named_modules() if id(inner) not in seen]
    seen.update(id(inner) for _, inner in found)
    for inner_path, inner in found:
        where = ".".join([path, *filter(None, inner_path.removeprefix(OWNER).split("."))])
        yield from _of_holder(inner, where, seen, 0, False)
    if isinstance(forward := vars(module).get("forward"), FunctionType | MethodType | partial):
        yield from _of_function(forward, path, seen)


def _of_function(function: Any, path: str, seen: set[int]) -> Iterator[Holder]:
    """What a function reads beside its arguments: its object, or variables around it."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, MethodType):
        yield from _of_value(function.__self__, path, seen, 0, True)
        yield from _of_function(function.__func__, "", seen)
    elif isinstance(function, partial):
        yield from _of_value([*function.args, *function.keywords.values()], path, seen, 0, True)
        yield from _of_function(function.func, path, seen)
    elif isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield from _of_value(cell, name, seen, 0, True)
            if isinstance(inner := _content(cell).get(_ALL), FunctionType | MethodType | partial):
                yield from _of_function(inner, path, seen)
        read = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
        if found := {name: value for name, value in read.items() if is_plain(value) or _is_container(value)}:
            yield Holder(function.__globals__, found, "", True, True)
            for name, value in found.items():
                yield from _of_value(value, name, seen, 1, True)
    elif not isinstance(function, torch.nn.Module):
        yield from _of_value(function, path, seen, 0, True)


def _of_value(value: Any, path: str, seen: set[int], depth: int, is_in_object: bool) -> Iterator[Holder]:
    if is_plain(value) or isinstance(value, _NO_HOLDERS) or id(value) in seen or depth > _DEEPEST:
        return
    if isinstance(value, torch.nn.Module):  # no submodule
        yield from _of_module(value, path, seen)
        return
    seen.add(id(value))
    yield from _of_holder(value, path, seen, depth, is_in_object)


def _of_holder(value: Any, path: str, seen: set[int], depth: int, is_in_object: bool) -> Iterator[Holder]:
    is_object = not _is_container(value)
    is_in_object |= is_object and not isinstance(value, torch.nn.Module)
    holder = Holder(value, _content(value), path, is_object, is_in_object)
    yield holder
    for key, inner in holder.content.items():
        yield from _of_value(inner, holder.path_of(key), seen, depth + 1, is_in_object)
    if is_object:
        for cls in type(value).__mro__:
            if cls.__module__.partition(".")[0] not in _LIBRARIES:
                yield from _of_class(cls, seen)


def _of_class(cls: type, seen: set[int]) -> Iterator[Holder]:
    if id(cls) in seen:
        return
    seen.add(id(cls))
    if found := _class_content(cls):
        holder = Holder(cls, found, cls.__name__, True, True)
        yield holder
        for name, value in found.items():
            yield from _of_value(value, holder.path_of(name), seen, 1, True)


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | tuple | deque | set | np.ndarray)


def _class_content(cls: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("__") and (is_plain(value) or _is_container(value) or isinstance(value, torch.Tensor))
    }


def _content(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    if isinstance(value, set | np.ndarray):
        return {_ALL: value.copy()}
    if isinstance(value, type):
        return _class_content(value)
    if isinstance(value, CellType):
        try:
            return {_ALL: value.cell_contents}
        except ValueError:  # empty
            return {}
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, torch.nn.Module):
        return {name: held for name, held in attributes.items() if name not in _OF_EVERY_MODULE}
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    return {**attributes, **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


def _slots(cls: type) -> Sequence[str]:
    names = cls.__dict__.get("__slots__", ())
    return [name for name in ([names] if isinstance(names, str) else names) if name not in ("__dict__", "__weakref__")]


def content_now(holder: Holder) -> Mapping[Any, Any]:
    """What the holder holds now; of the variables of a program those that were found."""
    if isinstance(holder.value, dict) and holder.is_object:
        return {name: holder.value[name] for name in holder.content if name in holder.value}
    return _content(holder.value)


def put(holder: Holder, content: Mapping[Any, Any], keys: Sequence[Any]) -> None:
    """Makes the holder hold for `keys` what `content` has; what is not in there is taken out."""
    value = holder.value
    if isinstance(value, list | deque):
        if len(value) == len(content):
            for key in keys:
                value[key] = content[key]
        else:
            value.clear()
            value.extend(content.values())
    elif isinstance(value, set):
        value.clear()
        value.update(content[_ALL])
    elif isinstance(value, np.ndarray):
        value[...] = content[_ALL]
    elif isinstance(value, CellType):
        value.cell_contents = content[_ALL]
    elif isinstance(value, dict):
        _put_keys(value, content, keys)
    elif not isinstance(value, tuple):
        _put_attributes(value, content, keys)


def _put_keys(target: MutableMapping[Any, Any], content: Mapping[Any, Any], keys: Sequence[Any]) -> None:
    for key in keys:
        if key in content:
            target[key] = content[key]
        else:
            target.pop(key, None)


def _put_attributes(value: Any, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Without the `__setattr__` of its class, which may do more."""
    base: Any = type if isinstance(value, type) else object
    for key in keys:
        if base is object and key in (attributes := getattr(value, "__dict__", {})) and key not in content:
            del attributes[key]
        elif key in content:
            base.__setattr__(value, key, content[key])
        else:
            base.__delattr__(value, key)


def same_content(before: Any, after: Any) -> bool:
    """Whether a value of a holder is still the same: plain values and what is compared as a whole by their values."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, np.ndarray):
        return before.dtype == after.dtype and np.array_equal(before, after)
    return (is_plain(before) or isinstance(before, set)) and bool(before == after)


@contextmanager
def values_as_before(module: torch.nn.Module) -> Iterator[None]:
    """At the end the model holds what it held before, and the tensors that are no buffers have their old elements."""
    found = holders(module)
    tensors = [(tensor, tensor.detach().clone()) for _, tensor in _tensors(found)]
    registries = [
        (registry, dict(registry))
        for holder in found
        if isinstance(holder.value, torch.nn.Module)
        for registry in (vars(holder.value)[name] for name in _REGISTRIES)
    ]
    try:
        yield
    finally:
        for holder in found:
            now = content_now(holder)
            keys = [*holder.content, *(key for key in now if key not in holder.content)]
            if changed := [key for key in keys if not _is_kept(key, holder.content, now)]:
                put(holder, holder.content, changed)
        for registry, kept in registries:
            if [*map(id, registry.values())] != [*map(id, kept.values())] or list(registry) != list(kept):
                registry.clear()
                registry.update(kept)
        for tensor, elements in tensors:
            if not torch.equal(tensor, elements):
                tensor.detach().copy_(elements)


def _is_kept(key: Any, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> bool:
    return key in before and key in now and same_content(before[key], now[key])


def tensor_paths(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain tensors that modules hold elsewhere than in buffers and parameters, by the attributes that lead to them."""
    return _tensors(holders(module))


def _tensors(found: Sequence[Holder]) -> Iterator[tuple[str, torch.Tensor]]:
    for holder in found:
        for key, value in holder.content.items():
            if type(value) is torch.Tensor and value.layout is torch.strided and value.is_cpu:
                yield holder.path_of(key).removeprefix("self."), value
