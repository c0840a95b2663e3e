"""targets.cpu.kernels.shipping: what the modules of shipped kernels share: tensors, views of them, sub-kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from ....cache import digest
from ....errors import GraphError, UnsupportedError
from ....model.op import Place
from ....model.subkernel import SubKernel
from ....model.tensor_arg import TensorArg

HERE = Path(__file__).parent
# The sources unroll what needs it; the vectoriser of -O3 would double the time to compile them.
FLAGS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fno-exceptions")


Tensor = TensorArg


def parameters(words: str) -> tuple[str, ...]:
    """The parameters of a kernel, separated by spaces; a word without a kind is a scalar of int64."""
    return tuple(word if ":" in word else f"scalar:{word}:int64" for word in words.split())


def stride_params(tensors: str, directions: str = "batch row column") -> tuple[str, ...]:
    """A scalar per tensor and direction."""
    return tuple(f"scalar:{tensor}_{direction}:int64" for tensor in tensors.split() for direction in directions.split())


@cache
def shipped(
    source: str,
    symbol: str,
    params: tuple[str, ...],
    *,
    blocks: int,
    op_type: str,
    defines: tuple[str, ...] = (),
    early_start: bool | None = None,
    pure: bool = True,
) -> SubKernel:
    """The kernel `symbol` of a source in this folder; each set of `defines` is compiled to its own object."""
    flags = (*FLAGS, *(f"-D{name}" for name in defines), f"-DSK_HEADERS=0x{_headers()}")
    path = HERE / source
    return SubKernel.from_source(
        path, symbol, block_dim=blocks, params=params, op_type=op_type, flags=flags, early_start=early_start,
        keyed_by_text=True, pure=pure,
    )  # fmt: skip


@cache
def _headers() -> str:
    """The digest of the headers in this folder: as a flag it keys the cache, so that no preprocessor has to run."""
    return digest(*(header.read_bytes() for header in sorted(HERE.glob("*.h"))))[:8]


def place(tensor: Tensor) -> Place:
    return Place(tensor.name, tensor.offset)


def shown(tensor: Tensor) -> str:
    return f"{tensor.name} ({', '.join(map(str, tensor.shape))})"


def broadcast_strides(tensor: Tensor, shape: Sequence[int], refusal: str) -> tuple[int, ...]:
    """Strides that walk a tensor as if it had this shape: 0 where it is repeated."""
    missing = len(shape) - len(tensor.shape)
    if missing < 0 or any(size not in (1, full) for size, full in zip(tensor.shape, shape[missing:], strict=True)):
        raise GraphError(refusal)
    sized = zip(tensor.shape, tensor.strides, strict=True)
    return (*(0,) * missing, *(0 if size == 1 else stride for size, stride in sized))


def check_dtypes(operator: str, tensors: Sequence[Tensor], known: Collection[str]) -> None:
    dtypes = [tensor.dtype for tensor in tensors]
    if len(set(dtypes)) > 1:
        raise UnsupportedError(f"{operator} of mixed dtypes: {', '.join(dtypes)}")
    if dtypes[0] not in known:
        raise UnsupportedError(f"{operator} of {dtypes[0]}; on the CPU there are kernels for {', '.join(known)}")
