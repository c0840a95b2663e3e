"""tiling: the block count and variant of a dynamic op, and the Python or C function that chooses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import BuildError, GraphError, LaunchError, shown
from .subkernel import SubKernel


@dataclass(frozen=True)
class CompiledTiling:
    """A C function that a core calls to choose the tiling of a dynamic op; superkernel/tiling.h declares its type."""

    function: SubKernel  # where its code is

    @property
    def symbol(self) -> str:
        return self.function.name


@dataclass(frozen=True)
class Tiling:
    """The tiling key and block count that are chosen for one run of a dynamic op."""

    key: int
    blocks: int

    @staticmethod
    def from_object(path: str | Path, symbol: str, *, libraries: Sequence[str | PathLike[str]] = ()) -> CompiledTiling:
        """A tiling function in an ELF relocatable object."""
        with _naming(symbol):
            return CompiledTiling(SubKernel.from_object(path, symbol, **_FUNCTION, libraries=libraries))

    @staticmethod
    def from_source(
        path: str | Path, symbol: str, flags: Sequence[str] = (), *, libraries: Sequence[str | PathLike[str]] = ()
    ) -> CompiledTiling:
        """A tiling function in a C or C++ source, compiled when it is first needed."""
        with _naming(symbol):
            return CompiledTiling(SubKernel.from_source(path, symbol, **_FUNCTION, flags=flags, libraries=libraries))


@contextmanager
def _naming(symbol: str) -> Iterator[None]:
    try:
        yield
    except (BuildError, GraphError) as error:
        raise type(error)(f"tiling function {shown(symbol)}: {error}") from error


# int function(const sk_tiling_args* in, sk_tiling_result* out), as a sub-kernel
_FUNCTION: dict[str, Any] = {"block_dim": 1, "params": ("in:in", "out:out")}

TilingFunction = Callable[[dict[str, Any]], Tiling | tuple[int, int]]
_INT64 = range(-(2**63), 2**63)


def chosen_tiling(answer: object, op: str) -> tuple[int, int]:
    """Tiling key and block count that a tiling function returned; a LaunchError if it returned something else."""
    pair = (answer.key, answer.blocks) if isinstance(answer, Tiling) else answer
    if isinstance(pair, tuple) and len(pair) == 2 and all(hasattr(n, "__index__") for n in pair):
        key, blocks = (n.__index__() for n in pair)
        if key in _INT64 and blocks in _INT64:
            return key, blocks
    raise LaunchError(f"the tiling function of op {op!r} returned {answer!r}; return (tiling key, block count)")
