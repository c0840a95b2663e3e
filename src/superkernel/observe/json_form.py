"""observe.json_form: frozen dataclasses <-> JSON values, by their type hints; every mistake is named by its place.

A dataclass is an object with its fields; a span, of which there may be a million, is a list of its fields, without the
last ones that have their default value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import BuildError, nearest
from ..plan.spans import Span
from .profile import LARGEST_NUMBER

T = TypeVar("T")
# a JSON value -> what it stands for; a BuildError begins with the place inside the value
Decoder = Callable[[Any], Any]
_PLAIN = (str, int, float, bool, NoneType)
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def encode(value: Any) -> Any:
    """Dataclasses, tuples, mappings, enums and plain values -> what `json` writes."""
    if type(value) in _PLAIN:
        return value
    if type(value) is Span:
        return _row_of(value)
    if is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: encode(entry) for name, entry in value.items()}
    return value.value if isinstance(value, Enum) else value


def _row_of(span: Span) -> list[Any]:
    row = [span.core, span.what.value, span.op, span.begin_ns, span.end_ns]
    if span.inside or span.waited_for is not None:
        row.append(span.inside)
    if span.waited_for is not None:
        row += [span.waited_for, span.signalled_by]
    return row


def decode(kind: type[T], value: object, where: str) -> T:
    """A `kind` from what `json` read: all of its fields and no others, each of its type; otherwise a BuildError."""
    hint: Any = kind
    decoded: T = _decoded(_decoder(hint), value, where)
    return decoded


@cache
def _decoder(hint: Any) -> Decoder:
    if is_dataclass(hint):
        decoders = {name: _decoder(field_hint) for name, field_hint in get_type_hints(hint).items()}
        if hint is Span:
            least = sum(field.default is MISSING for field in fields(hint))
            return partial(_row, hint, list(decoders.items()), least)
        return partial(_dataclass, hint, decoders)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return partial(_tuple, _decoder(inner[0]))
    if origin is Mapping:
        return partial(_mapping, _decoder(inner[1]))
    if origin in (Union, UnionType):
        return partial(_choice, NoneType in inner, [_decoder(kind) for kind in inner if kind is not NoneType])
    return partial(_member if issubclass(hint, Enum) else _scalar, hint)


def _dataclass(kind: Any, decoders: Mapping[str, Decoder], value: Any) -> Any:
    if not isinstance(value, dict):
        raise BuildError(f": expected an object with the fields of {kind.__name__}, not {_shown(value)}")
    for name in value:
        if name not in decoders:
            raise BuildError(f": {kind.__name__} has no field {name!r}{nearest(name, decoders)}")
    content = {}
    for name, decoder in decoders.items():
        if name not in value:
            raise BuildError(f": the field {name!r} is missing")
        content[name] = _decoded(decoder, value[name], f".{name}")
    return _decoded(lambda fields: kind(**fields), content, ": ")


def _row(kind: Any, decoders: list[tuple[str, Decoder]], least: int, value: Any) -> Any:
    if not isinstance(value, list):
        raise BuildError(f": expected a list of the fields of {kind.__name__}, not {_shown(value)}")
    if not least <= len(value) <= len(decoders):
        raise BuildError(f": {kind.__name__} has {least} to {len(decoders)} fields, not {len(value)}")
    content = []
    for (name, decoder), entry in zip(decoders, value, strict=False):
        try:
            content.append(decoder(entry))
        except BuildError as error:
            raise BuildError(f".{name}{error}") from None
    return kind(*content)


def _decoded(decoder: Decoder, value: Any, place: str) -> Any:
    try:
        return decoder(value)
    except BuildError as error:
        raise BuildError(f"{place}{error}") from None


def _tuple(decoder: Decoder, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise BuildError(f": expected a list, not {_shown(value)}")
    return tuple(_decoded(decoder, entry, f"[{index}]") for index, entry in enumerate(value))


def _mapping(decoder: Decoder, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BuildError(f": expected an object, not {_shown(value)}")
    return {name: _decoded(decoder, entry, f".{name}") for name, entry in value.items()}


def _choice(may_be_none: bool, decoders: list[Decoder], value: Any) -> Any:
    if value is None and may_be_none:
        return None
    for decoder in decoders[:-1]:
        with suppress(BuildError):
            return decoder(value)
    return decoders[-1](value)


def _member(kind: type[Enum], value: Any) -> Enum:
    known = [member.value for member in kind]
    if not isinstance(value, str) or value not in known:
        meant = nearest(value, known) if isinstance(value, str) else ""
        raise BuildError(f": {_shown(value)}{meant}; known are {', '.join(known)}")
    return kind(value)


def _scalar(kind: type, value: Any) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    # Python takes True for an int; JSON does not
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise BuildError(f": expected {_WORDS[kind]}, not {_shown(value)}")
    if isinstance(value, int | float) and not abs(value) < LARGEST_NUMBER:
        raise BuildError(f": expected {_WORDS[kind]} of at most 63 bits, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return reprlib.repr(value)  # short, also where the value is long or deep
