"""Triton kernels of the corpus, as users write them; corpus.py says for which types and sizes they are compiled."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda
from triton.language.extra.cuda import libdevice


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def rms_norm(x, w, y, n, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    inside = at < n
    value = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / n + eps)
    tl.store(y + row * n + at, value * scale * tl.load(w + at, mask=inside, other=0.0).to(tl.float32), mask=inside)


@triton.jit
def silu_mul(gate, up, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(gate + at, mask=inside).to(tl.float32)
    tl.store(y + at, value * tl.sigmoid(value) * tl.load(up + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * n + at, mask=inside, other=float("-inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * n + at, value / tl.sum(value, 0), mask=inside)


@triton.jit
def layer_norm(x, w, b, y, mean_out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * n + at, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / n
    centred = tl.where(inside, value - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(mean_out + row, mean)
    tl.store(
        y + row * n + at, centred * scale * tl.load(w + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside
    )


@triton.jit
def gemv(w, x, y, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        weight = tl.load(w + rows[:, None] * n + k + at[None, :])
        total += weight.to(tl.float32) * tl.load(x + k + at)[None, :].to(tl.float32)
    tl.store(y + rows, tl.sum(total, 1))


@triton.jit
def gemv_one_step(w, x, y, ROWS: tl.constexpr, N: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, N)
    weight = tl.load(w + rows[:, None] * N + at[None, :])
    value = tl.load(x + at)
    tl.store(y + rows, tl.sum(weight.to(tl.float32) * value[None, :].to(tl.float32), 1))


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + begin + inner[None, :])
        right = tl.load(b + (begin + inner)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def split_k(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    part = tl.program_id(2)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(part * BK, k, PARTS * BK):
        left = tl.load(a + rows[:, None] * k + begin + inner[None, :])
        right = tl.load(b + (begin + inner)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.atomic_add(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attention_decode(q, keys, values, out, lengths, scale, D: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr):
    head = tl.program_id(0)
    at = tl.arange(0, D)
    query = tl.load(q + head * D + at).to(tl.float32)
    length = tl.load(lengths)
    highest = -float("inf")
    norm = 0.0
    total = tl.zeros((D,), tl.float32)
    for begin in range(0, length, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        inside = token < length
        place = (head * MOST + token)[:, None] * D + at[None, :]
        key = tl.load(keys + place, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.where(inside, tl.sum(key * query[None, :], 1) * scale, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(score, 0))
        weight = tl.exp(score - new_highest)
        fade = tl.exp(highest - new_highest)
        value = tl.load(values + place, mask=inside[:, None], other=0.0).to(tl.float32)
        total = total * fade + tl.sum(value * weight[:, None], 0)
        norm = norm * fade + tl.sum(weight, 0)
        highest = new_highest
    tl.store(out + head * D + at, total / norm)


@triton.jit
def rotary(x, cos, sin, HALF: tl.constexpr):
    head = tl.program_id(0)
    at = tl.arange(0, HALF)
    first = tl.load(x + head * 2 * HALF + at)
    second = tl.load(x + head * 2 * HALF + HALF + at)
    c = tl.load(cos + at)
    s = tl.load(sin + at)
    tl.store(x + head * 2 * HALF + at, first * c - second * s)
    tl.store(x + head * 2 * HALF + HALF + at, second * c + first * s)


@triton.jit
def rotary_tables(position, cos, sin, base, HALF: tl.constexpr):
    at = tl.arange(0, HALF)
    angle = tl.load(position).to(tl.float32) * tl.exp(-at.to(tl.float32) / HALF * tl.log(base))
    tl.store(cos + at, tl.cos(angle))
    tl.store(sin + at, tl.sin(angle))


@triton.jit
def argmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    tl.store(y + row, tl.argmax(value, 0).to(tl.int64))


@triton.jit
def top_k(x, y, K: tl.constexpr, BLOCK: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.program_id(0) * K + tl.arange(0, K), tl.topk(value, K))


@triton.jit
def cumsum(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    tl.store(y + at, tl.cumsum(tl.load(x + at, mask=inside, other=0.0), 0), mask=inside)


@triton.jit
def embedding(ids, table, y, WIDTH: tl.constexpr):
    row = tl.load(ids + tl.program_id(0))
    at = tl.arange(0, WIDTH)
    tl.store(y + tl.program_id(0) * WIDTH + at, tl.load(table + row * WIDTH + at))


@triton.jit
def transpose(x, y, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(y + columns[:, None] * m + rows[None, :], tl.trans(tile))


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(counts + tl.load(x + at, mask=inside, other=0), 1, mask=inside)


@triton.jit
def sum_atomic(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


@triton.jit
def dropout(x, y, seed, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > 0.5
    tl.store(y + at, tl.where(kept, tl.load(x + at, mask=at < n) * 2.0, 0.0), mask=at < n)


@triton.jit
def quantise(x, y, scales, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(value), 0) / 127.0
    tl.store(scales + row, scale)
    tl.store(y + row * n + at, libdevice.rint(value / scale).to(tl.int8), mask=inside)


@triton.jit
def masked_scatter(x, chosen, places, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) & (tl.load(chosen + at, mask=at < n, other=0) != 0)
    tl.store(y + tl.load(places + at, mask=inside, other=0), tl.load(x + at, mask=inside), mask=inside)


@triton.jit
def add_3d(x, y, z, X: tl.constexpr, Y: tl.constexpr, BLOCK: tl.constexpr):
    block = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def cast_bf16(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(tl.bfloat16), mask=at < n)


@triton.jit
def inline_assembly(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    (value,) = tl.inline_asm_elementwise(
        "{ .reg .b32 t; shl.b32 t, $1, 3; add.u32 $0, t, 1; }", "=r,r", [value], dtype=(tl.int32,), is_pure=True, pack=1
    )
    tl.store(y + at, value, mask=at < n)


@triton.jit
def waits_inside(w, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(w + at, mask=at < n, other=0.0)
    tl_cuda.gdc_wait()
    value = weight * tl.load(x + at, mask=at < n, other=0.0)
    tl_cuda.gdc_launch_dependents()
    tl.store(y + at, value, mask=at < n)


@triton.jit
def descriptor_copy(x, y, m, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(y, shape=[m, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([row, column], source.load([row, column]))


@triton.jit
def grid_barrier(x, y, semaphore, n, BLOCK: tl.constexpr):
    """As Inductor's cooperative reductions meet: a counter whose top bit flips when all blocks have arrived."""
    at = tl.arange(0, BLOCK)
    block = tl.program_id(0)
    tl.store(y + block, tl.sum(tl.load(x + block * BLOCK + at), 0))
    tl.debug_barrier()
    step = tl.full((), 1, tl.uint32)
    expected = tl.num_programs(0).to(tl.uint32)
    if block == 0:
        step = 0x80000000 - (expected - 1)
    before = tl.atomic_add(semaphore, step, sem="release")
    flipped = False
    while not flipped:
        now = tl.atomic_add(semaphore, 0, sem="acquire")
        flipped = ((now ^ before) & 0x80000000) != 0
    tl.debug_barrier()
    total = tl.load(y + (block + 1) % tl.num_programs(0), volatile=True)
    tl.store(x + block * BLOCK + at, total + at.to(tl.float32))


