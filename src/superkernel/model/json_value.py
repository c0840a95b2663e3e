"""json_value: a JSON file -> values that know where they stand, so that an error names the file and the field."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BuildError, GraphError, SuperKernelError, nearest

MAX_BYTES = 64 << 20
_MAX_DIGITS = 40
_WHOLE_END: int = 10**_MAX_DIGITS
_MAX_TEXT = 4000  # no path is longer; and sizes written in it stay short enough for Python to print
_SHOWN = 60
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_IN_NO_LINE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class _UnportableNumber(Exception):
    """A number that JSON readers disagree on; `parse_json` catches it and adds the file."""


class _JsonObject(dict[str, Any]):
    """A JSON object that remembers a repeated key."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.repeated = next((key for key, count in counts.items() if count > 1), None)


def parse_json(file: Path) -> JsonValue:
    """The whole file as one value."""
    try:
        stream = file.open("rb")
    except (OSError, ValueError) as reason:  # a path with a NUL in it is a ValueError
        raise _unreadable(file, reason) from reason
    with stream:
        return parse_json_stream(stream, file)


def parse_json_stream(stream: BinaryIO, file: Path) -> JsonValue:
    """The same of a file that is open."""
    try:
        raw = stream.read(MAX_BYTES + 1)
    except OSError as reason:  # it is a folder, for example
        raise _unreadable(file, reason) from reason
    if len(raw) > MAX_BYTES:
        raise GraphError(f"{file}: larger than {MAX_BYTES >> 20} MiB, which is no description of kernels")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        column = reason.start - raw.rfind(b"\n", 0, reason.start)
        raise GraphError(f"{file}: line {line}, column {column}: not UTF-8 text: {reason.reason}") from reason
    try:
        value = json.loads(
            text, object_pairs_hook=_JsonObject, parse_int=_whole, parse_float=_finite, parse_constant=_no_constant
        )
    except json.JSONDecodeError as reason:
        raise GraphError(f"{file}: line {reason.lineno}, column {reason.colno}: not JSON: {reason.msg}") from reason
    except _UnportableNumber as reason:
        raise GraphError(f"{file}: {reason}") from None
    except RecursionError:
        raise GraphError(f"{file}: lists and objects are nested too deeply") from None
    return JsonValue(str(file), "", value)


def _unreadable(file: Path, reason: Exception) -> GraphError:
    return GraphError(f"{file}: cannot be read: {getattr(reason, 'strerror', None) or reason}")


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _UnportableNumber(f"the number {digits[:_SHOWN]}... has more than {_MAX_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _UnportableNumber(f"the number {text[:_SHOWN]} is too large")
    return value


def _no_constant(name: str) -> None:
    raise _UnportableNumber(f"{name} is not JSON: pass such a value by name, at launch")


@dataclass(frozen=True)
class FieldPlace:
    """Where a field stands."""

    file: str
    path: str

    def __str__(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file


@dataclass(frozen=True)
class JsonValue:
    """A value of a JSON file and its location, for error messages."""

    file: str
    path: str
    value: Any

    def error(self, message: str) -> GraphError:
        return GraphError(f"{self.where}: {message}")

    @property
    def place(self) -> FieldPlace:
        return FieldPlace(self.file, self.path)

    @property
    def where(self) -> str:
        return str(self.place)

    def at(self, key: str | int) -> JsonValue:
        if isinstance(key, int):
            step = f"[{key}]"
        elif _PLAIN_KEY.fullmatch(key):
            step = f".{key}" if self.path else key
        else:
            step = f"[{shown(key)}]"
        return JsonValue(self.file, self.path + step, self.value[key])

    def entries(self) -> dict[str, JsonValue]:
        """All fields of an object."""
        if not isinstance(self.value, _JsonObject):
            raise self.error(f"{shown(self.value)} is not an object")
        if self.value.repeated is not None:
            raise self.error(f"the key {shown(self.value.repeated)} stands twice")
        return {key: self.at(key) for key in self.value}

    def fields(self, known: Sequence[str], required: Sequence[str]) -> dict[str, JsonValue]:
        """The fields of an object; unknown ones are refused, and null counts as absent."""
        found = self.entries()
        for key, field in found.items():
            if key not in known:
                raise field.error(f"unknown field{nearest(key, known)}; fields are {', '.join(known)}")
        present = {key: field for key, field in found.items() if field.value is not None}
        for key in required:
            if key not in present:
                raise self.error(f"the field {key!r} is missing")
        return present

    def foreign_fields(
        self, known: Sequence[str], required: Sequence[str]
    ) -> tuple[dict[str, JsonValue], tuple[FieldPlace, ...]]:
        """The fields of an object that another tool wrote, and where those stand that are not known; null is absent."""
        present = {key: field for key, field in self.entries().items() if field.value is not None}
        unknown = [key for key in present if key not in known]
        for key in required:
            if key not in present:
                raise self.error(f"the field {key!r} is missing{nearest(key, unknown)}")
        return {key: present[key] for key in present if key in known}, tuple(present[key].place for key in unknown)

    def items(self) -> list[JsonValue]:
        if not isinstance(self.value, list):
            raise self.error(f"{shown(self.value)} is not a list")
        return [self.at(index) for index in range(len(self.value))]

    def text(self) -> str:
        """A string that can be a name, a path or a symbol."""
        if not isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a string")
        if not self.value.strip():
            raise self.error("the string is blank")
        return self.line()

    def line(self) -> str:
        """A string, perhaps blank, without control characters."""
        if not isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a string")
        if len(self.value) > _MAX_TEXT:
            raise self.error(f"the string has {len(self.value)} characters; at most {_MAX_TEXT} are allowed")
        if bad := _IN_NO_LINE.search(self.value):
            raise self.error(f"{shown(self.value)} contains the character {bad[0]!r}")
        return self.value

    def one_of(self, known: Sequence[str], what: str) -> str:
        text = self.text()
        if text not in known:
            raise self.error(f"{shown(text)} is no {what}{nearest(text, known)}; there are {', '.join(known)}")
        return text

    def whole(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.error(f"{shown(self.value)} is not a whole number")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error(f"{shown(self.value)} is not true or false")
        return self.value

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())


def is_line(text: str) -> bool:
    """Whether `JsonValue.line` accepts it."""
    return len(text) <= _MAX_TEXT and not _IN_NO_LINE.search(text)


def as_line(text: str) -> str:
    """The text as `JsonValue.line` accepts it."""
    return _IN_NO_LINE.sub(" ", text)[:_MAX_TEXT].strip()


def is_whole(number: int) -> bool:
    """Whether a file can hold the number."""
    return -_WHOLE_END < number < _WHOLE_END


def shown(value: object) -> str:
    """A value for a message: shortened; a container by its kind only, because it may be deep."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    return json.dumps(value)


@contextmanager
def located(value: JsonValue, binary: JsonValue | None = None) -> Iterator[None]:
    """Adds the location of `value` to errors raised inside; a BuildError names `binary` if it is given."""
    try:
        yield
    except BuildError as error:
        raise BuildError(f"{(binary or value).where}: {error}") from error
    except SuperKernelError as error:
        raise type(error)(f"{value.where}: {error}") from error
    except OSError as reason:  # a path that is too long, or in a folder without read permission
        raise BuildError(f"{(binary or value).where}: {reason}") from reason
