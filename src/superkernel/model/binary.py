"""binary: where the code of a sub-kernel is, in which form, and for which kind of core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Core(Enum):
    ANY = "any"
    CUBE = "cube"
    VECTOR = "vector"
    MIX = "mix"


class Form(Enum):
    """How the binary of a sub-kernel was handed in."""

    SOURCE = "source"
    OBJECT = "object"
    PTX = "ptx"


@dataclass(frozen=True)
class Binary:
    """Where the code of a sub-kernel is."""

    form: Form
    path: Path
    flags: tuple[str, ...] = ()
    # Its headers belong to installed packages, whose versions are in the cache key: the text alone identifies it.
    keyed_by_text: bool = False