@triton.jit
def look_back_scan(x, y, state, BLOCK: tl.constexpr):
    """Inclusive scan whose blocks take the prefix of the blocks below: flag 1 partial, 2 whole, in 64-bit words."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    total = tl.sum(value, 0)
    first = tl.where(block == 0, 2, 1).to(tl.uint64)
    tl.atomic_xchg(state + block, (total.to(tl.uint64) << 32) | first, sem="release")
    prefix = tl.zeros((), tl.int32)
    look = block - 1
    while look >= 0:
        flag = tl.full((), 0, tl.uint64)
        word = tl.full((), 0, tl.uint64)
        while flag == 0:
            word = tl.atomic_add(state + look, 0, sem="acquire")
            flag = word & 0xFFFFFFFF
        prefix += (word >> 32).to(tl.int32)
        look = tl.where(flag == 2, -1, look - 1)
    if block > 0:
        tl.atomic_xchg(state + block, ((prefix + total).to(tl.uint64) << 32) | 2, sem="release")
    tl.store(y + at, tl.cumsum(value, 0) + prefix)


@triton.jit
def stream_k(x, y, locks, BLOCK: tl.constexpr):
    """Two blocks share a tile: the second adds to what the first has stored, as soon as its lock says so."""
    block = tl.program_id(0)
    tile = block // 2
    at = tl.arange(0, BLOCK)
    value = tl.load(x + block * BLOCK + at)
    if block % 2 == 0:
        tl.store(y + tile * BLOCK + at, value)
        tl.debug_barrier()
        tl.atomic_xchg(locks + tile, 1)
    else:
        while tl.atomic_cas(locks + tile, 1, 1) != 1:
            pass
        tl.atomic_add(y + tile * BLOCK + at, value)


@triton.jit
def asserts(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.device_assert(value >= 0, "negative")
    tl.store(y + at, value, mask=at < n)


@triton.jit
def prints(x, n):
    tl.device_print("value", tl.load(x))


@triton.jit
def warp_specialised(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        row, column = tile // tl.cdiv(n, BN) * BM, tile % tl.cdiv(n, BN) * BN
        total = tl.zeros((BM, BN), tl.float32)
        for begin in range(0, k, BK):
            total = tl.dot(left.load([row, begin]), right.load([column, begin]).T, total)
        at = (row + tl.arange(0, BM))[:, None] * n + (column + tl.arange(0, BN))[None, :]
        tl.store(c + at, total.to(tl.float16))
