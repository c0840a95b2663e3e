"""Exchanges between lanes, atomic operations, vectors, local memory and matrix products, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.instruction_cases import from_bf16, to_bf16
from targets.cuda.emulator.test_reports import launch

from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.reader import read_ptx

Array = np.ndarray[Any, Any]
LANES = np.arange(32)
VALUES = np.random.default_rng(5).integers(0, 2**32, 128, np.uint32)


def words(body: str, x: Array | None = None, threads: int = 32) -> list[int]:
    """What the threads of a block store to [%d4] after the body."""
    given = VALUES.copy() if x is None else x
    _, found = launch(f"ld.global.u32 %r10, [%d3]; {body} st.global.u32 [%d4], %r11;", x=given, threads=threads)
    return found[:threads].tolist()


@pytest.mark.parametrize(
    ("mode", "by", "clamp", "source"),
    [
        ("up", 3, 0, np.where(LANES >= 3, LANES - 3, LANES)),
        ("down", 5, 31, np.where(LANES + 5 <= 31, LANES + 5, LANES)),
        ("bfly", 16, 31, LANES ^ 16),
        ("idx", 7, 31, np.full(32, 7)),
        ("bfly", 4, 0x181F, LANES ^ 4),  # within segments of 8 lanes
        ("down", 2, 0x1C03, np.where(LANES % 4 + 2 < 4, LANES + 2, LANES)),
    ],
)
def test_shuffles(mode: str, by: int, clamp: int, source: Array) -> None:
    assert words(f"shfl.sync.{mode}.b32 %r11, %r10, {by}, {clamp}, -1;") == VALUES[source].tolist()


def test_votes_and_masks() -> None:
    odd = sum(1 << lane for lane in range(32) if VALUES[lane] & 1)
    head = "and.b32 %r12, %r10, 1; setp.ne.u32 %p1, %r12, 0;"
    assert set(words(f"{head} vote.sync.ballot.b32 %r11, %p1, -1;")) == {odd}
    assert set(words(f"{head} vote.sync.any.pred %p2, %p1, -1; selp.u32 %r11, 1, 0, %p2;")) == {1}
    assert set(words(f"{head} vote.sync.all.pred %p2, !%p1, -1; selp.u32 %r11, 1, 0, %p2;")) == {0}
    assert set(words("activemask.b32 %r11;")) == {2**32 - 1}
    pairs = words("shr.u32 %r12, %r2, 1; match.any.sync.b32 %r11, %r12, -1;")
    assert pairs == [3 << lane // 2 * 2 for lane in range(32)]
    assert words("mov.u32 %r11, %lanemask_lt;") == [(1 << lane) - 1 for lane in range(32)]
    assert words("mov.u32 %r11, %laneid;") == LANES.tolist()


@pytest.mark.parametrize(
    ("operation", "kind", "expected"),
    [
        ("add", "u32", int(VALUES[:32].sum(dtype=np.uint64)) % 2**32),
        ("min", "u32", int(VALUES[:32].min())),
        ("max", "s32", int(VALUES[:32].view(np.int32).max()) % 2**32),
        ("xor", "b32", int(np.bitwise_xor.reduce(VALUES[:32]))),
    ],
)
def test_reductions(operation: str, kind: str, expected: int) -> None:
    assert set(words(f"redux.sync.{operation}.{kind} %r11, %r10, -1;")) == {expected}


@pytest.mark.parametrize(
    ("operation", "kind", "combine"),
    [
        ("add", "u32", lambda a: a.sum(dtype=np.uint64) % 2**32),
        ("min", "u32", np.min),
        ("max", "s32", lambda a: a.view(np.int32).max().view(np.uint32)),
        ("and", "b32", np.bitwise_and.reduce),
        ("or", "b32", np.bitwise_or.reduce),
        ("xor", "b32", np.bitwise_xor.reduce),
    ],
)
def test_atomic_operations_of_all_threads(operation: str, kind: str, combine: Any) -> None:
    y = VALUES[:1].copy()
    launch(f"ld.global.u32 %r10, [%d3]; red.global.{operation}.{kind} [%d2], %r10;", x=VALUES.copy(), y=y, threads=64)
    assert y[0] == combine(np.concatenate([VALUES[:1], VALUES[:64]]))


def test_atomic_exchange_compare_increment_and_floats() -> None:
    y = np.array([5, 7, 2, 0], np.uint32)
    body = """
    setp.ne.u32 %p1, %r2, 0; @%p1 bra over;
    atom.global.exch.b32 %r10, [%d2], 50; atom.global.cas.b32 %r11, [%d2+4], 7, 70;
    atom.global.cas.b32 %r12, [%d2+4], 7, 71;
    atom.global.inc.u32 %r13, [%d2+8], 2; mov.b32 %r14, 0f3FC00000; red.global.add.f32 [%d2+12], %r14;
    atom.shared.add.u32 %r15, [%r4], 0; st.global.v4.u32 [%d1], {%r10, %r11, %r12, %r13};
    over:
    """
    x, _ = launch(body, y=y, threads=32)
    assert x[:4].tolist() == [5, 7, 70, 2]
    assert y[:3].tolist() == [50, 70, 0] and y.view(np.float32)[3] == 1.5


def test_local_memory_belongs_to_a_thread() -> None:
    text = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 x)
{
.local .align 8 .b8 depot[64];
.reg .b32 %r<5>; .reg .b64 %d<6>; .reg .pred %p;
ld.param.u64 %d1, [x]; mov.u32 %r1, %tid.x; mov.b64 %d2, depot; cvta.local.u64 %d3, %d2; isspacep.local %p, %d3;
and.b32 %r2, %r1, 15; mad.wide.u32 %d4, %r2, 4, %d3; st.u32 [%d4], %r1; bar.sync 0; ld.local.u32 %r3, [depot];
ld.u32 %r4, [%d4]; @!%p mov.u32 %r4, 0; mad.wide.u32 %d5, %r1, 4, %d1; st.global.u32 [%d5], %r4;
}
"""
    x = np.zeros(64, np.uint32)
    launch_entry(read_ptx(text, "local.ptx"), "kernel", [x], grid=(1, 1, 1), threads=(64, 1, 1))
    assert x.tolist() == list(range(64))


