"""frontend.capture.scope_detection: the callable that the user compiled -> whether its source has a named scope.

With graph breaks the first graph is compiled before the marks of a later graph are seen, so graphs do not suffice.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import _GeneratorContextManager, suppress
from functools import lru_cache, partial
from itertools import pairwise
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch

from ..scope import super_kernel

# Packages whose functions contain no scopes of the user; functions that they wrap are searched.
_FOREIGN = frozenset({*sys.stdlib_module_names, "numpy", "superkernel", "torch", "triton"})
# Methods that run without being named in any source.
_UNNAMED = frozenset({"forward", "__call__", "__enter__", "__exit__", "__getitem__", "__iter__", "__next__"})
_MAX_OBJECTS = 20_000
_IN_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_RUN_WITH_MODULE = frozenset({"_modules", "_forward_hooks", "_forward_pre_hooks"})
# Methods of the base classes: those of a subclass may import packages to list its values.
_VALUES: Mapping[type, Callable[[Any], Iterable[object]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
}
_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, torch.Tensor, torch.nn.Parameter, torch.dtype})

# Instructions that load by name; the constant of LOAD_CONST may be a string equal to a name.
_LOADS = frozenset(name for name in dis.opmap if name.startswith("LOAD_")) - {"LOAD_CONST"}

_noted: dict[int, weakref.ref[object]] = {}  # callables whose graphs had a named scope, by id


def root_callable() -> object | None:
    """The module or function given to torch.compile, found on the stack of the call that compiles."""
    frame = _compiling_frame()
    return _unwrapped(frame.f_locals.get("fn")) if frame is not None else None


def call_arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call that compiles: positional ones, and keywords."""
    frame = _compiling_frame()
    return (frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})) if frame is not None else ((), {})


def _compiling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame := frame.f_back if frame is not None else None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            return frame
    return None


def _unwrapped(compiled: object) -> object:
    if isinstance(compiled, FunctionType) and compiled.__globals__.get("__name__") == "torch._dynamo.external_utils":
        compiled = getattr(compiled, "__wrapped__", compiled)
    if isinstance(compiled, MethodType) and isinstance(compiled.__self__, torch.nn.Module):
        through = ("__call__", "_wrapped_call_impl", "_call_impl", "forward")
        return compiled.__self__ if compiled.__name__ in through else compiled
    return compiled


def note_mark(root: object) -> None:
    """Remembers, as long as `root` lives, that a graph of it had a named scope."""
    key = id(root)
    with suppress(TypeError):  # no weak references: only the source of the object is searched
        _noted[key] = weakref.ref(root, lambda _: _noted.pop(key, None))


def is_marked(root: object) -> bool:
    """Whether the source of `root`, or of what it calls, has a named scope; `super_kernel(None)` has no name."""
    reference = _noted.get(id(root))
    return (reference is not None and reference() is root) or _Search().finds(root)


