"""frontend.export.entry_requests: the arguments of sk.export -> the entries to compile, with example inputs."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import _lru_cache_wrapper, update_wrapper
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ...errors import GraphError, OptionError, nearest, shown
from ...model.dim import Dim
from ...model.json_value import as_line
from ...package.model import TAKEN_NAMES
from ..explain import uncompiled
from ..settings import BackendSettings, BucketedDimension

DEFAULT_ENTRY = "forward"
OWNER = "superkernel_owner"  # the model inside of the module that torch.export traces for a method
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGS = "a tuple of example inputs, a list of such tuples for several shapes, or a dict of them by entry"


@dataclass(frozen=True)
class EntryRequest:
    """An entry: what torch.export traces, its example inputs for each shape, and its bucketed dimensions."""

    name: str
    module: torch.nn.Module
    calls: tuple[tuple[Any, ...], ...]
    buckets: tuple[BucketedDimension, ...]  # all of one Dim
    doc: str

    @property
    def dim(self) -> Dim | None:
        return self.buckets[0].dim if self.buckets else None


def entry_requests(model: object, args: object, buckets: object) -> list[EntryRequest]:
    """An entry is a method of the model that has its name; where there is none, it is the call of the model."""
    model = uncompiled(model)
    if isinstance(model, type):
        raise GraphError(
            f"export needs a model, not the class {model.__name__}: pass an instance, {model.__name__}(...)"
        )
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise GraphError("export needs a model of Python code, not one of torch.jit: pass the model it was made from")
    if not callable(model):
        raise GraphError(f"export needs a model or a function, not {shown(model)}")
    if isinstance(model, torch.nn.Module):
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            if torch.nn.parameter.is_lazy(weight):
                raise GraphError(f"export: {name!r} gets its shape in the first call: call the model once before")
    by_entry = args if isinstance(args, Mapping) else {DEFAULT_ENTRY: args}
    if not by_entry:
        raise OptionError("export: there is no entry: pass example inputs")
    bucketed = BackendSettings.parse({"buckets": buckets}).buckets if buckets is not None else ()
    requests = [_request(model, name, given, bucketed) for name, given in by_entry.items()]
    _check_bucket_names(bucketed, requests)
    return requests


def _request(model: Any, name: object, given: object, bucketed: Sequence[BucketedDimension]) -> EntryRequest:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"export: {shown(name)} is not a name for an entry; it becomes the name of a function")
    if name.startswith("_") or keyword.iskeyword(name) or name in TAKEN_NAMES:
        raise OptionError(
            f"export: an entry cannot be called {name!r}: model.{name} of a loaded model is something else; choose "
            f"another name, such as {name.strip('_') or DEFAULT_ENTRY}_entry"
        )
    module, function = _entry_module(model, name)
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(call, tuple) for call in calls):
        raise OptionError(f"entry {name!r}: args is {shown(given)}; pass {_ARGS}")
    parameters = _parameters(function)
    buckets = tuple(bucket for bucket in bucketed if bucket.argument in parameters)
    if len({bucket.dim for bucket in buckets}) > 1:
        names = ", ".join(repr(bucket.dim.name) for bucket in buckets)
        raise OptionError(
            f"entry {name!r} has buckets of {names}; a package pads one dimension of an entry: list shapes"
        )
    if buckets and len(calls) > 1:
        raise OptionError(f"entry {name!r} has several example inputs and buckets: give one of both")
    return EntryRequest(name, module, tuple(tree_map(_plain, call) for call in calls), buckets, _doc(function))


def _doc(function: Callable[..., Any] | None) -> str:
    """The first line of the docstring that the user wrote for the function; inherited ones and torch's do not count."""
    text = getattr(function, "__doc__", None)
    is_torch = (getattr(function, "__module__", None) or "").partition(".")[0] == "torch"
    return "" if is_torch or not isinstance(text, str) else as_line(inspect.cleandoc(text).partition("\n")[0])


def _plain(value: Any) -> Any:
    """An example input in C order and without a gradient, as calls of a package pass it."""
    if isinstance(value, np.ndarray | np.generic):
        raise OptionError(f"export: an example input is a {type(value).__name__} of numpy: pass torch.as_tensor(...)")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested:
        return value.detach().contiguous()
    return value


def _entry_module(model: Any, name: str) -> tuple[torch.nn.Module, Callable[..., Any] | None]:
    """A module whose forward is the entry; it shares weights and buffers with the model."""
    if not isinstance(model, torch.nn.Module):
        return _module_of(model), model
    if isinstance(inspect.getattr_static(type(model), name, None), staticmethod | classmethod):
        unbound = getattr(model, name)
        return _module_of(unbound), unbound
    method = getattr(type(model), name, None)
    if name == DEFAULT_ENTRY or not inspect.isfunction(method) or name in vars(torch.nn.Module):
        return model, type(model).forward
    return _module_of(method.__get__(model)), method


def _as_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the function: torch.export records the source lines of functions that are called forward."""
    if not isinstance(function, FunctionType):
        is_plain = isinstance(function, MethodType) and _parameters(function)
        return function if is_plain else _with_signature(function)
    code = function.__code__.replace(co_name="forward")
    copied = FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(copied, function)


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without code that torch.export can read: functools.partial, or one in C, such as torch.relu."""

    def forward(*args: Any) -> Any:
        return function(*args)

    with suppress(TypeError, ValueError):  # torch.relu tells no parameters
        forward.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return forward


def _module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """A function or a method of a module as a module: its own forward stays what the model calls by that name."""
    module = torch.nn.Module()
    if isinstance(function, _lru_cache_wrapper):
        function = function.__wrapped__  # results are not kept from call to call
    if isinstance(call := type(function).__call__, FunctionType):
        function = MethodType(call, function)  # of an object: torch.export reads the code of functions
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        module.add_module(OWNER, owner)  # so that its weights are this module's
        module.forward = _as_forward(function.__func__).__get__(owner)  # type: ignore[attr-defined]
    else:
        module.forward = _as_forward(function)
    return module


def _parameters(function: Callable[..., Any] | None) -> list[str]:
    try:
        return list(inspect.signature(function).parameters) if function is not None else []
    except (TypeError, ValueError):
        return []


def _check_bucket_names(bucketed: Sequence[BucketedDimension], requests: Sequence[EntryRequest]) -> None:
    known = {bucket for request in requests for bucket in request.buckets}
    for bucket in bucketed:
        if bucket not in known:
            names = list(dict.fromkeys(n for request in requests for n in _parameters(request.module.forward)))
            near, known_names = nearest(bucket.argument, names), ", ".join(names) or "none"
            raise OptionError(
                f"buckets: no entry has an argument {bucket.argument!r}{near}; the arguments are {known_names}"
            )
