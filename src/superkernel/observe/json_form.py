"""observe.json_form: frozen dataclasses <-> JSON values, by their type hints; every mistake is named by its place."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import BuildError, nearest
from .profile import LARGEST_NUMBER

T = TypeVar("T")
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def encode(value: Any) -> Any:
    """Dataclasses, tuples, mappings, enums and plain values -> what `json` writes."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: encode(entry) for name, entry in value.items()}
    return value.value if isinstance(value, Enum) else value


def decode(kind: type[T], value: object, where: str) -> T:
    """A `kind` from what `json` read: all of its fields and no others, each of its type; otherwise a BuildError."""
    decoded: T = _decode(kind, value, where)
    return decoded


def _decode(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return _dataclass(hint, value, where)
    origin = get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise BuildError(f"{where}: expected a list, not {_shown(value)}")
        return tuple(_decode(get_args(hint)[0], entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise BuildError(f"{where}: expected an object, not {_shown(value)}")
        return {name: _decode(get_args(hint)[1], entry, f"{where}.{name}") for name, entry in value.items()}
    if origin in (Union, UnionType):
        return _choice(get_args(hint), value, where)
    return _member(hint, value, where) if issubclass(hint, Enum) else _scalar(hint, value, where)


def _choice(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not NoneType)
    for kind in others:
        with suppress(BuildError):
            return _decode(kind, value, where)
    return _decode(last, value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise BuildError(f"{where}: expected an object with the fields of {kind.__name__}, not {_shown(value)}")
    hints = _hints(kind)
    for name in value:
        if name not in hints:
            raise BuildError(f"{where}: {kind.__name__} has no field {name!r}{nearest(name, hints)}")
    for name in hints:
        if name not in value:
            raise BuildError(f"{where}: the field {name!r} is missing")
    content = {name: _decode(hint, value[name], f"{where}.{name}") for name, hint in hints.items()}
    try:
        return kind(**content)
    except BuildError as error:
        raise BuildError(f"{where}: {error}") from None


def _member(kind: type[Enum], value: Any, where: str) -> Enum:
    known = [member.value for member in kind]
    if not isinstance(value, str) or value not in known:
        meant = nearest(value, known) if isinstance(value, str) else ""
        raise BuildError(f"{where}: {_shown(value)}{meant}; known are {', '.join(known)}")
    return kind(value)


def _scalar(kind: type, value: Any, where: str) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    # Python takes True for an int; JSON does not
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise BuildError(f"{where}: expected {_WORDS[kind]}, not {_shown(value)}")
    if isinstance(value, int | float) and not abs(value) < LARGEST_NUMBER:
        raise BuildError(f"{where}: expected {_WORDS[kind]} of at most 63 bits, not {_shown(value)}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _shown(value: object) -> str:
    return reprlib.repr(value)  # short, also where the value is long or deep
