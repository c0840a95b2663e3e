"""Small kernels as PTX text for tests on a GPU: elementwise, all-to-all, endless, and with a wrong address."""

from __future__ import annotations

from pathlib import Path

from superkernel import SubKernel

THREADS = 128

_HEAD = """.version 8.0
.target sm_80
.address_size 64
"""

_INDEX = """
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<16>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 128, %r2;
"""

# y[i] = x[i] * a + b
SCALE = (
    _HEAD
    + """
.visible .entry scale(.param .u64 .ptr .global .align 16 x, .param .u64 .ptr .global .align 16 y, .param .f32 a,
    .param .f32 b, .param .u32 n)
.reqntid 128, 1, 1
{"""
    + _INDEX
    + """
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.f32 %f2, [b];
    ld.param.u32 %r4, [n];
    setp.ge.s32 %p1, %r3, %r4;
    @%p1 bra DONE;
    mul.wide.s32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f3, [%rd4];
    fma.rn.f32 %f4, %f3, %f1, %f2;
    st.global.f32 [%rd5], %f4;
DONE:
    ret;
}
"""
)

# z[i] = x[i] + y[i]
ADD = (
    _HEAD
    + """
.visible .entry add(.param .u64 .ptr .global .align 16 x, .param .u64 .ptr .global .align 16 y,
    .param .u64 .ptr .global .align 16 z, .param .u32 n)
.reqntid 128, 1, 1
{"""
    + _INDEX
    + """
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u64 %rd6, [z];
    ld.param.u32 %r4, [n];
    setp.ge.s32 %p1, %r3, %r4;
    @%p1 bra DONE;
    mul.wide.s32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    add.s64 %rd7, %rd6, %rd3;
    ld.global.f32 %f3, [%rd4];
    ld.global.f32 %f4, [%rd5];
    add.rn.f32 %f5, %f3, %f4;
    st.global.f32 [%rd7], %f5;
DONE:
    ret;
}
"""
)

# y[i] = x[i] + mean(x): every block reads all of x, and sums it in shared memory
CENTER = (
    _HEAD
    + """
.visible .entry center(.param .u64 .ptr .global .align 16 x, .param .u64 .ptr .global .align 16 y, .param .f32 inverse,
    .param .u32 n)
.reqntid 128, 1, 1
{
    .shared .align 4 .b8 sums[512];"""
    + _INDEX
    + """
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f6, [inverse];
    ld.param.u32 %r4, [n];
    mov.f32 %f1, 0f00000000;
    mov.u32 %r5, %r2;
    setp.ge.s32 %p1, %r5, %r4;
    @%p1 bra SUMMED;
READ:
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f2, [%rd4];
    add.rn.f32 %f1, %f1, %f2;
    add.s32 %r5, %r5, 128;
    setp.lt.s32 %p1, %r5, %r4;
    @%p1 bra READ;
SUMMED:
    mov.u32 %r6, sums;
    shl.b32 %r7, %r2, 2;
    add.s32 %r8, %r6, %r7;
    st.shared.f32 [%r8], %f1;
    mov.u32 %r9, 64;
HALVE:
    bar.sync 0;
    setp.ge.s32 %p2, %r2, %r9;
    @%p2 bra NEXT;
    shl.b32 %r10, %r9, 2;
    add.s32 %r11, %r8, %r10;
    ld.shared.f32 %f3, [%r11];
    ld.shared.f32 %f4, [%r8];
    add.rn.f32 %f4, %f4, %f3;
    st.shared.f32 [%r8], %f4;
NEXT:
    shr.u32 %r9, %r9, 1;
    setp.ne.s32 %p3, %r9, 0;
    @%p3 bra HALVE;
    bar.sync 0;
    setp.ge.s32 %p1, %r3, %r4;
    @%p1 bra DONE;
    ld.shared.f32 %f5, [%r6];
    mul.wide.s32 %rd5, %r3, 4;
    add.s64 %rd6, %rd1, %rd5;
    add.s64 %rd7, %rd2, %rd5;
    ld.global.f32 %f7, [%rd6];
    fma.rn.f32 %f7, %f5, %f6, %f7;
    st.global.f32 [%rd7], %f7;
DONE:
    ret;
}
"""
)

