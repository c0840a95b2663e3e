"""frontend.export.held_values: a module -> what it holds in Python, beside weights and buffers, and as it was before.

torch.export calls a model once to trace it. It puts back tensors and containers that are attributes of modules, and
leaves what that call did to everything else.
"""

from __future__ import annotations

import random
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import _lru_cache_wrapper, partial
from itertools import islice
from types import CellType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from .entry_requests import OWNER
from .functions_read import functions_in, functions_of, is_library, names_read, variables_read
from .opaque_state import OpaqueState, opaque_state, put_opaque_state

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_NO_HOLDERS = (torch.Tensor, type, ModuleType, Enum)
_DEEPEST, _MOST_HOLDERS = 6, 100_000  # inside of a module
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
SHARED_GENERATORS = {"random": random._inst, "numpy.random": np.random.mtrand._rand}
_ALL = object()  # the key of a value that is compared as a whole
ORDER = object()  # the key of the order of a dict


@dataclass(frozen=True)
class KeyOrder:
    """The keys of a dict, in order."""

    keys: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"the order {', '.join(map(repr, self.keys))}"


@dataclass(frozen=True)
class Holder:
    """An object that holds values by keys, and what it held when it was found."""

    value: Any
    content: Mapping[Any, Any]
    path: str  # as the user writes it
    is_object: bool  # keys are attributes
    is_in_object: bool  # of a class that is no module

    @property
    def is_namespace(self) -> bool:
        """The variables of a file."""
        return isinstance(self.value, dict) and self.is_object

    def path_of(self, key: Any) -> str:
        if key is _ALL or key is ORDER:
            return self.path
        return f"{self.path}.{key}".removeprefix(".") if self.is_object else f"{self.path}[{key!r}]"


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def holders(module: torch.nn.Module) -> list[Holder]:
    """Modules, the containers and objects in their attributes, their classes, and what their functions read."""
    return list(islice(_Walk().of_model(module), _MOST_HOLDERS))


class _Walk:
    """Finds each holder once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._functions: list[FunctionType] = []  # to look at
        self._names: set[str] = set()  # that functions read
        self._methods: dict[str, list[FunctionType]] = {}  # by names that no function has read so far
        self._variables: set[tuple[int, str]] = set()

    def of_model(self, module: torch.nn.Module) -> Iterator[Holder]:
        yield from self._of_module(module, "self")
        while self._functions:
            yield from self._of_function(self._functions.pop())
        for path, generator in SHARED_GENERATORS.items():
            yield from self._of_value(generator, path, 0, True)

    def _of_module(self, module: torch.nn.Module, path: str) -> Iterator[Holder]:
        found = [(inner_path, inner) for inner_path, inner in module.named_modules() if id(inner) not in self._seen]
        self._seen.update(id(inner) for _, inner in found)
        for inner_path, inner in found:
            where = ".".join([path, *filter(None, inner_path.removeprefix(OWNER).split("."))])
            yield from self._of_holder(inner, where, 0, False)

    def _of_function(self, function: FunctionType) -> Iterator[Holder]:
        """What a function reads beside its arguments: variables around it, defaults, attributes of its own."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield from self._of_value(cell, name, 0, True)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        yield from self._of_value(defaults, f"{function.__qualname__}.__defaults__", 0, True)
        holder = Holder(function, _content(function), function.__qualname__, True, True)
        yield holder
        for name, value in holder.content.items():
            yield from self._of_value(value, holder.path_of(name), 1, True)
        self._read(names_read(function))
        for variables, name in variables_read(function):
            if (id(variables), name) in self._variables:
                continue
            self._variables.add((id(variables), name))
            value = variables[name]
            self._call(value)
            if _is_variable(value):
                prefix = "" if variables is function.__globals__ else f"{variables.get('__name__')}"
                holder = Holder(variables, {name: value}, prefix, True, True)
                yield holder
                yield from self._of_value(value, holder.path_of(name), 1, True)

    def _read(self, names: frozenset[str]) -> None:
        for name in names - self._names:
            for function in self._methods.pop(name, ()):
                self._call(function)
        self._names |= names

    def _call(self, value: Any) -> None:
        """A function that may be called; its object was found elsewhere."""
        for function in functions_in(value):
            if id(function) not in self._seen:
                self._seen.add(id(function))
                self._functions.append(function)

    def _of_value(self, value: Any, path: str, depth: int, is_in_object: bool) -> Iterator[Holder]:
        if is_plain(value) or isinstance(value, _NO_HOLDERS) or id(value) in self._seen or depth > _DEEPEST:
            return
        if isinstance(value, torch.nn.Module):  # no submodule
            yield from self._of_module(value, path)
        elif isinstance(value, FunctionType):
            self._call(value)
        elif isinstance(value, MethodType):
            self._call(value)
            yield from self._of_value(value.__self__, path, depth, True)
        else:
            self._seen.add(id(value))
            yield from self._of_holder(value, path, depth, is_in_object)

    def _of_holder(self, value: Any, path: str, depth: int, is_in_object: bool) -> Iterator[Holder]:
        is_object = not _is_container(value)
        is_in_object |= is_object and not isinstance(value, torch.nn.Module)
        holder = Holder(value, _content(value), path, is_object, is_in_object)
        yield holder
        if isinstance(value, partial):
            yield from self._of_value([value.func, *value.args, *value.keywords.values()], path, depth + 1, True)
        elif isinstance(value, torch.nn.Module):
            yield Holder(value._modules, _content(value._modules), f"{path}._modules", False, False)
            for hooks in (vars(value)[name] for name in _HOOKS):
                yield from self._of_value([*hooks.values()], path, depth, True)
            if isinstance(forward := vars(value).get("forward"), FunctionType):
                self._functions.append(forward)
            else:
                yield from self._of_value(forward, path, depth, True)
        for key, inner in holder.content.items():
            if not isinstance(value, set | np.ndarray) and not isinstance(inner, OpaqueState | KeyOrder):
                yield from self._of_value(inner, holder.path_of(key), depth + 1, is_in_object)
        if is_object:
            for cls in type(value).__mro__:
                if not is_library(cls.__module__):
                    yield from self._of_class(cls)

    def _of_class(self, cls: type) -> Iterator[Holder]:
        if id(cls) in self._seen:
            return
        self._seen.add(id(cls))
        holder = Holder(cls, _class_content(cls), cls.__name__, True, True)
        yield holder
        for name, value in holder.content.items():
            yield from self._of_value(value, holder.path_of(name), 1, True)
        for name, function in functions_of(cls):
            if name == "forward" or name in self._names or (name.startswith("__") and name.endswith("__")):
                self._call(function)
            else:
                self._methods.setdefault(name, []).append(function)