class _Search:
    """A traversal from a callable over every object that it refers to or names."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}  # keeps objects alive, so that no id is reused
        self._classes: dict[int, type] = {}
        self._names: set[str] = set()
        self._methods: defaultdict[str, list[list[object]]] = defaultdict(list)

    def finds(self, root: object) -> bool:
        pending = [root]
        while pending and len(self._seen) < _MAX_OBJECTS:
            value = pending.pop()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if _is_named_scope(value):
                return True
            pending += [referent for referent in self._referents(value) if type(referent) not in _PLAIN]
        return False

    def _referents(self, value: Any) -> Iterable[object]:
        kind = type(value)
        if kind is FunctionType:
            return self._of_function(value)
        if issubclass(kind, torch.nn.Module):
            return [*self._of_class(kind), *_of_module(value)]
        if kind is MethodType:
            return (value.__func__, value.__self__)
        if kind is partial:
            return (value.func, *value.args, *value.keywords.values())
        if kind in (staticmethod, classmethod):
            return (value.__func__,)
        if kind is property:
            return (value.fget,)
        if issubclass(kind, ModuleType):
            return ()  # searched by name only
        for container, values in _VALUES.items():
            if issubclass(kind, container):
                return list(values(value))
        if issubclass(kind, type):
            return self._of_class(value)
        if _is_foreign(kind.__module__):
            return (_instance_fields(value).get("__wrapped__"),)  # as in functools.cache
        return [*self._of_class(kind), *_instance_fields(value).values()]

    def _of_function(self, function: FunctionType) -> list[object]:
        known, code = function.__globals__, function.__code__
        closure = zip(code.co_freevars, function.__closure__ or (), strict=False)
        inside = {name: _content(cell) for name, cell in closure}
        held = [*inside.values(), *(function.__defaults__ or ()), function.__dict__.get("__wrapped__")]
        if _is_foreign(known.get("__name__")):
            return held
        names = _names(code)
        inside |= {name: known[name] for name in names if name in known}
        if (ours := _names_of_scopes(names, inside)) and _calls_with_a_name(code, ours):
            return [super_kernel]
        for value in inside.values():
            if issubclass(type(value), ModuleType):
                parts = _instance_fields(value)
                if not _is_foreign(parts.get("__name__")):
                    held += [parts[name] for name in names if name in parts]
            else:
                held.append(value)
        for name in names - self._names:
            for overridden in self._methods.get(name, ()):
                held += _reached(overridden)
        self._names |= names
        # Calls of super_kernel were checked above.
        return [value for value in held if value is not super_kernel]

    def _of_class(self, kind: type) -> list[object]:
        """The methods that have been named so far; the others wait for their names."""
        if id(kind) in self._classes:
            return []
        self._classes[id(kind)] = kind
        attributes: defaultdict[str, list[object]] = defaultdict(list)
        for base in kind.__mro__:
            if not _is_foreign(base.__module__):
                for name, attribute in list(vars(base).items()):
                    attributes[name].append(attribute)
        held: list[object] = []
        for name, overridden in attributes.items():
            self._methods[name].append(overridden)
            if name in _UNNAMED or name in self._names:
                held += _reached(overridden)
        return held


def _of_module(module: torch.nn.Module) -> list[object]:
    fields = _instance_fields(module)
    run = [value for name in _RUN_WITH_MODULE if name in fields for value in fields[name].values()]
    return run + [value for name, value in list(fields.items()) if name not in _IN_EVERY_MODULE]


def _reached(overridden: list[object]) -> list[object]:
    """The method that a class runs, and those of its bases that it calls through super()."""
    for count, method in enumerate(overridden, 1):
        if type(method) is not FunctionType or "super" not in method.__code__.co_names:
            return overridden[:count]
    return overridden


def _instance_fields(value: object) -> dict[str, Any]:
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:  # the class has slots
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_foreign(module: object) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] in _FOREIGN


def _is_named_scope(value: Any) -> bool:
    if type(value) is _GeneratorContextManager:  # what decorates a function
        ours = value.func is super_kernel.__wrapped__  # type: ignore[attr-defined]
        return ours and value.args[:1] != (None,) and value.kwds.get("scope", "") is not None
    return value is super_kernel  # called with a name, or its argument is unknown


def _names_of_scopes(names: frozenset[str], values: Mapping[str, object]) -> set[str]:
    """The names by which a function knows `super_kernel`."""
    ours = {name for name, value in values.items() if value is super_kernel}
    if "super_kernel" in names and "super_kernel" not in values:
        ours.add("super_kernel")  # an attribute, as in sk.super_kernel, or imported by the function itself
    return ours


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


def _calls_with_a_name(code: CodeType, names: set[str]) -> bool:
    """Whether one of `names` is loaded and what follows is not the constant None."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    for step, following in pairwise(steps):
        loads_none = following.opname == "LOAD_CONST" and following.argval is None
        if step.opname == "IMPORT_FROM" and step.argval in names:
            names = {*names, following.argval}
        elif step.opname in _LOADS and step.argval in names and not loads_none:
            return True
    return any(_calls_with_a_name(inner, names) for inner in code.co_consts if type(inner) is CodeType)


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The globals and attributes that a function and the functions inside it name."""
    inner = (_names(constant) for constant in code.co_consts if type(constant) is CodeType)
    return frozenset(code.co_names).union(*inner)
