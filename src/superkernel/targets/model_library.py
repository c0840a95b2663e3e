"""targets.model_library: what a target offers to programs that run packages: a C library, with its headers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class ModelLibrary(Protocol):
    """The C library that opens packages, built from the sources of a target."""

    @property
    def soname(self) -> str: ...  # by which programs find it
    @property
    def headers(self) -> Sequence[Path]: ...
    @property
    def system_libraries(self) -> Sequence[str]: ...  # what a program that links the archive needs beside it
    def shared(self, version: str, march: str = ...) -> Path:
        """The shared library in the cache, compiled if it is not there; it calls itself `version`.

        It runs on every processor of the architecture to which the instruction set `march` belongs.
        """

    def static(self, version: str) -> Path:
        """The same as an archive."""
