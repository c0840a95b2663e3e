"""What collectives compute, in numpy: reduction in rank order, floats of 16 bits in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# dtype of a tensor -> dtype of the array that holds it
STORED = {
    "float32": np.float32, "bfloat16": np.uint16, "float16": np.float16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip
REDUCTIONS = ("sum", "avg", "max", "min", "product")
_JOINED = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def values(dtype: str, count: int, seed: int) -> Any:
    """Numbers of a rank, with special ones among those of floats."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(np.bool_)
    if dtype in ("int32", "int64", "uint8"):
        info = np.iinfo(STORED[dtype])
        return random.integers(info.min, info.max, count, dtype=STORED[dtype], endpoint=True)
    numbers = (random.standard_normal(count) * 10.0 ** random.integers(-6, 5, count)).astype(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], np.float32)
    at = random.integers(0, 40, count)
    numbers = np.where(at < len(special), special[at % len(special)], numbers)
    return narrowed(numbers, dtype)


def widened(array: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def narrowed(numbers: Any, dtype: str) -> Any:
    """To the nearest, ties to even; every NaN becomes the same."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
        rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16)
    return numbers


def reduced(arrays: Sequence[Any], dtype: str, reduction: str) -> Any:
    """The reduction of the same places of all ranks."""
    if dtype == "bool":
        join = np.logical_or if reduction in ("sum", "max") else np.logical_and
        return join.reduce(list(arrays))
    with np.errstate(all="ignore"):
        total = widened(arrays[0], dtype)
        for other in arrays[1:]:
            total = _JOINED[reduction](total, widened(other, dtype))
        if reduction == "avg" and dtype in ("int32", "int64", "uint8"):
            total = (np.sign(total) * (np.abs(total.astype(object)) // len(arrays))).astype(STORED[dtype])
        elif reduction == "avg":
            total = total / np.float32(len(arrays))
    return narrowed(total, dtype)


def same(found: Any, wanted: Any, dtype: str) -> bool:
    """Equal bits; any NaN equals any other, and zeros of max and min may have either sign."""
    if found.shape != wanted.shape:
        return False
    left, right = widened(found, dtype), widened(wanted, dtype)
    if left.dtype != np.float32:
        return bool(np.array_equal(left, right))
    nan = np.isnan(right)
    return bool(np.array_equal(np.isnan(left), nan) and np.array_equal(left[~nan], right[~nan]))
