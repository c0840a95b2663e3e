"""frontend.export.functions_read: functions that a model calls -> the names they read, and what those names are.

By names alone, without running anything: a name that a function reads may be a variable of its file, or an attribute of
anything. So what is found is more than what a call reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_LIBRARIES = {"torch", "numpy", "superkernel", *sys.stdlib_module_names}  # whose code keeps nothing of a model


def is_library(module_name: object) -> bool:
    return not isinstance(module_name, str) or module_name.partition(".")[0] in _LIBRARIES


def names_read(function: FunctionType) -> frozenset[str]:
    """Variables of its file and attributes that a function, and functions in it, read or write."""
    return frozenset(_names(function.__code__))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def variables_read(function: FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Variables of its file, and of modules of the user that it imports: the dict that has it, and its name."""
    names = names_read(function)
    for name in names:
        if name in function.__globals__:
            yield function.__globals__, name
            value = function.__globals__[name]
            if isinstance(value, ModuleType) and not is_library(value.__name__):
                yield from ((vars(value), inner) for inner in names if inner in vars(value))


def functions_of(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions that a class defines, by the names by which they are called."""
    for name, value in vars(cls).items():
        for function in functions_in(value):
            yield name, function


def functions_in(value: Any) -> list[FunctionType]:
    """Those of the user that a call, or a look at the attribute, runs."""
    if isinstance(value, property):
        found = [value.fget, value.fset]
    elif isinstance(value, cached_property):
        found = [value.func]
    elif isinstance(value, staticmethod | classmethod | MethodType):
        found = [value.__func__]
    else:
        found = [value]
    while any(isinstance(function, partial) for function in found):
        found = [function.func if isinstance(function, partial) else function for function in found]
    found = [
        getattr(function, "__wrapped__", function) if not isinstance(function, FunctionType) else function
        for function in found
    ]
    return [each for each in found if isinstance(each, FunctionType) and not is_library(each.__module__)]