# ends if go is 0; y[0] = 1 then
ENDLESS = (
    _HEAD
    + """
.visible .entry endless(.param .u64 .ptr .global .align 16 y, .param .u32 go)
.reqntid 128, 1, 1
{"""
    + _INDEX
    + """
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r4, [go];
    mov.u32 %r5, 1;
AGAIN:
    mad.lo.s32 %r5, %r5, 1664525, 1013904223;
    nanosleep.u32 100;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra AGAIN;
    mov.f32 %f1, 0f3F800000;
    st.global.f32 [%rd1], %f1;
    ret;
}
"""
)

# y[offset] = 1
STRAY = (
    _HEAD
    + """
.visible .entry stray(.param .u64 .ptr .global .align 16 y, .param .u64 offset)
.reqntid 128, 1, 1
{"""
    + _INDEX
    + """
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [offset];
    add.s64 %rd3, %rd1, %rd2;
    mov.f32 %f1, 0f3F800000;
    st.global.f32 [%rd3], %f1;
    ret;
}
"""
)

# y[i] = x[5 i + 1] / 2 + x[i], for every i of a block: each block needs what all blocks of the op before stored
GATHER_ELEMENTS, GATHER_THREADS = 4096, 1024
GATHER = (
    _HEAD
    + f"""
.visible .entry gather(.param .u64 .ptr .global .align 16 x, .param .u64 .ptr .global .align 16 y)
.reqntid {GATHER_THREADS}, 1, 1
{{"""
    + _INDEX
    + f"""
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mad.lo.s32 %r3, %r1, {GATHER_THREADS}, %r2;
    mov.u32 %r4, %nctaid.x;
    mul.lo.s32 %r4, %r4, {GATHER_THREADS};
    setp.ge.s32 %p1, %r3, {GATHER_ELEMENTS};
    @%p1 bra DONE;
NEXT:
    mad.lo.s32 %r5, %r3, 5, 1;
    and.b32 %r5, %r5, {GATHER_ELEMENTS - 1};
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    mul.wide.s32 %rd5, %r3, 4;
    add.s64 %rd6, %rd1, %rd5;
    add.s64 %rd7, %rd2, %rd5;
    ld.global.f32 %f1, [%rd4];
    ld.global.f32 %f2, [%rd6];
    fma.rn.f32 %f3, %f1, 0f3F000000, %f2;
    st.global.f32 [%rd7], %f3;
    add.s32 %r3, %r3, %r4;
    setp.lt.s32 %p1, %r3, {GATHER_ELEMENTS};
    @%p1 bra NEXT;
DONE:
    ret;
}}
"""
)

TEXTS = {"scale": SCALE, "add": ADD, "center": CENTER, "endless": ENDLESS, "stray": STRAY}


def write_gather(folder: Path, blocks: int) -> SubKernel:
    """Blocks of 1024 threads, of which an SM runs one: an op of several blocks is on several SMs."""
    path = folder / "gather.ptx"
    path.write_text(GATHER)
    shape = f"float32[{GATHER_ELEMENTS}]"
    params = [f"in:x:{shape}", f"out:y:{shape}"]
    return SubKernel.from_ptx(path, "gather", threads=(GATHER_THREADS, 1, 1), grid=(blocks, 1, 1), params=params)


def write_kernel(folder: Path, name: str, elements: int, blocks: int | None = None) -> SubKernel:
    """The sub-kernel for buffers of so many floats."""
    path = folder / f"{name}.ptx"
    path.write_text(TEXTS[name])
    shape = f"float32[{elements}]"
    params = {
        "scale": [f"in:x:{shape}", f"out:y:{shape}", "scalar:a:float32", "scalar:b:float32", "scalar:n:int32"],
        "add": [f"in:x:{shape}", f"in:y:{shape}", f"out:z:{shape}", "scalar:n:int32"],
        "center": [f"in:x:{shape}", f"out:y:{shape}", "scalar:inverse:float32", "scalar:n:int32"],
        "endless": [f"out:y:{shape}", "scalar:go:int32"],
        "stray": [f"out:y:{shape}", "scalar:offset:int64"],
    }[name]
    grid = (blocks or -(-elements // THREADS), 1, 1)
    return SubKernel.from_ptx(path, name, threads=(THREADS, 1, 1), grid=grid, params=params)
