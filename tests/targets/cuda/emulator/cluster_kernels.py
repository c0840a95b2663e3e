"""Kernels in PTX of any number of blocks, whose ops need words that all blocks of the op before wrote."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import superkernel as sk

WORDS = 512
THREADS = 32
SHARED = 2048  # bytes of a block, so that an SM has room for few
# z[i] = 3 x[5 i + 1] + i, for every i of this block
_TEXT = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry spread(.param .u64 x, .param .u64 z)
.reqntid {THREADS}, 1, 1
{{
.reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %d<20>;
ld.param.u64 %d1, [x]; ld.param.u64 %d2, [z];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r4, %r2, {THREADS}, %r1;
mov.u32 %r3, %nctaid.x; mul.lo.u32 %r3, %r3, {THREADS};
next: mad.lo.u32 %r5, %r4, 5, 1; and.b32 %r5, %r5, {WORDS - 1};
mad.wide.u32 %d3, %r5, 4, %d1; ld.global.u32 %r6, [%d3]; mad.lo.u32 %r6, %r6, 3, %r4;
mad.wide.u32 %d4, %r4, 4, %d2; st.global.u32 [%d4], %r6;
add.u32 %r4, %r4, %r3; setp.lt.u32 %p1, %r4, {WORDS}; @%p1 bra next;
ret;
}}
"""


def spread(folder: Path, blocks: int, **more: Any) -> sk.SubKernel:
    path = folder / "spread.ptx"
    path.write_text(_TEXT)
    params = f"in:x:uint32[{WORDS}]", f"out:z:uint32[{WORDS}]"
    assert blocks * THREADS <= WORDS
    shape = {"threads": (THREADS, 1, 1), "grid": (blocks, 1, 1), "shared": SHARED, "params": params}
    return sk.SubKernel.from_ptx(path, "spread", **(shape | more))


def random_spreads(folder: Path, seed: int, ops: int) -> list[sk.Op]:
    """Ops of 1 to 16 blocks that read what any op so far has written; some write what others have read or written."""
    choose = random.Random(seed)
    counts = choose.sample((1, 2, 3, 4, 5, 8, 12, 16), 4)
    names, graph = ["a", "b"], []
    for number in range(ops):
        source = choose.choice(names[-4:])
        others = [name for name in names[2:] if name != source]
        target = choose.choice(others) if others and choose.random() < 0.3 else f"t{number}"
        names = list(dict.fromkeys([*names, target]))
        kernel = spread(folder, choose.choice(counts))
        graph.append(sk.Op(kernel, [source, target], name=f"op{number}", stream=choose.randrange(3)))
    return graph


def spread_chain(folder: Path, blocks: Sequence[int]) -> list[sk.Op]:
    """Ops of so many blocks, one after the other."""
    names = ["a", *(f"t{number}" for number in range(len(blocks)))]
    return [
        sk.Op(spread(folder, count), [names[number], names[number + 1]], name=f"op{number}")
        for number, count in enumerate(blocks)
    ]
