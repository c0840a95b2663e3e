"""Kernels in hand-written PTX for tests of the emitter, and machines to plan them for; no compiler is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import superkernel as sk
from superkernel.model.graph import Graph, build_graph
from superkernel.model.options import Options
from superkernel.targets.cuda.device import DeviceDescription, find_device
from superkernel.targets.cuda.facts import complete
from superkernel.targets.cuda.plan import CudaPlan, make_cuda_plan

HEAD = """.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.global .align 4 .b32 table[4] = {1, 2, 3, 4};
.const .align 8 .u64 pointers[1] = {table};
.global .align 4 .b8 unused[8];
"""
REGISTERS = ".reg .b16 %h<8>; .reg .b32 %r<30>; .reg .b64 %rd<30>; .reg .f32 %f<10>; .reg .pred %p<8>;"

# z[i] = x[i] + y[i] for i < n, 128 per block
ADD = """
ld.param.u64 %rd1, [add_x];
ld.param.u64 %rd2, [add_y];
ld.param.u64 %rd3, [add_z];
ld.param.u32 %r1, [add_n];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mov.u32 %r4, %tid.x;
mad.lo.s32 %r5, %r2, %r3, %r4;
setp.ge.s32 %p1, %r5, %r1;
@%p1 bra $L_end;
mul.wide.s32 %rd4, %r5, 4;
add.s64 %rd5, %rd1, %rd4;
add.s64 %rd6, %rd2, %rd4;
add.s64 %rd7, %rd3, %rd4;
ld.global.nc.f32 %f1, [%rd5];
ld.global.nc.f32 %f2, [%rd6];
add.f32 %f3, %f1, %f2;
st.global.f32 [%rd7], %f3;
$L_end:
ret;
"""

# y[0] = the sum of x[0..127], through static shared memory
TOTAL = """
.shared .align 4 .b8 part[512];
ld.param.u64 %rd1, [total_x];
ld.param.u64 %rd2, [total_y];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd1, %rd3;
ld.global.f32 %f1, [%rd4];
mov.u32 %r2, part;
mad.lo.u32 %r3, %r1, 4, %r2;
st.shared.f32 [%r3], %f1;
bar.sync 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 exit;
mov.f32 %f2, 0f00000000;
mov.u32 %r4, 0;
$L_next:
ld.shared.f32 %f3, [%r2];
add.f32 %f2, %f2, %f3;
add.u32 %r2, %r2, 4;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p2, %r4, 128;
@%p2 bra $L_next;
st.global.f32 [%rd2], %f2;
ret;
"""
VECTOR = "float32[512]"


class PtxFolder:
    """Writes PTX files, and describes the kernels in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kernel(
        self, name: str, body: str, params: Sequence[str], types: str = "", directives: str = "", **more: Any
    ) -> sk.SubKernel:
        """`params` as SubKernel takes them; `types` of the PTX parameters: by default u64, and u32 of scalars."""
        words = types.split() or ["u32" if param.startswith("scalar") else "u64" for param in params]
        declared = ", ".join(
            f".param .{word} {name}_{param.split(':')[1]}" for word, param in zip(words, params, strict=True)
        )
        path = self.folder / f"{name}.ptx"
        path.write_text(f"{HEAD}.visible .entry {name}({declared}) {directives} {{\n{REGISTERS}\n{body}\n}}\n")
        described: dict[str, Any] = {"threads": (128, 1, 1), "grid": (4, 1, 1)}
        return sk.SubKernel.from_ptx(path, name, params=params, **(described | more))

    def add(self, **more: Any) -> sk.SubKernel:
        vectors = [f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"]
        return self.kernel("add", ADD, [*vectors, "scalar:n:int32"], **more)

    def total(self, **more: Any) -> sk.SubKernel:
        params = [f"in:x:{VECTOR}", "out:y:float32[1]"]
        return self.kernel("total", TOTAL, params, **({"grid": (1, 1, 1)} | more))


def small_gpu(sms: int = 4, **more: Any) -> DeviceDescription:
    return find_device({"name": "small", "architecture": "sm_80", "sms": sms, **more})


def graph_of(ops: Sequence[sk.Op], name: str = "kernel", stream_fusion: bool = False) -> Graph:
    """The graph of ops whose kernels have been read."""
    graph = build_graph(ops, name, stream_fusion)
    return graph.with_kernels({node.kernel: complete(node.kernel) for node in graph.nodes})


def plan_of(
    ops: Sequence[sk.Op], options: str = "", cores: int = 16, device: DeviceDescription | None = None
) -> CudaPlan:
    parsed = Options.parse(options)
    return make_cuda_plan(graph_of(ops, stream_fusion=parsed.stream_fusion), parsed, cores, device or small_gpu(), "")