def _is_variable(value: object) -> bool:
    """Whether a variable of a file may be, or hold, what calls change."""
    if isinstance(value, FunctionType | MethodType | type | ModuleType):
        return False
    is_known = (
        is_plain(value)
        or _is_container(value)
        or isinstance(value, torch.Tensor | torch.nn.Module | _lru_cache_wrapper)
    )
    return is_known or opaque_state(value) is not None or not is_library(type(value).__module__)


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | tuple | deque | set | np.ndarray)


def _class_content(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("__") and _is_variable(value)}


def _content(value: Any) -> dict[Any, Any]:
    if (state := opaque_state(value)) is not None:
        return {_ALL: state}
    if isinstance(value, dict | MappingProxyType):
        # what it keeps, not what a `__getitem__` of its class makes of that
        items = dict(dict.items(value) if isinstance(value, dict) else value.items())
        keys = OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else items
        return {**items, ORDER: KeyOrder(tuple(keys))}
    if isinstance(value, weakref.ref):
        return {_ALL: value()}
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
    """As attributes of the class, which has other names for those that begin with two underscores."""
    members = vars(cls).items() if "__slots__" in vars(cls) else ()
    return [name for name, value in members if isinstance(value, MemberDescriptorType)]


def content_now(holder: Holder) -> Mapping[Any, Any]:
    """What the holder holds now; of the variables of a program those that were found."""
    if holder.is_namespace:
        return {name: holder.value[name] for name in holder.content if name in holder.value}
    return _content(holder.value)


def put(holder: Holder, content: Mapping[Any, Any], keys: Sequence[Any]) -> None:
    """Makes the holder hold for `keys` what `content` has; what is not in there is taken out."""
    value = holder.value
    if isinstance(state := content.get(_ALL), OpaqueState):
        put_opaque_state(value, state)
    elif isinstance(value, list | deque):
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
    elif not isinstance(value, tuple | MappingProxyType | weakref.ref):
        _put_attributes(value, content, keys)


def _put_keys(target: MutableMapping[Any, Any], content: Mapping[Any, Any], keys: Sequence[Any]) -> None:
    for key in keys:
        if key is ORDER:
            continue
        if key in content:
            target[key] = content[key]
        else:
            target.pop(key, None)
    if any(key is ORDER for key in keys):
        for key in [key for key in content[ORDER].keys if key in target]:
            target[key] = target.pop(key)


def _put_attributes(value: Any, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Without the `__setattr__` of its class, which may do more."""
    base: Any = type if isinstance(value, type) else object
    for key in keys:
        is_slot = isinstance(getattr(type(value), key, None), MemberDescriptorType)
        if base is object and not is_slot:
            _put_keys(vars(value), content, [key])
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
    if isinstance(before, KeyOrder):
        return [*map(id, before.keys)] == [*map(id, after.keys)]
    return (is_plain(before) or isinstance(before, set | OpaqueState)) and bool(before == after)


@contextmanager
def values_as_before(module: torch.nn.Module) -> Iterator[None]:
    """At the end the model holds what it held before, and the tensors that are no buffers have their old elements."""
    found = holders(module)
    foreign = {holder.value for holder in found if isinstance(holder.value, torch.nn.Module)} - {*module.modules()}
    buffers = [buffer for inner in foreign for buffer in inner._buffers.values() if is_plain_tensor(buffer)]
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*buffers, *(tensor for _, tensor in _tensors(found)))]
    registries = [
        (registry, dict(registry))
        for holder in found
        if isinstance(holder.value, torch.nn.Module)
        for registry in (vars(holder.value)[name] for name in _REGISTRIES)
    ]
    caches = [holder.value for holder in found if isinstance(holder.value, _lru_cache_wrapper)]
    results = [(cache, cache.cache_info().misses) for cache in caches]
    try:
        yield
    finally:
        for cache, misses in results:
            if cache.cache_info().misses != misses:  # it may keep tensors that torch traced with
                cache.cache_clear()
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
    return _tensors([holder for holder in holders(module) if not holder.is_namespace])


def _tensors(found: Sequence[Holder]) -> Iterator[tuple[str, torch.Tensor]]:
    for holder in found:
        for key, value in holder.content.items():
            if is_plain_tensor(value):
                yield holder.path_of(key).removeprefix("self."), value


def is_plain_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided and value.is_cpu and not value.is_quantized
