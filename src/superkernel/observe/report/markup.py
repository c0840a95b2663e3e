"""observe.report.markup: texts -> pieces of HTML, with everything escaped that users wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...model.notebook_html import escaped

_LONG_NAME = 20  # characters; a shorter one is not broken


@dataclass(frozen=True)
class Column:
    title: str
    number: bool = False  # stands to the right


@dataclass(frozen=True)
class Cell:
    """A number as text, and the value that it is sorted by; None: not known, last in any order."""

    text: str
    value: float | None


def breakable(text: str) -> str:
    """Escaped; a long name may be broken behind `_`, `.`, `:` and `/`, never inside of a word."""
    return re.sub(rf"\S{{{_LONG_NAME},}}", _with_breaks, escaped(text))


def _with_breaks(name: re.Match[str]) -> str:
    return re.sub(r"(?<=[\w)])([_/:]+|\.(?=[A-Za-z_]))(?=\w)", r"\1<wbr>", name[0])


def with_units(text: str) -> str:
    """Escaped; no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|[µmn]?s\b|ticks?\b)", "&nbsp;", escaped(text))


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]], caption: str) -> str:
    """The title of a column sorts by it. Cells are plain text."""
    kinds = ["number" if column.number else "text" for column in columns]
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button" class="sort">{escaped(column.title)}</button></th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)) + "</tr>" for row in rows
    )
    # a table that is too wide scrolls by itself, by keyboard as well
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(cell: str | Cell, kind: str) -> str:
    if isinstance(cell, str):
        return f'<td class="{kind}">{breakable(cell)}</td>'
    value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
    return f'<td class="{kind}"{value}>{breakable(cell.text)}</td>'


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escaped(text)}</p>' if kind else f"<p>{escaped(text)}</p>"


def folded(title: str, content: str, opened: bool = False) -> str:
    """`content` is HTML."""
    return f"<details{' open' if opened else ''}><summary>{escaped(title)}</summary>\n{content}\n</details>"


def listing(text: str, label: str) -> str:
    """A text as it is, with lines that are comments in another colour."""
    lines = (
        f'<span class="comment">{escaped(line)}</span>' if line.lstrip().startswith("//") else escaped(line)
        for line in text.splitlines()
    )
    # the first line break after <pre> is not part of its text
    return f'<pre tabindex="0" role="region" aria-label="{escaped(label)}">\n' + "\n".join(lines) + "</pre>"


def chart(kind: str, number: int, label: str, described_by: str = "") -> str:
    """The element of a chart. The keyboard reaches it where keys do something."""
    keys = f' tabindex="0" aria-describedby="{described_by}"' if described_by else ""
    role = "group" if described_by else "img"
    return (
        f'<figure><div class="chart {kind}" id="{kind}-{number}" data-chart="{kind}" data-number="{number}" '
        f'role="{role}" aria-label="{escaped(label)}"{keys}></div>'
        f"<figcaption>{escaped(label)}</figcaption></figure>"
    )
