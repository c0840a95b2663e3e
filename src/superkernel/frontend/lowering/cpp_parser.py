"""frontend.lowering.cpp_parser: the text of a C++ block -> its statements, in the subset that Inductor generates."""

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
class CountingLoop:
    """`for (int64_t variable = first; variable < last; variable += step) body`."""

    variable: str
    first: str
    last: str
    step: str
    body: str  # with its braces


class ParseError(ValueError):
    """The text is outside of the subset that the parser knows."""


class OutlineError(ParseError):
    """The kernel is not of a form that can be outlined; the message is for the report."""


def statements(text: str) -> list[str]:
    """The statements between the braces of a block; a preprocessor line is a statement."""
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
                raise ParseError("a bracket is closed that was never opened")
        at += 1
        if depth == 0 and (char == ";" or (char == "}" and _block_ends(text, start, at))):
            yield text[start:at].strip()
            start = at
    if depth or text[start:].strip():
        raise ParseError(f"unfinished statement {text[start:].strip()[:80]!r}")


def _block_ends(text: str, start: int, after: int) -> bool:
    """A closing brace ends a statement unless `else` follows or it closes a lambda inside an expression."""
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
        raise ParseError(f"{block[:80]!r} is not a block")
    return block[1:-1]


def counting_loop(statement: str) -> CountingLoop:
    match = _FOR.match(statement)
    if match is None:
        raise ParseError(f"{statement[:80]!r} is not a counting loop")
    variable, first, last, step = match.groups()
    return CountingLoop(variable, first, last, step, statement[match.end() :])


def identifiers(text: str) -> frozenset[str]:
    return frozenset(_IDENTIFIER.findall(text))
