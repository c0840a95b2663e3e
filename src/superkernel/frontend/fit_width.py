"""frontend.fit_width: texts -> lines that fit a number of columns, wrapped or cut."""

from __future__ import annotations

import textwrap

LEAST = 40  # columns; below it a report is as for 40
_INDENT = 2  # of what is wrapped, more than the line that it continues


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines; those after the first are indented more than it."""
    if len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.lstrip(),
        max(width, LEAST),
        initial_indent=indent,
        subsequent_indent=indent + " " * _INDENT,
        break_on_hyphens=False,
    )


def cut(text: str, width: int) -> str:
    """The beginning of the text, with dots where something is left out."""
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."


def short_place(line: str) -> str:
    """The line of a model, "model.py:12: code", without the folder of installed packages in front."""
    return line.rpartition("/site-packages/")[2]


def fitting_place(line: str, room: int) -> str:
    """The same, with the name of the file alone where it does not fit, and cut at the end."""
    place = short_place(line)
    if len(place) > room:
        file, colon, others = place.partition(":")
        place = f"{file.rpartition('/')[2]}{colon}{others}"
    return cut(place, room)
