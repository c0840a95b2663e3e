"""Small kernels in PTX over 512 words, for graphs of many ops: each depends on elements that other blocks wrote."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import superkernel as sk

WORDS = 512
X, Y, Z = (f"{kind}:uint32[{WORDS}]" for kind in ("in:x", "in:y", "out:z"))
_HEAD = """.version 8.0
.target sm_80
.address_size 64
"""
_REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %d<30>;"
_INDEX = "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;"


def _loads(*names: str) -> str:
    return " ".join(f"ld.param.u64 %d{place}, [{name}];" for place, name in enumerate(names, 1))


TEXTS = {
    # z[i] = 3 x[i] + y[7 i + 1]
    "mix": f"""{_HEAD}.visible .entry mix(.param .u64 x, .param .u64 y, .param .u64 z)
{{
{_REGISTERS}
{_loads("x", "y", "z")}
{_INDEX}
mad.lo.u32 %r5, %r4, 7, 1; and.b32 %r5, %r5, {WORDS - 1};
mad.wide.u32 %d4, %r4, 4, %d1; mad.wide.u32 %d5, %r5, 4, %d2; mad.wide.u32 %d6, %r4, 4, %d3;
ld.global.u32 %r6, [%d4]; ld.global.u32 %r7, [%d5];
mad.lo.u32 %r8, %r6, 3, %r7;
st.global.u32 [%d6], %r8;
ret;
}}
""",
    # all words in reverse order: block b turns round what block 3 - b wrote, through shared memory
    "turn": f"""{_HEAD}.visible .entry turn(.param .u64 x, .param .u64 z)
{{
{_REGISTERS}
.shared .align 16 .b8 tile[512];
{_loads("x", "z")}
{_INDEX}
mov.u32 %r5, tile; mad.lo.u32 %r6, %r1, 4, %r5; sub.u32 %r11, 3, %r2; mad.lo.u32 %r11, %r11, %r3, %r1;
mad.wide.u32 %d3, %r11, 4, %d1; ld.global.u32 %r7, [%d3];
st.shared.u32 [%r6], %r7;
bar.sync 0;
sub.u32 %r8, 127, %r1; mad.lo.u32 %r9, %r8, 4, %r5; ld.shared.u32 %r10, [%r9];
add.u32 %r10, %r10, %r2;
mad.wide.u32 %d4, %r4, 4, %d2; st.global.u32 [%d4], %r10;
ret;
}}
""",
    # z[i] = x[i] + the sum of all x, one block, a tree in dynamic shared memory
    "total": f"""{_HEAD}.extern .shared .align 16 .b8 sums[];
.visible .entry total(.param .u64 x, .param .u64 z)
.reqntid 64, 1, 1
{{
{_REGISTERS}
{_loads("x", "z")}
mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, %r1; mov.u32 %r5, sums; mad.lo.u32 %r6, %r1, 4, %r5;
add_up: mad.wide.u32 %d3, %r3, 4, %d1; ld.global.u32 %r7, [%d3]; add.u32 %r2, %r2, %r7; add.u32 %r3, %r3, 64;
setp.lt.u32 %p1, %r3, {WORDS}; @%p1 bra add_up;
st.shared.u32 [%r6], %r2; mov.u32 %r8, 32;
tree: bar.sync 0; setp.ge.u32 %p2, %r1, %r8; @%p2 bra over;
mad.lo.u32 %r9, %r8, 4, %r6; ld.shared.u32 %r10, [%r9]; ld.shared.u32 %r11, [%r6];
add.u32 %r11, %r11, %r10; st.shared.u32 [%r6], %r11;
over: shr.u32 %r8, %r8, 1; setp.ne.u32 %p3, %r8, 0; @%p3 bra tree;
bar.sync 0; ld.shared.u32 %r12, [%r5]; mov.u32 %r3, %r1;
put: mad.wide.u32 %d3, %r3, 4, %d1; mad.wide.u32 %d4, %r3, 4, %d2; ld.global.u32 %r7, [%d3]; add.u32 %r7, %r7, %r12;
st.global.u32 [%d4], %r7; add.u32 %r3, %r3, 64; setp.lt.u32 %p1, %r3, {WORDS}; @%p1 bra put;
ret;
}}
""",
    # counts[x[i] mod 512] += 1
    "count": f"""{_HEAD}.visible .entry count(.param .u64 x, .param .u64 z)
{{
{_REGISTERS}
{_loads("x", "z")}
{_INDEX}
mad.wide.u32 %d3, %r4, 4, %d1; ld.global.u32 %r5, [%d3]; and.b32 %r5, %r5, {WORDS - 1};
mad.wide.u32 %d4, %r5, 4, %d2; red.relaxed.gpu.global.add.u32 [%d4], 1;
ret;
}}
""",
    # 2 x 1 x 2 blocks of 16 x 8 threads: z[i] = x[i] ^ x[i + 256] / 2
    "cube": f"""{_HEAD}.visible .entry cube(.param .u64 x, .param .u64 z)
