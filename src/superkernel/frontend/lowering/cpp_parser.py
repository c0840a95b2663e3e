"""frontend.cpptext: the text of a C++ block -> its statements; just enough grammar for code that a generator wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENING, _CLOSING = "([{", ")]}"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FOR = re.compile(
    r"for\s*\(\s*int64_t\s+(\w+)\s*=\s*(.*?);\s*\1\s*<\s*(.*?);\s*\1\s*\+=\s*(.*?)\s*\)\s*(?=\{)", re.DOTALL
)


@dataclass(frozen=True)
class Loop:
    """`for (int64_t variable = first; variable < last; variable += step) body`."""

    variable: str
    first: str
    last: str
    step: str
    body: str  # with its braces


class TextError(ValueError):
    """The text is not what was expected."""


def statements(text: str) -> list[str]:
    """The statements of a block's inside; a preprocessor line is a statement of its own."""
    return list(_split(text))


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    at, end = 0, len(text)
    while at < end:
        char = text[at]
        if char in "\"'":
            at = _after_literal(text, at)
            continue
        if text.startswith("//", at):
            at = _after_line(text, at)
            continue
        if char == "#" and depth == 0 and not text[start:at].strip():
            at = start = _after_line(text, at)
            yield text[text.rfind("#", 0, at) : at].strip()
            continue
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth < 0:
                raise TextError("a bracket is closed that was never opened")
        at += 1
        if depth == 0 and (char == ";" or (char == "}" and _block_ends(text, start, at))):
            yield text[start:at].strip()
            start = at
    if depth or text[start:].strip():
        raise TextError(f"unfinished statement {text[start:].strip()[:80]!r}")


def _block_ends(text: str, start: int, after: int) -> bool:
    """A closing brace ends a statement unless something goes on: else, or an expression around a lambda."""
    head = text[start:after].lstrip()
    if not (head.startswith("{") or re.match(r"(for|if|while|struct|else)\b", head)):
        return False
    return not re.match(r"\s*(else\b|;)", text[after:])


def _after_literal(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _after_line(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def is_block(statement: str) -> bool:
    return statement.startswith("{")


def inside(block: str) -> str:
    """The text between the braces of a block."""
    if not (block.startswith("{") and block.endswith("}")):
        raise TextError(f"{block[:80]!r} is no block")
    return block[1:-1]


def loop(statement: str) -> Loop:
    match = _FOR.match(statement)
    if match is None:
        raise TextError(f"{statement[:80]!r} is no counting loop")
    variable, first, last, step = match.groups()
    return Loop(variable, first, last, step, statement[match.end() :])


def identifiers(text: str) -> frozenset[str]:
    return frozenset(_IDENTIFIER.findall(text))
