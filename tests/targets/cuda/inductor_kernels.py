"""Triton kernels of the corpus that call functions which Inductor's kernels call: grid barrier, decoupled look-back."""

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers


@triton.jit
def cooperative_sum(x, y, area, semaphore, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    block = tl.program_id(0)
    part = tl.load(x + block * BLOCK + tl.arange(0, BLOCK))
    tl.store(area + block, tl.sum(part, 0))
    triton_helpers.x_grid_barrier(semaphore)
    tl.store(y + block, tl.sum(tl.load(area + tl.arange(0, PARTS)), 0))


@triton.jit
def plus(first, second):
    return first + second


@triton.jit
def split_scan(x, y, area, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    total = tl.reduce(value, 0, plus)
    before = triton_helpers.exclusive_scan_decoupled_lookback(
        area, total, block, plus, DTYPE_VALUE_AS_UINT=tl.uint32, DTYPE_PACK=tl.uint64
    )
    here = tl.associative_scan(value, 0, plus)
    tl.store(y + at, tl.where(block == 0, here, here + before))


@triton.jit
def split_scan_64(x, y, area, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    total = tl.reduce(value, 0, plus)
    before = triton_helpers.exclusive_scan_decoupled_lookback_64(area, total, block, plus)
    here = tl.associative_scan(value, 0, plus)
    tl.store(y + at, tl.where(block == 0, here, here + before))