.reqntid 16, 8, 1
{{
{_REGISTERS}
{_loads("x", "z")}
mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mad.lo.u32 %r3, %r2, 16, %r1;
mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z; mov.u32 %r7, %nctaid.y; mov.u32 %r8, %nctaid.x;
mad.lo.u32 %r9, %r6, %r7, %r5; mad.lo.u32 %r9, %r9, %r8, %r4; mad.lo.u32 %r10, %r9, 128, %r3;
add.u32 %r11, %r10, 256; and.b32 %r11, %r11, {WORDS - 1};
mad.wide.u32 %d3, %r10, 4, %d1; mad.wide.u32 %d4, %r11, 4, %d1; mad.wide.u32 %d5, %r10, 4, %d2;
ld.global.u32 %r12, [%d3]; ld.global.u32 %r13, [%d4]; shr.u32 %r13, %r13, 1; xor.b32 %r12, %r12, %r13;
st.global.u32 [%d5], %r12;
ret;
}}
""",
}

_SHAPES = {"mix": ((128, 1, 1), (4, 1, 1)), "turn": ((128, 1, 1), (4, 1, 1)), "total": ((64, 1, 1), (1, 1, 1)),
           "count": ((64, 1, 1), (8, 1, 1)), "cube": ((16, 8, 1), (2, 1, 2))}  # fmt: skip
_PARAMS = {"mix": (X, Y, Z), "count": (X, f"inout:z:uint32[{WORDS}]")}


def kernels(folder: Path) -> dict[str, sk.SubKernel]:
    """The kernels, written to files in the folder."""
    sub_kernels = {}
    for name, text in TEXTS.items():
        path = folder / f"{name}.ptx"
        path.write_text(text)
        threads, grid = _SHAPES[name]
        shared = 256 if name == "total" else 0
        sub_kernels[name] = sk.SubKernel.from_ptx(
            path, name, threads=threads, grid=grid, shared=shared, params=_PARAMS.get(name, (X, Z))
        )
    return sub_kernels


def random_graph(sub_kernels: Mapping[str, sk.SubKernel], seed: int, ops: int = 10) -> list[sk.Op]:
    """Ops whose inputs are any buffers so far; some write a buffer that others have read or written."""
    choose = random.Random(seed)
    names, graph = ["a", "b", "c"], []
    for number in range(ops):
        name = choose.choice(sorted(sub_kernels))
        inputs = choose.sample(names, 2 if name == "mix" else 1)
        others = [other for other in names[2:] if other not in inputs]
        reuses = others and (name == "count" or choose.random() < 0.35)
        output = choose.choice(others) if reuses else f"t{number}"
        if output not in names and name == "count":
            name = "turn"  # what counts is added to must have a value
        names = list(dict.fromkeys([*names, output]))
        graph.append(sk.Op(sub_kernels[name], [*inputs, output], name=f"{name}_{number}"))
    return graph


def chain(sub_kernels: Mapping[str, sk.SubKernel], names: Sequence[str]) -> list[sk.Op]:
    """Each op reads what the one before wrote."""
    ops, last = [], "a"
    for number, name in enumerate(names):
        inputs = ["b", last] if name == "mix" else [last]
        ops.append(sk.Op(sub_kernels[name], [*inputs, f"t{number}"], name=f"{name}_{number}"))
        last = f"t{number}"
    return ops


def buffers(ops: Sequence[sk.Op], seed: int = 0) -> dict[str, np.ndarray]:
    """Every buffer of the ops, with random words."""
    random_words = np.random.default_rng(seed)
    names = dict.fromkeys(str(argument) for op in ops for argument in op.args)
    return {name: random_words.integers(0, 2**32, WORDS, np.uint32) for name in names}
