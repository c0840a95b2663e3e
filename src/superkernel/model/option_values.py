"""model.option_values: the kinds of values that options have: read from text, checked, brought to one form, shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any

from .plain_values import plain_number, whole_number


class Refused(Exception):
    """A value outside its kind; the row that catches it adds key, value and what is allowed."""


@dataclass(frozen=True)
class ValueKind:
    """How values of one kind are read from text, checked and brought to one form, and shown as text."""

    allowed: str
    read: Callable[[str], object]
    accept: Callable[[object], object]
    show: Callable[[Any], str]


_UNITS: Mapping[str, int] = MappingProxyType({"G": 1 << 30, "M": 1 << 20, "K": 1 << 10})


def _read_integer(text: str) -> int:
    # The length limit avoids the ValueError of int() for very long texts.
    if not re.fullmatch("[0-9]{1,18}", text):
        raise Refused
    return int(text)


def _read_bytes(text: str) -> int:
    suffix = text[-1:] if text[-1:] in _UNITS else ""
    return _read_integer(text.removesuffix(suffix)) * _UNITS.get(suffix, 1)


def _show_bytes(value: int) -> str:
    for suffix, unit in _UNITS.items():
        if value and value % unit == 0:
            return f"{value // unit}{suffix}"
    return str(value)


def integers(allowed: str, permitted: Container[int]) -> ValueKind:
    def accept(value: object) -> int:
        if (whole := whole_number(value)) is None or whole not in permitted:
            raise Refused
        return whole

    return ValueKind(allowed, _read_integer, accept, str)


def closed(*members: bool | Enum) -> ValueKind:
    def show(member: bool | Enum) -> str:
        return str(member.value if isinstance(member, Enum) else int(member))

    def accept(value: object) -> object:
        # A member may also be given as its text, so that what `allowed` lists is never refused.
        wanted = by_text.get(value) if isinstance(value, str) else plain_number(value)
        for member in members:
            if isinstance(wanted, int | Enum) and wanted == member:
                return member
        raise Refused

    by_text = {show(member): member for member in members}
    return ValueKind(", ".join(by_text), accept, accept, show)


def _read_seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise Refused
    return float(text)


def _accept_seconds(value: object) -> float:
    # The comparison also refuses nan, and comes first: float() overflows on a huge int.
    seconds = plain_number(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 86400:
        raise Refused
    return float(seconds)


def _show_seconds(value: float) -> str:
    # Decimal writes small numbers without the exponent that the option text does not have.
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


_ITEM_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda item: not item.strip(), "an item is empty"),
    (lambda item: item != item.strip(), "an item has white space around it"),
    (lambda item: "," in item, "a comma separates items, so one that holds a comma, as -Wl,-z,now, cannot be given"),
    (lambda item: ":" in item, "a colon separates options, so no value can hold one"),
    (lambda item: not item.isprintable(), "an item has unprintable characters"),
)


def _read_texts(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(","))


def _accept_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise Refused("a tuple of strings is needed")
    for item in value:
        for is_faulty, fault in _ITEM_FAULTS:
            if is_faulty(item):
                raise Refused(fault)
    return tuple(value)


FLAG = closed(False, True)
COPIES = integers("an integer from 1 to 64", range(1, 65))
ALIGN = integers("0, or a power of two from 2 to 65536", frozenset({0, *(1 << bit for bit in range(1, 17))}))
CORES = integers("an integer from 0 to 1000000", range(1_000_001))
_BYTES = integers("0, 1 (the target's budget), or bytes up to 1024G, with K, M or G as in 8M", range((1 << 40) + 1))
PREFETCH = replace(_BYTES, read=_read_bytes, show=_show_bytes)
SECONDS = ValueKind("seconds up to 86400, as 30 or 0.5; 0: off", _read_seconds, _accept_seconds, _show_seconds)
TEXTS = ValueKind("texts separated by commas, as -g,-O2", _read_texts, _accept_texts, ",".join)
OP_TYPES = replace(TEXTS, allowed="op types separated by commas, as MatMul,Add")
