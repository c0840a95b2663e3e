"""bench.cuda_kernels: the Triton kernels of the cuda suites.

WAITS adds the instructions of programmatic dependent launch: the next kernel may start at once, and this one waits
before its first access to what an earlier kernel writes; weights are read before that.
"""

# Triton evaluates annotations, and knows only its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rms_norm(x, weight, y, epsilon, SIZE: tl.constexpr, WAITS: tl.constexpr):
    at = tl.arange(0, SIZE)
    if WAITS:
        w = tl.load(weight + at)
        gdc_launch_dependents()
        gdc_wait()
    value = tl.load(x + at)
    mean = tl.sum(value * value, axis=0) / SIZE
    if not WAITS:
        w = tl.load(weight + at)
    tl.store(y + at, value * tl.rsqrt(mean + epsilon) * w)


@triton.jit
def add(x, y, z, SIZE: tl.constexpr, WAITS: tl.constexpr):
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.arange(0, SIZE)
    tl.store(z + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def add_rms_norm(x, change, weight, total, y, epsilon, SIZE: tl.constexpr, WAITS: tl.constexpr):
    """total = x + change; y = its norm."""
    at = tl.arange(0, SIZE)
    if WAITS:
        w = tl.load(weight + at)
        gdc_launch_dependents()
        gdc_wait()
    value = tl.load(x + at) + tl.load(change + at)
    tl.store(total + at, value)
    mean = tl.sum(value * value, axis=0) / SIZE
    if not WAITS:
        w = tl.load(weight + at)
    tl.store(y + at, value * tl.rsqrt(mean + epsilon) * w)


@triton.jit
def gemv(w, x, y, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, WAITS: tl.constexpr):
    """ROWS rows of y = w x, STEP columns at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, STEP)
    at = w + row[:, None] * COLUMNS + column[None, :]
    weights = tl.load(at)
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    total = weights.to(tl.float32) * tl.load(x + column)[None, :]
    for begin in range(STEP, COLUMNS, STEP):
        weights = tl.load(at + begin)
        total += weights.to(tl.float32) * tl.load(x + begin + column)[None, :]
    tl.store(y + row, tl.sum(total, axis=1))


@triton.jit
def rotate_and_append(
    qkv,
    cosine,
    sine,
    query,
    keys,
    values,
    position,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Rotary embedding of a query or key head; keys and values of this token go into the cache."""
    head = tl.program_id(0)
    half: tl.constexpr = WIDTH // 2
    at = tl.arange(0, half)
    c = tl.load(cosine + at)
    s = tl.load(sine + at)
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    first = tl.load(qkv + head * WIDTH + at)
    second = tl.load(qkv + head * WIDTH + half + at)
    low = first * c - second * s
    high = second * c + first * s
    if head < HEADS:
        tl.store(query + head * WIDTH + at, low)
        tl.store(query + head * WIDTH + half + at, high)
    else:
        group = head - HEADS
        cached = (position * GROUPS + group) * WIDTH
        tl.store(keys + cached + at, low)
        tl.store(keys + cached + half + at, high)
        value = qkv + (HEADS + GROUPS + group) * WIDTH
        tl.store(values + cached + at, tl.load(value + at))
        tl.store(values + cached + half + at, tl.load(value + half + at))


@triton.jit
def attend(
    query,
    keys,
    values,
    out,
    scale,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    WAITS: tl.constexpr,
):
    """One query head over a cache of TOKENS keys and values, STEP at a time."""
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    group = head // (HEADS // GROUPS)
    token = tl.arange(0, STEP)
    at = tl.arange(0, WIDTH)
    q = tl.load(query + head * WIDTH + at) * scale
    largest = -float("inf")
    total = 0.0
    mixed = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, TOKENS, STEP):
        cached = ((begin + token[:, None]) * GROUPS + group) * WIDTH + at[None, :]
        scores = tl.sum(tl.load(keys + cached) * q[None, :], axis=1)
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        kept = tl.exp(largest - larger)
        weights = tl.exp(scores - larger)
        total = total * kept + tl.sum(weights, axis=0)
        mixed = mixed * kept + tl.sum(tl.load(values + cached) * weights[:, None], axis=0)
        largest = larger
    tl.store(out + head * WIDTH + at, mixed / total)


@triton.jit
def silu_mul(gates, y, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gates + at)
    tl.store(y + at, gate / (1.0 + tl.exp(-gate)) * tl.load(gates + WIDTH + at))


@triton.jit
def bump(x, y, SIZE: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr, WAITS: tl.constexpr):
    """y[i] = x[i + SHIFT] + 1, cyclic."""
    if WAITS:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + (at + SHIFT) % SIZE) + 1.0)


@triton.jit
def scaled_copy(x, y, SIZE: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at) * FACTOR)


@triton.jit
def read_all(x, sums, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(x + at), axis=0))
