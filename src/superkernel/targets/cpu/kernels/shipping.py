"""targets.cpu.kernels.shipping: what the modules of shipped kernels share: tensors, views of them, sub-kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from ....cache import digest
from ....model.op import Place
from ....model.subkernel import SubKernel

HERE = Path(__file__).parent
# The sources unroll what needs it; the vectoriser of -O3 would double the time to compile them.
FLAGS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fno-exceptions")


class Tensor(Protocol):
    """A tensor in a named buffer; `offset` is in bytes, strides are in elements."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class OperandView:
    """A tensor with other sizes, strides or offset."""

    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@cache
def shipped(
    source: str,
    symbol: str,
    params: tuple[str, ...],
    *,
    blocks: int,
    op_type: str,
    defines: tuple[str, ...] = (),
) -> SubKernel:
    """The kernel `symbol` of a source in this folder; each set of `defines` is compiled to its own object."""
    flags = (*FLAGS, *(f"-D{name}" for name in defines), f"-DSK_HEADERS=0x{_headers()}")
    return SubKernel.from_source(
        HERE / source,
        symbol,
        block_dim=blocks,
        params=list(params),
        op_type=op_type,
        flags=flags,
        keyed_by_text=True,
        pure=True,
    )


@cache
def _headers() -> str:
    """The digest of the headers in this folder: as a flag it keys the cache, so that no preprocessor has to run."""
    return digest(*(header.read_bytes() for header in sorted(HERE.glob("*.h"))))[:8]


def place(tensor: Tensor) -> Place:
    return Place(tensor.name, tensor.offset)


def shown(tensor: Tensor) -> str:
    return f"{tensor.name} ({', '.join(map(str, tensor.shape))})"
