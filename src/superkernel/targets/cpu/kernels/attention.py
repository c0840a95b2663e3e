"""targets.cpu.kernels.attention: query, key and value in, the ops of scaled dot product attention out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....errors import GraphError, UnsupportedError
from ....model.op import Op, Place
from ....model.params import scalar_bits
from ....model.subkernel import SubKernel
from .shipping import Tensor, broadcast_strides, check_dtypes, parameters, place, shipped, shown, stride_params

ELEMENTS = ("float32", "bfloat16", "float16")  # element types with a kernel
MOST_SIZE = 512  # of a head: the kernels keep rows on their stack

# Rows of one head of keys and values that are served together: all of them if there are few, else a tile.
_FEW_ROWS = 8
_TILE_ROWS = 64

# Splits of the keys depend on sizes only, because results do: enough of them for this many cores, none with less work
# than this. Two ops cost about 0.5 us more than one.
_UNITS = 32
_ELEMENTS_PER_SPLIT = 32_768

# One more block is worth its while if it takes over this much.
_ELEMENTS_PER_BLOCK = 4096
_MULTIPLICATIONS_PER_BLOCK = 8192

_SIZES = parameters("batches heads group queries keys size splits")
_PARAMS = {
    "inputs": (
        *parameters("in:query in:key in:value"),
        *stride_params("query key value", "batch head row"),
        *parameters("scalar:scale:float32 scalar:causal:bool"),
    ),
    "results": (
        *parameters("out:out out:logsumexp out_batch out_head out_row out_column"),
        *stride_params("logsumexp", "batch head row"),
    ),
    "mask": parameters("in:mask mask_batch mask_head mask_row mask_column mask_kind"),
    "out": ("out:partial",),
    "in": ("in:partial",),
}
_MASK_KINDS = {"float32": 2, "bool": 3}  # 1: the type of the query


@dataclass(frozen=True)
class Sizes:
    """What is asked for, and how it is divided into units that no other depends on."""

    batches: int
    heads: int  # of keys and values
    group: int  # of query heads that share one of them
    queries: int
    keys: int
    size: int
    causal: bool

    @property
    def rows(self) -> int:
        return self.group * self.queries

    @property
    def tiles(self) -> int:
        return 1 if self.rows <= _FEW_ROWS else -(-self.rows // _TILE_ROWS)

    @property
    def seen_keys(self) -> int:
        return min(self.keys, self.queries) if self.causal else self.keys

    @property
    def splits(self) -> int:
        units = self.batches * self.heads * self.tiles
        if units == 0:
            return 1
        return max(1, min(-(-_UNITS // units), self.seen_keys * self.size // _ELEMENTS_PER_SPLIT))

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the kernels take them."""
        return (self.batches, self.heads, self.group, self.queries, self.keys, self.size, self.splits)

    def blocks(self, cores: int) -> int:
        """As many as there are cores, or fewer where the work is too little to be worth dividing."""
        elements = self.batches * self.heads * self.seen_keys * self.size
        parts = max(elements // _ELEMENTS_PER_BLOCK, elements * self.rows // _MULTIPLICATIONS_PER_BLOCK)
        return max(1, min(cores, parts, self.batches * self.heads * self.tiles * self.splits))

    def merge_blocks(self, cores: int) -> int:
        rows = self.batches * self.heads * self.rows
        return max(1, min(cores, rows, rows * self.size * self.splits // _ELEMENTS_PER_BLOCK))


def flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: Any = None,
    out0: Tensor,
    out1: Tensor,
    cores: int,
    scratch: Callable[[int], Place],
) -> list[Op]:
    """softmax(scale * query @ key^T + mask) @ value to out0, the logarithms of the sums of exponentials to out1."""
    if dropout_p:
        raise UnsupportedError(f"attention: dropout_p is {dropout_p}; there are no random numbers in sub-kernels")
    check_dtypes("attention", (query, key, value, out0), ELEMENTS)
    if out1.dtype != "float32":
        raise UnsupportedError(f"attention: sums of exponentials of {out1.dtype}; float32 is needed")
    sizes = _sizes(query, key, value, out0, out1, bool(is_causal))
    factor = _scale(scale, sizes.size)
    inputs: list[Place | int | float] = [place(query), place(key), place(value)]
    for tensor in (query, key, value):
        inputs += tensor.strides[:3]
    inputs += [factor, bool(is_causal)]
    results: list[Place | int | float] = [place(out0), place(out1), *out0.strides, *out1.strides]
    mask = [] if attn_mask is None else _mask(attn_mask, query, sizes)
    numbers = sizes.numbers
    masked = "_masked" if mask else ""
    blocks = sizes.blocks(cores)
    if sizes.splits == 1:
        kernel = _kernel(query.dtype, masked, blocks, ["inputs", "results", *(["mask"] if mask else [])])
        return [Op(kernel, [*numbers, *inputs, *results, *mask])]
    partial = scratch(sizes.batches * sizes.heads * sizes.rows * sizes.splits * (sizes.size + 2) * 4)
    split = _kernel(query.dtype, f"_split{masked}", blocks, ["inputs", "out", *(["mask"] if mask else [])])
    merge = _kernel(query.dtype, "_merge", sizes.merge_blocks(cores), ["in", "results"])
    return [Op(split, [*numbers, *inputs, partial, *mask]), Op(merge, [*numbers, partial, *results])]


def _kernel(dtype: str, variant: str, blocks: int, parts: list[str]) -> SubKernel:
    return shipped(
        "attention.cpp",
        f"attention_{dtype}{variant}",
        (*_SIZES, *(param for part in parts for param in _PARAMS[part])),
        blocks=blocks,
        op_type="Attention",
        defines=(f"SK_ATTENTION_{dtype.upper()}",),
    )


def _sizes(query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, causal: bool) -> Sizes:
    for tensor in (query, key, value):
        if len(tensor.shape) != 4:
            raise UnsupportedError(f"attention of {shown(tensor)}; four dimensions are needed")
        if tensor.strides[3] != 1 and tensor.shape[3] > 1:
            raise UnsupportedError(f"attention: the last dimension of {shown(tensor)} is not contiguous")
    batches, query_heads, queries, size = query.shape
    heads, keys = key.shape[1:3]
    fits = tuple(key.shape) == tuple(value.shape) == (batches, heads, keys, size)
    shared = query_heads % heads == 0 if heads else query_heads == 0
    if not (fits and shared and tuple(out.shape) == tuple(query.shape)):
        tensors = ", ".join(map(shown, (query, key, value)))
        raise GraphError(f"attention of {tensors} cannot give {shown(out)}")
    if tuple(logsumexp.shape) != tuple(query.shape[:3]):
        raise GraphError(f"attention of {shown(query)} cannot give {shown(logsumexp)}")
    if size > MOST_SIZE:
        raise UnsupportedError(f"attention of heads of {size} elements; there are kernels for up to {MOST_SIZE}")
    if key.strides[1] == value.strides[1] == 0:
        heads = min(heads, 1)  # one head that is broadcast
    return Sizes(batches, heads, query_heads // heads if heads else 0, queries, keys, size, causal)


def _mask(mask: Tensor, query: Tensor, sizes: Sizes) -> list[Place | int | float]:
    """Where it is, strides that walk it in step with the scores (0 where it is repeated), and its kind."""
    kind = 1 if mask.dtype == query.dtype else _MASK_KINDS.get(mask.dtype)
    if kind is None:
        raise UnsupportedError(f"attention of {query.dtype} with a mask of {mask.dtype}")
    wanted = (*query.shape[:3], sizes.keys)
    strides = broadcast_strides(mask, wanted, f"attention: the mask {shown(mask)} cannot be broadcast to {wanted}")
    return [place(mask), *strides, kind]


def _scale(scale: Any, size: int) -> float:
    if scale is None:
        return 1 / math.sqrt(size) if size else 1.0
    if not isinstance(scale, int | float):
        raise UnsupportedError(f"attention: scale is {scale!r}; a real number is needed")
    scalar_bits(scale, "float32", "attention: scale", UnsupportedError)
    return float(scale)
