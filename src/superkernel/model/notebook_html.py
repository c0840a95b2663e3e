"""model.notebook_html: texts and tables -> HTML that notebooks show, with everything escaped that users wrote."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_MONOSPACE = "white-space: pre; overflow-x: auto; line-height: 1.3"


def escaped(text: str) -> str:
    # NUL is no character of a page; browsers would each show it in their own way
    return html.escape(text.replace("\0", "\N{REPLACEMENT CHARACTER}"), quote=True)


def heading(text: str) -> str:
    return f"<p><b>{escaped(text)}</b></p>"


def paragraph(text: str) -> str:
    return f"<p>{escaped(text)}</p>"


def listing(lines: Iterable[str]) -> str:
    """Lines as they are, in a monospaced font."""
    return f'<pre style="{_MONOSPACE}">\n' + "\n".join(map(escaped, lines)) + "</pre>"


def folded(title: str, content: str) -> str:
    """`content` is HTML, shown when the reader opens it."""
    return f"<details><summary>{escaped(title)}</summary>\n{content}\n</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are plain text; those that are numbers stand to the right."""
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(text: str) -> str:
    is_number = text.strip("+-").replace(".", "", 1).isdigit()
    return f'<td style="text-align: {"right" if is_number else "left"}">{escaped(text)}</td>'


def page(*pieces: str) -> str:
    """The pieces that are not empty, as one element."""
    return "<div>\n" + "\n".join(filter(None, pieces)) + "\n</div>"
