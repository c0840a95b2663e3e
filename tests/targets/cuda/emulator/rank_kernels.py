"""Collectives of emulated GPUs in hand-written PTX, as ops on a window that all ranks see, and what they compute.

A window is laid out as in model/window_layout.py. The round of a launch is found in the line of the own rank: it is one
more than what stands there until the rank has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from targets.cuda.written_kernels import PtxFolder

import superkernel as sk
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.model.window_layout import RANK_LINE, WindowLayout

THREADS = 128
SMALL = {"name": "small", "architecture": "sm_80", "sms": 3}
ONE_SLOT = SMALL | {"shared_bytes": 3000}  # there is room for one slot on each SM
Array = np.ndarray[Any, Any]


def _slot_lines(name: str, rank: str, ahead: int) -> str:
    """%rd9: the slot of a rank in this round; %r10: the element of this thread; %rd8: its offset in bytes."""
    return f"""
ld.param.u64 %rd1, [{name}_window];
ld.param.u32 %r1, [{name}_rank];
ld.param.u32 %r2, [{name}_ranks];
ld.param.u32 %r3, [{name}_slots];
ld.param.u32 %r4, [{name}_stride];
mul.wide.u32 %rd2, %r1, {RANK_LINE};
add.s64 %rd2, %rd1, %rd2;
ld.global.u32 %r5, [%rd2];
add.u32 %r5, %r5, {ahead};
and.b32 %r5, %r5, 1;
mad.lo.u32 %r6, %r5, %r2, {rank};
mad.lo.u32 %r6, %r6, %r4, %r3;
cvt.u64.u32 %rd9, %r6;
add.s64 %rd9, %rd1, %rd9;
mov.u32 %r7, %ctaid.x;
mov.u32 %r8, %ntid.x;
mov.u32 %r9, %tid.x;
mad.lo.s32 %r10, %r7, %r8, %r9;
mul.wide.u32 %rd8, %r10, 4;
"""


# slot[i] = x[i]
PUBLISH = (
    _slot_lines("publish", "%r1", 1)
    + """
ld.param.u64 %rd3, [publish_x];
ld.param.u32 %r11, [publish_count];
setp.ge.u32 %p1, %r10, %r11;
@%p1 bra $L_end;
add.s64 %rd4, %rd3, %rd8;
add.s64 %rd5, %rd9, %rd8;
ld.global.s32 %r12, [%rd4];
st.global.s32 [%rd5], %r12;
$L_end:
ret;
"""
)

# y[i] = the sum of all slots at i
REDUCE = (
    _slot_lines("reduce", "0", 0)
    + """
ld.param.u64 %rd3, [reduce_y];
ld.param.u32 %r11, [reduce_count];
setp.ge.u32 %p1, %r10, %r11;
@%p1 bra $L_end;
add.s64 %rd4, %rd3, %rd8;
add.s64 %rd5, %rd9, %rd8;
cvt.u64.u32 %rd6, %r4;
mov.u32 %r13, 0;
$L_rank:
ld.global.s32 %r12, [%rd5];
add.s32 %r13, %r13, %r12;
add.s64 %rd5, %rd5, %rd6;
sub.u32 %r2, %r2, 1;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra $L_rank;
st.global.s32 [%rd4], %r13;
$L_end:
ret;
"""
)

# y[i] = 2 x[i] + 1
STEP = """
ld.param.u64 %rd1, [step_x];
ld.param.u64 %rd2, [step_y];
ld.param.u32 %r1, [step_count];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mov.u32 %r4, %tid.x;
mad.lo.s32 %r5, %r2, %r3, %r4;
setp.ge.u32 %p1, %r5, %r1;
@%p1 bra $L_end;
mul.wide.u32 %rd3, %r5, 4;
add.s64 %rd4, %rd1, %rd3;
add.s64 %rd5, %rd2, %rd3;
ld.global.s32 %r6, [%rd4];
shl.b32 %r6, %r6, 1;
add.s32 %r6, %r6, 1;
st.global.s32 [%rd5], %r6;
$L_end:
ret;
"""


@dataclass(frozen=True)
class Sums:
    """all_reduces one after the other, with an op before each; y is the last."""

    count: int
    stages: int = 2
    ranks: int = 2
    options: str = ""
    slots: bool = True  # several on each SM

    def compiled(self, folder: Path, **more: Any) -> list[sk.SuperKernel]:
        return [self.of_rank(folder, rank, **more) for rank in range(self.ranks)]

    def of_rank(self, folder: Path, rank: int, **more: Any) -> sk.SuperKernel:
        return sk.compile(
            self.ops(folder, rank), f"rank{rank}", self.options, "cuda", chip=SMALL if self.slots else ONE_SLOT, **more
        )

    def ops(self, folder: Path, rank: int) -> list[sk.Op]:
        source, ops = "x", list[sk.Op]()
        for number in range(self.stages):
            given, result = f"a{number}", f"y{number}"
            ops.append(sk.Op(self._step(folder), [source, given, self.count], f"step{number}"))
            ops += self._sum(folder, rank, f"w{number}", given, result)
            source = result
        return ops

    def _blocks(self) -> dict[str, Any]:
        return {"grid": (-(-self.count // THREADS), 1, 1), "threads": (THREADS, 1, 1)}

    def _step(self, folder: Path) -> sk.SubKernel:
        vector = f"int32[{self.count}]"
        params = [f"in:x:{vector}", f"out:y:{vector}", "scalar:count:int32"]
        return PtxFolder(folder).kernel("step", STEP, params, **self._blocks())

    def _sum(self, folder: Path, rank: int, window: str, source: str, result: str) -> list[sk.Op]:
        layout = WindowLayout(self.ranks, 4 * self.count)
        vector, memory = f"int32[{self.count}]", f"uint8[{layout.nbytes}]"
        numbers = ["rank", "ranks", "slots", "stride", "count"]
        scalars = [f"scalar:{name}:int32" for name in numbers]
        values = [rank, self.ranks, layout.slots, layout.stride, self.count]
        write = PtxFolder(folder)
        publish = write.kernel(
            "publish",
            PUBLISH,
            [f"in:x:{vector}", f"out:window:{memory}", *scalars],
            op_type="publish",
            **self._blocks(),
        )
        reduce = write.kernel(
            "reduce", REDUCE, [f"in:window:{memory}", f"out:y:{vector}", *scalars], op_type="reduce", **self._blocks()
        )
        group = RankGroup("world", tuple(range(self.ranks)), rank)
        terms = f"sum of int32[{self.count}]"
        return [
            sk.Op(
                publish, [source, window, *values], f"publish_{window}",
                ranks=RankSync(window, group, window, True, terms),
            ),
            sk.Op(
                reduce, [window, result, *values], f"reduce_{window}",
                ranks=RankSync(window, group, window, False, terms),
            ),
        ]  # fmt: skip

    def inputs(self, seed: int) -> list[dict[str, Array]]:
        random = np.random.default_rng(seed)
        return [{"x": random.integers(-9, 9, self.count).astype(np.int32)} for _ in range(self.ranks)]

    def expected(self, inputs: Sequence[dict[str, Array]]) -> Array:
        given = [each["x"] for each in inputs]
        for _ in range(self.stages):
            total = np.sum([2 * array + 1 for array in given], axis=0, dtype=np.int32)
            given = [total] * self.ranks
        return given[0]

    @property
    def last(self) -> str:
        return f"y{self.stages - 1}"
