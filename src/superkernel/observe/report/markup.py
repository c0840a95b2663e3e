"""observe.report.markup: texts -> pieces of HTML, with everything escaped that users wrote."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    title: str
    number: bool = False  # stands to the right


def escaped(text: str) -> str:
    # NUL is no character of a page; browsers would each show it in their own way
    return html.escape(text.replace("\0", "\N{REPLACEMENT CHARACTER}"), quote=True)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Cells are plain text."""
    kinds = ["number" if column.number else "text" for column in columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{escaped(column.title)}</th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escaped(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    # a table that is too wide scrolls by itself, by keyboard as well
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


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