# matrix products: the layouts of fragments as the PTX manual gives them


def fragments(matrix: Array, place: Any, registers: int, parts: int) -> Array:
    """Per register and lane, the elements that `place(lane, index)` names, the first in the lowest bits."""
    packed = np.zeros((registers, 32), np.uint64)
    width = matrix.dtype.itemsize * 8
    raw = matrix.view(np.dtype(f"u{matrix.dtype.itemsize}"))
    for lane in range(32):
        for index in range(registers * parts):
            value = int(raw[place(lane >> 2, lane & 3, index)])
            packed[index // parts, lane] |= np.uint64(value << width * (index % parts))
    return packed.astype(np.uint32) if width * parts == 32 else packed


def halves_of_a(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i // 2 % 2), t * 2 + i % 2 + 8 * (i // 4)


def halves_of_b(g: int, t: int, i: int) -> tuple[int, int]:
    return t * 2 + i % 2 + 8 * (i // 2), g


def words_of_a(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i % 2), t + 4 * (i // 2)


def words_of_b(g: int, t: int, i: int) -> tuple[int, int]:
    return t + 4 * i, g


def bytes_of_a(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i // 4 % 2), t * 4 + i % 4 + 16 * (i // 8)


def bytes_of_b(g: int, t: int, i: int) -> tuple[int, int]:
    return t * 4 + i % 4 + 16 * (i // 4), g


SHAPES = {  # opcode -> k, type, row and column of element i of A and of B, elements of a register
    "m16n8k16.row.col.f32.f16.f16.f32": (16, np.float16, halves_of_a, halves_of_b, 2),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (16, np.uint16, halves_of_a, halves_of_b, 2),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (8, np.float32, words_of_a, words_of_b, 1),
    "m16n8k32.row.col.s32.s8.s8.s32": (32, np.int8, bytes_of_a, bytes_of_b, 4),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_matrix_products(shape: str) -> None:
    k, kind, place_a, place_b, parts = SHAPES[shape]
    random = np.random.default_rng(k)
    numbers_a, numbers_b = random.integers(-8, 9, (16, k)), random.integers(-8, 9, (k, 8))
    if kind is np.uint16:
        a, b = to_bf16(numbers_a.astype(np.float32)), to_bf16(numbers_b.astype(np.float32))
        assert np.array_equal(from_bf16(a), numbers_a)
    else:
        a, b = numbers_a.astype(kind), numbers_b.astype(kind)
    left, right = fragments(a, place_a, 4, parts), fragments(b, place_b, 2, parts)
    accumulate = np.int32 if kind is np.int8 else np.float32
    added = random.integers(-50, 50, (16, 8)).astype(accumulate)
    sums = fragments(added, lambda g, t, i: (g + 8 * (i // 2), t * 2 + i % 2), 4, 1)
    data = np.concatenate([left, right, sums]).astype(np.uint32)
    loads = "".join(f"ld.global.u32 %f{n}, [%d3+{128 * n}]; " for n in range(10))
    stores = "".join(f"st.global.u32 [%d4+{128 * n}], %e{n}; " for n in range(4))
    names = ["{" + ", ".join(f"%f{n}" for n in range(*ends)) + "}" for ends in ((0, 4), (4, 6), (6, 10))]
    body = f"""{{ .reg .b32 %f<10>; .reg .b32 %e<4>; {loads}
    mma.sync.aligned.{shape} {{%e0, %e1, %e2, %e3}}, {", ".join(names)}; {stores} }}"""
    _, found = launch(body, x=data.reshape(-1), y=np.zeros(128, np.uint32), threads=32)
    result = np.zeros((16, 8), accumulate)
    for lane in range(32):
        for index in range(4):
            row, column = (lane >> 2) + 8 * (index // 2), (lane & 3) * 2 + index % 2
            result[row, column] = found.reshape(4, 32)[index, lane : lane + 1].view(accumulate)[0]
    assert np.array_equal(result, numbers_a @ numbers_b + added)
