"""targets.cpu.emitted_text: what an emitted entry says, as data: lanes of statements with the numbers in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...plan.steps import Cores

Ranges = tuple[tuple[int, int], ...]  # first <= core < last


class RankText(NamedTuple):
    """How a core finds its place among others: its number less `base`, or its place in `cores`; modulo `width`."""

    base: int | None = None
    cores: Cores = ()
    width: int = 0

    def of(self, core: int) -> int:
        place = 0
        if self.cores:
            place = self.cores.index(core) if core in self.cores else len(self.cores)
        elif self.base is not None:
            place = core - self.base
        return place % self.width if self.width else place


class CopyText(NamedTuple):
    """Where the private copy of a core lies; copy_of: per core, () for core c uses copy c."""

    copy_of: tuple[int, ...]
    offset: int
    stride: int


class ArgumentText(NamedTuple):
    slot: int
    scalar: str | None = None  # its C++ type
    copy: CopyText | None = None


class FunctionText(NamedTuple):
    """A function that is called: its symbols, one per copy of its code, with its arguments."""

    key: int | None  # of a variant
    symbols: tuple[str, ...]
    arguments: tuple[ArgumentText, ...]


class CallText(NamedTuple):
    step: int
    blocks: int | None  # None: as the tiling says
    tiling: int | None
    rank: RankText
    width: int | None  # None: one block per core
    checked: bool  # the core looks after each block whether the launch goes on
    functions: tuple[FunctionText, ...]


class TilingArgument(NamedTuple):
    """What a tiling function is given for a parameter."""

    name: str  # as a C string literal
    address: ArgumentText | None
    size: int | None  # slot of the size
    scalar: int | None  # slot of the value


class TilingText(NamedTuple):
    step: int
    tiling: int
    symbol: str
    most: int
    arguments: tuple[TilingArgument, ...]


Operand = int | tuple[int, ...] | tuple[str, ...] | RankText | CallText | TilingText


class Statement(NamedTuple):
    """What the cores of `guard` do; no guard: all cores of the lane."""

    line: int  # of the text, from 1
    guard: Ranges
    word: str
    operands: tuple[Operand, ...]


@dataclass
class Declared:
    """What an entry declares before its functions."""

    types: dict[str, tuple[str, ...]] = field(default_factory=dict)  # symbol -> types of its parameters
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the name of an array of copies -> symbols
    tilings: set[str] = field(default_factory=set)
    slots: dict[str, int] = field(default_factory=dict)
    copy_of: dict[str, tuple[int, ...]] = field(default_factory=dict)


class EntryText(NamedTuple):
    """An entry as its text says it."""

    name: str
    declared: Declared
    lanes: tuple[tuple[Ranges, tuple[Statement, ...]], ...]  # the cores of each lane, what they do
    alone: tuple[Statement, ...]  # the whole plan on one core


class TextError(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


class Lines:
    """The lines of a text that are neither blank nor comments, one after the other."""

    def __init__(self, text: str) -> None:
        numbered = enumerate(text.split("\n"), 1)
        stripped = ((number, line.strip()) for number, line in numbered)
        self._lines = [(number, line) for number, line in stripped if line and not line.startswith("//")]
        self._next = 0

    @property
    def number(self) -> int:
        """Of the next line; at the end, of the last."""
        return self._lines[min(self._next, len(self._lines) - 1)][0] if self._lines else 0

    def peek(self) -> str:
        return self._lines[self._next][1] if self._next < len(self._lines) else ""

    def take(self) -> str:
        line = self.peek()
        self._next += 1
        return line

    def until(self, end: str) -> Iterator[tuple[int, str]]:
        """The lines before `end`, which is taken too."""
        lines = self._lines
        for at in range(self._next, len(lines)):
            if lines[at][1] == end:
                self._next = at + 1
                return
            yield lines[at]
        raise self.error(f"begins what never ends in {end!r}")

    def expect(self, pattern: str) -> re.Match[str]:
        found = re.fullmatch(pattern, self.peek())
        if found is None:
            raise self.error(f"is {self.peek()!r}, which is not of the form {pattern}")
        self._next += 1
        return found

    def error(self, reason: str) -> TextError:
        return TextError(self.number, reason)


_ENUMERATOR = re.compile(r"(\w+),(?:  //.*)?")
_GUARD = re.compile(r"core\.in\((\d+), (\d+)\)")
GUARDS = r"core\.in\(\d+, \d+\)(?: \|\| core\.in\(\d+, \d+\))*"


def guard_ranges(text: str) -> Ranges:
    return tuple((int(first), int(last)) for first, last in _GUARD.findall(text))


def enumerators(lines: Lines, namespace: str) -> dict[str, int]:
    """The names of an enumeration, with their numbers."""
    lines.expect(rf"namespace {namespace} \{{")
    lines.expect(r"enum : int \{")
    found: dict[str, int] = {}
    for number, line in lines.until("};"):
        name = _ENUMERATOR.fullmatch(line)
        if name is None:
            raise TextError(number, f"is {line!r}, which is not an enumerator")
        found[name[1]] = len(found)
    lines.expect(rf"\}}  // namespace {namespace}")
    return found
