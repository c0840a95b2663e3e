"""targets.ascend.operators.text_format: protobuf's text format, or the same as JSON -> messages with their lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....errors import GraphError, shown

MAX_BYTES = 256 << 20
_MOST_DEPTH = 100
_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<word>[A-Za-z_][\w.]*)|(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|
    (?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|inf|nan))|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}<>:\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11}
_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class Message:
    """The fields of a message; a field that is repeated has several values."""

    where: str  # file and line, for errors
    fields: dict[str, list[Any]] = field(default_factory=dict)

    def error(self, text: str) -> GraphError:
        return GraphError(f"{self.where}: {text}")

    def messages(self, name: str) -> list[Message]:
        values = self.fields.get(name, [])
        for value in values:
            if not isinstance(value, Message):
                raise self.error(f"{name} is {shown(value)}; a message is needed")
        return values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._single(name, default)
        if not isinstance(value, str):
            raise self.error(f"{name} is {shown(value)}; a text is needed")
        return value

    def texts(self, name: str) -> list[str]:
        values = self.fields.get(name, [])
        if any(not isinstance(value, str) for value in values):
            raise self.error(f"{name} is {shown(values)}; texts are needed")
        return list(values)

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._single(name, default)
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):  # as JSON writes 64-bit numbers
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{name} is {shown(value)}; a whole number is needed")
        return value

    def wholes(self, name: str) -> list[int]:
        return [Message(self.where, {name: [value]}).whole(name) for value in self.fields.get(name, [])]

    def _single(self, name: str, default: Any) -> Any:
        values = self.fields.get(name, [])
        if len(values) > 1:
            raise self.error(f"{name} stands {len(values)} times; once is allowed")
        if not values and default is None:
            raise self.error(f"{name} is missing")
        return values[0] if values else default


def read_message(path: Path) -> Message:
    """The whole file, by its first sign text format or JSON."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as reason:
        raise GraphError(f"{path}: cannot be read: {getattr(reason, 'strerror', None) or reason}") from reason
    if len(raw) > MAX_BYTES:
        raise GraphError(f"{path}: larger than {MAX_BYTES >> 20} MiB; dump it without weights (DUMP_GE_GRAPH=2)")
    text = raw.decode("utf-8-sig", errors="replace")
    if not text.lstrip().startswith(("{", "[")):
        return _Parser(str(path), text).top()
    try:
        return _of_json(json.loads(text), str(path))
    except json.JSONDecodeError as reason:
        raise GraphError(f"{path}: line {reason.lineno}, column {reason.colno}: not JSON: {reason.msg}") from reason
    except RecursionError:
        raise GraphError(f"{path}: lists and objects are nested too deeply") from None


def _of_json(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise GraphError(f"{where}: {shown(value)} is not an object")
    fields: dict[str, list[Any]] = {}
    for name, given in value.items():
        inside = f"{where}: {name}"
        items = given if isinstance(given, list) else [given]
        fields[name] = [_of_json(item, inside) if isinstance(item, dict) else item for item in items]
    return Message(where, fields)


_Token = tuple[str, str]  # kind, text


@dataclass
class _Parser:
    file: str
    text: str
    line: int = 1  # of the token that was taken last
    _tokens: Iterator[tuple[_Token, int]] = field(init=False)
    _next: _Token = ("", "")
    _next_line: int = 1

    def __post_init__(self) -> None:
        self._tokens = self._scan()
        self._advance()

    def top(self) -> Message:
        message = self._fields("", 0)
        if not message.fields:
            raise GraphError(f"{self.file}: there is nothing in it; a graph in protobuf's text format is needed")
        return message

    def _scan(self) -> Iterator[tuple[_Token, int]]:
        at, line = 0, 1
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                strange = self.text[at : at + 20].splitlines()[0]
                raise GraphError(f"{self.file}: line {line}: {strange!r} is not protobuf's text format")
            at = found.end()
            if found.lastgroup != "space":
                yield (found.lastgroup or "", found.group()), line
            line += found.group().count("\n")
        yield ("end", "the end of the file"), line

    def _error(self, text: str) -> GraphError:
        return GraphError(f"{self.file}: line {self.line}: {text}")

    def _advance(self) -> _Token:
        taken, self.line = self._next, self._next_line
        self._next, self._next_line = next(self._tokens, (("end", "the end of the file"), self.line))
        return taken

    def _fields(self, closing: str, depth: int) -> Message:
        if depth > _MOST_DEPTH:
            raise self._error("messages are nested too deeply")
        message = Message(f"{self.file}: line {self.line}")
        while self._next[1] != closing or self._next[0] != "sign":
            kind, name = self._advance()
            if kind == "end" and not closing:
                return message
            if kind != "word":
                raise self._error(f"{name!r} where a field{f' or {closing!r}' if closing else ''} is expected")
            message.fields.setdefault(name, []).extend(self._values(depth))
        self._advance()
        return message

    def _values(self, depth: int) -> list[Any]:
        if self._next == ("sign", ":"):
            self._advance()
        elif self._next[1] not in _CLOSING:
            raise self._error(f"{self._next[1]!r} where ':' or '{{' is expected")
        if self._next != ("sign", "["):
            return [self._value(depth)]
        self._advance()
        values = []
        while self._next != ("sign", "]"):
            values.append(self._value(depth))
        self._advance()
        return values

    def _value(self, depth: int) -> Any:
        kind, text = self._advance()
        if kind == "sign" and text in _CLOSING:
            return self._fields(_CLOSING[text], depth + 1)
        if kind == "string":
            parts = [text]
            while self._next[0] == "string":
                parts.append(self._advance()[1])
            return b"".join(map(_unescaped, parts)).decode("utf-8", errors="replace")
        if kind == "number":
            return _number(text)
        if kind == "word":
            return {"true": True, "false": False}.get(text, text)
        raise self._error(f"{text!r} where a value is expected")


def _number(text: str) -> int | float:
    plain = text.rstrip("fF") if not text.lower().startswith(("0x", "-0x")) else text
    try:
        return int(plain, 0) if re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|0|[1-9]\d*)", plain) else float(plain)
    except ValueError:
        return float("nan")


def _unescaped(literal: str) -> bytes:
    made, at = bytearray(), 1
    for found in _ESCAPE.finditer(literal, 1, len(literal) - 1):
        made += literal[at : found.start()].encode("utf-8", errors="replace")
        octal, hexadecimal, other = found.groups()
        if octal is not None:
            made.append(int(octal, 8) & 255)
        elif hexadecimal is not None:
            made.append(int(hexadecimal, 16))
        else:
            made += bytes([_ESCAPED[other]]) if other in _ESCAPED else other.encode("utf-8", errors="replace")
        at = found.end()
    return bytes(made + literal[at:-1].encode("utf-8", errors="replace"))
