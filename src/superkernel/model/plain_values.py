"""plain_values: what a user passed -> a whole number, a truth value or a path; numpy's numbers count as numbers."""

from __future__ import annotations

import operator
import os
from pathlib import Path

from ..errors import SuperKernelError, shown


def whole_number(value: object) -> int | None:
    """A whole number, numpy's as well, as an int; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def plain_number(value: object) -> object:
    """A number of numpy as Python's; anything else as it is."""
    kind = type(value)
    item = getattr(value, "item", None) if kind.__module__ == "numpy" and kind.__name__ != "ndarray" else None
    return value if item is None else item()


def truth_value(value: object) -> bool | None:
    """True or False, also as 1 or 0 or numpy's; None for anything else."""
    plain = plain_number(value)
    return bool(plain) if isinstance(plain, int) and plain in (0, 1) else None


def checked_path(given: object, what: str, error: type[SuperKernelError]) -> Path:
    """A path that the file system can be asked for."""
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str) or not text:
        raise error(f"{what} is {shown(given)}; a path is needed")
    try:
        usable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise error(f"{what} is {shown(text)}; no path can contain NUL or a lone surrogate")
    try:
        Path(text).exists()
    except OSError as reason:  # too long, or in a folder that may not be searched
        raise error(f"{what} is {shown(text)}; it cannot be used: {reason.strerror}") from reason
    return Path(text)
