"""observe.report.decode: JSON values -> dataclasses, by their type hints; every mistake is named by its place."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ...errors import BuildError, nearest

T = TypeVar("T")
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def decode(kind: type[T], value: object, where: str) -> T:
    """A `kind` from what JSON gave. Fields with a default may be missing, unknown fields are refused."""
    made: T = _decode(kind, value, where)
    return made


def _decode(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return _dataclass(hint, value, where)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, list | tuple):
            raise BuildError(f"{where}: expected a list, not {_shown(value)}")
        return tuple(_decode(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if get_origin(hint) in (Union, UnionType):  # only X | None is used
        inner = next(one for one in get_args(hint) if one is not type(None))
        return None if value is None else _decode(inner, value, where)
    if issubclass(hint, Enum):
        return _member(hint, value, where)
    return _scalar(hint, value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise BuildError(f"{where}: expected an object with the fields of {kind.__name__}, not {_shown(value)}")
    hints = _hints(kind)
    for name in value:
        if name not in hints:
            raise BuildError(f"{where}: {kind.__name__} has no field {name!r}{nearest(name, hints)}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise BuildError(f"{where}: the field {field.name!r} is missing")
    found = {name: _decode(hints[name], entry, f"{where}.{name}") for name, entry in value.items()}
    try:
        return kind(**found)
    except BuildError as error:
        raise BuildError(f"{where}: {error}") from None


def _member(kind: type[Enum], value: Any, where: str) -> Enum:
    known = [member.value for member in kind]
    if not isinstance(value, str) or value not in known:
        raise BuildError(f"{where}: {_shown(value)}{nearest(str(value), known)}; known are {', '.join(known)}")
    return kind(value)


def _scalar(kind: type, value: Any, where: str) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    # True is an int to Python, and is none to whoever wrote the file
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise BuildError(f"{where}: expected {_WORDS[kind]}, not {_shown(value)}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
