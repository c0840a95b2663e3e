"""observe.compare_text: a comparison -> tables and sentences for a terminal, in at most 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .compare import Difference, ProfileComparison, ScopeDifference

WIDTH = 80
_LEAST_NAME = 12  # columns of a name, however wide the numbers are
_GAP = 2
_INDENT = "  "


@dataclass(frozen=True)
class TextTable:
    """Cells as text: names stand left and are wrapped, numbers stand right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1  # how many of the first columns are names; the first of them is as wide as there is room

    def lines(self, width: int = WIDTH) -> list[str]:
        cells = [self.head, *self.rows]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.head))]
        others = sum(widths[1:]) + _GAP * (len(widths) - 1)
        widths[0] = max(_LEAST_NAME, min(widths[0], width - others))
        ruler = "-" * min(width, sum(widths) + _GAP * (len(widths) - 1))
        body = [line for row in self.rows for line in self._row(row, widths)]
        return [*wrapped_words(self.title, width), *self._row(self.head, widths), ruler, *body]

    def _row(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        first, *more = wrapped_name(row[0], widths[0])
        cells = [first.ljust(widths[0])]
        for place, (cell, width) in enumerate(zip(row[1:], widths[1:], strict=True), start=1):
            cells.append(cell.ljust(width) if place < self.names else cell.rjust(width))
        return [(" " * _GAP).join(cells).rstrip(), *more]


def comparison_lines(comparison: ProfileComparison, width: int = WIDTH) -> list[str]:
    """Everything that the command compare prints."""
    lines = [*type_table(comparison).lines(width), ""]
    if len(comparison.scopes) > 1:
        lines += [*scope_table(comparison).lines(width), ""]
    return lines + [piece for line in comparison.summary() for piece in wrapped_words(line, width)]


def type_table(comparison: ProfileComparison) -> TextTable:
    before, after = comparison.before, comparison.after
    total = Difference("Total", "", len(before.launches), before.total_us, len(after.launches), after.total_us)
    first, second = _short_titles(comparison)
    rows = [(row.op_type, row.core_type, *_cells(row)) for row in (*comparison.rows, total)]
    head = ("OP Type", "Core Type", "Count", "us before", "Count", "us after", "change %")
    return TextTable(f"Total Time(us) of launches: {first} before, {second} after", head, tuple(rows), names=2)


def scope_table(comparison: ProfileComparison) -> TextTable:
    head = ("Scope, per call", "launches", "us before", "launches", "us after", "change %")
    rows = (_scope_cells(row) for row in comparison.scopes)
    first, second = _short_titles(comparison)
    return TextTable(f"Scopes: {first} before, {second} after", head, tuple(rows))


def _short_titles(comparison: ProfileComparison) -> tuple[str, str]:
    first, second = (Path(title).name or title for title in comparison.titles)
    return first, second


def _cells(row: Difference) -> list[str]:
    sides = ((row.before_count, row.before_us), (row.after_count, row.after_us))
    cells = [cell for count, us in sides for cell in ((str(count), _time(us)) if count else ("", ""))]
    return [*cells, _percent(row.change_percent if row.after_count else None)]


def _scope_cells(row: ScopeDifference) -> tuple[str, ...]:
    cells = [
        cell
        for side in (row.before, row.after)
        for cell in (("", "") if side is None else (f"{side.launches:g}", _time(side.time_us)))
    ]
    return (row.scope, *cells, _percent(row.change_percent))


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e5 else f"{us:.0f}"


def _percent(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+.1f}"


def wrapped_words(text: str, width: int = WIDTH) -> list[str]:
    """Lines of whole words; a path or a name that is longer than a line is broken as `wrapped_name` does."""
    words = (piece for word in text.split(" ") for piece in wrapped_name(word, width - len(_INDENT)))
    lines = [""]
    for word in words:
        if lines[-1].strip() and len(lines[-1]) + 1 + len(word) > width:
            lines.append(_INDENT + word)
        else:
            lines[-1] += f" {word}" if lines[-1].strip() else word
    return lines


def wrapped_name(name: str, width: int) -> list[str]:
    """Lines of a name, which is broken behind `_`, `.`, `:` and `/`; in the middle of a word only where it must be."""
    lines = [""]
    for part in _parts(name, width):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def _parts(name: str, width: int) -> Iterable[str]:
    for part in re.findall(r"[^_.:/ ]*[_.:/ ]*", name):
        yield from (part[at : at + width] for at in range(0, len(part), width))
