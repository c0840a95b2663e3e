"""Bulk copies and mbarriers on the emulator: complete when all bytes are there, and misuse is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.graph_kernels import kernels
from targets.cuda.emulator.planted_faults import replaced

import superkernel as sk
from superkernel.errors import LaunchError, UnsupportedError
from superkernel.targets.cuda.emulator import CudaEmulator
from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.kernels.streaming_gemv import StreamingGemv
from superkernel.targets.cuda.reader import read_ptx, read_ptx_file
from superkernel.targets.protocol import LaunchInputs

SEEDS = range(4)
# thread 0 copies 256 bytes of x in two pieces; all threads wait for both, then y = x
HEAD = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 x, .param .u64 y)
{
.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %d<8>;
.shared .align 16 .b8 chunk[256];
.shared .align 8 .b64 barrier;
ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
mov.u32 %r1, %tid.x; mov.u32 %r2, chunk; mov.u32 %r3, barrier;
mad.lo.u32 %r4, %r1, 4, %r2; mad.wide.u32 %d3, %r1, 4, %d2;
setp.ne.u32 %p1, %r1, 0;
"""
INIT = "@%p1 bra BEGUN;\nmbarrier.init.shared::cta.b64 [%r3], 1;\nBEGUN: bar.sync 0;\n"
COPY = """@%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared::cta.b64 %d4, [%r3], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+128], [%d1+128], 128, [%r3];
ISSUED:
"""
WAIT = "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra AGAIN;\n"
STORE = "ld.shared.u32 %r5, [%r4]; st.global.u32 [%d3], %r5;\n"
END = "bar.sync 0;\n@%p1 bra DONE;\nmbarrier.inval.shared::cta.b64 [%r3];\nDONE: ret;\n}\n"


def launch(body: str, seed: int = 0) -> tuple[Any, Any]:
    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    module = read_ptx(HEAD + body, "kernel.ptx")
    launch_entry(module, "kernel", [x, y], grid=(1, 1, 1), threads=(64, 1, 1), seed=seed)
    return x, y


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_there_when_the_phase_has_completed(seed: int) -> None:
    x, y = launch(INIT + COPY + WAIT + STORE + END, seed)
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INIT + COPY + STORE + WAIT + END, "data race"),
        (COPY + WAIT + STORE + END, "where no mbarrier was initialised"),
        (INIT + WAIT + STORE + END, "deadlock"),
        (INIT + COPY.replace("], 256;", "], 272;") + WAIT + STORE + END, "deadlock"),
        (INIT + COPY.replace("128, [%r3]", "120, [%r3]") + WAIT + STORE + END, "a multiple of 16"),
        (INIT + COPY.replace("[%r2+128]", "[%r2+136]") + WAIT + STORE + END, "not a multiple of 16"),
        (INIT + COPY.replace("[%d1+128]", "[%d1+192]") + WAIT + STORE + END, "outside every buffer"),
        (INIT + COPY + WAIT.replace("[%r3], 0", "[%r3], 1") + STORE + END, ""),
    ],
    ids=["no wait", "no init", "no copy", "more expected", "size", "alignment", "bounds", "other parity"],
)
def test_misuse_is_reported_under_some_seed(body: str, message: str) -> None:
    caught = []
    for seed in SEEDS:
        try:
            x, y = launch(body, seed)
        except LaunchError as error:
            caught.append(str(error))
        else:
            caught += [] if np.array_equal(x, y) else [""]
    assert any(message in text for text in caught), caught


def test_what_needs_tma_or_a_cluster_is_refused() -> None:
    for instruction in (
        "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 128;",
        "mbarrier.arrive.noComplete.shared::cta.b64 %d4, [%r3], 1;",
    ):
        with pytest.raises(UnsupportedError, match="the emulator has no"):
            launch(f"{instruction}\nret;\n}}\n")


def bfloat16(values: Any) -> Any:
    """The nearest bfloat16, as bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def weights_of(gemv: StreamingGemv, random: np.random.Generator) -> tuple[Any, list[Any], Any]:
    """Weights, the scales that belong to them, and the matrix that both stand for."""
    shape = gemv.rows, gemv.columns
    if gemv.weights == "int8":
        w, scale = random.integers(-127, 128, shape).astype(np.int8), random.random(gemv.rows).astype(np.float32)
        return w, [scale], w * scale.astype(np.float64)[:, None]
    if gemv.weights == "float16":
        w = random.standard_normal(shape).astype(np.float16)
        return w, [], w.astype(np.float64)
    bits = bfloat16(random.standard_normal(shape))
    return bits, [], (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gemv",
    [
        StreamingGemv(90, 2048, blocks=2, ring_bytes=64 << 10, early_bytes=32 << 10, flying_bytes=16 << 10),
        StreamingGemv(90, 2048, blocks=2, flying_bytes=64 << 10, flying_behind_bytes=16 << 10),
        StreamingGemv(91, 4096, blocks=2, ring_bytes=64 << 10),  # the last group is not full
        StreamingGemv(37, 8192, blocks=2, ring_bytes=48 << 10),
        StreamingGemv(1100, 64, blocks=1),  # more groups than a round has
        StreamingGemv(13, 3072, blocks=8),  # fewer groups than blocks
        StreamingGemv(41, 1024, blocks=4, idle_blocks=2),
        StreamingGemv(20, 512, weights="float16", blocks=1),
        StreamingGemv(40, 3200, weights="int8", blocks=2),
        StreamingGemv(20, 264, blocks=2),  # from here on activations are staged
        StreamingGemv(40, 18432, blocks=2),
        StreamingGemv(19, 2304, batch=3, blocks=1),
        StreamingGemv(37, 4104, batch=8, blocks=2),  # three panels, two rows at a time
        StreamingGemv(20, 520, batch=2, weights="float16", blocks=1),
        StreamingGemv(33, 4624, batch=5, weights="int8", blocks=2),
    ],
    ids=lambda gemv: f"{gemv.weights}-{gemv.batch}x{gemv.columns}",
)
def test_the_streaming_gemv_is_right_and_has_the_same_bits_in_every_order(gemv: StreamingGemv) -> None:
    random = np.random.default_rng(0)
    w, scales, matrix = weights_of(gemv, random)
    x = random.standard_normal((gemv.batch, gemv.columns)).astype(np.float32)
    op = gemv.op("w", "x", "y", scale="s" if scales else None)
    module, numbers = read_ptx_file(op.kernel.binary.path), [a for a in op.args if isinstance(a, int)]
    found = []
    for seed in range(3):
        y = np.full((gemv.batch, gemv.rows), np.nan, np.float32)
        arguments = [w, *scales, x, y, *numbers]
        shape = {"grid": op.kernel.grid, "threads": op.kernel.threads, "shared": op.kernel.shared}
        launch_entry(module, op.kernel.name, arguments, **shape, seed=seed)
        found.append(y)
    expected = x.astype(np.float64) @ matrix.T
    assert np.abs(found[0] - expected).max() <= 1e-6 * np.abs(expected).max()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.slow
def test_a_super_kernel_of_streaming_gemvs_has_the_bits_of_single_launches() -> None:
    """Three products on two SMs: weights are asked for before the wait, the rings share memory one after the other."""
    random = np.random.default_rng(1)
    gemvs = [
        StreamingGemv(4096, 64, blocks=2),
        StreamingGemv(48, 4096, blocks=2, ring_bytes=64 << 10),
        StreamingGemv(24, 48, blocks=2, weights="int8"),
    ]
    buffers: dict[str, Any] = {"x0": random.standard_normal((1, 64)).astype(np.float32)}
    ops = []
    for number, gemv in enumerate(gemvs):
        w, scales, _ = weights_of(gemv, random)
        buffers |= {f"w{number}": w, **{f"s{number}": scale for scale in scales}}
        buffers[f"x{number + 1}"] = np.zeros((1, gemv.rows), np.float32)
        names = f"w{number}", f"x{number}", f"x{number + 1}"
        ops.append(gemv.op(*names, scale=f"s{number}" if scales else None))
    assert [op.kernel.name.rpartition("_")[2] for op in ops] == ["columns1024", "columns4096", "1"]
    for op in ops:
        arguments = [argument if isinstance(argument, int) else buffers[str(argument)] for argument in op.args]
        shape = {"grid": op.kernel.grid, "threads": op.kernel.threads, "shared": op.kernel.shared}
        launch_entry(read_ptx_file(op.kernel.binary.path), op.kernel.name, arguments, **shape)
    alone = {name: value.tobytes() for name, value in buffers.items()}
    with sk.compile(ops, name="products", target="cuda") as k:
        assert "fence.proxy.async;" not in k.source  # the launch writes no weights
        assert "early start: streaming_gemv_bfloat16_columns4096 has parts of w in flight at its wait" in k.plan.notes
        for seed in range(5):
            for name in ("x1", "x2", "x3"):
                buffers[name][:] = np.nan
            k.emulate(buffers, seed=seed)
            assert {name: value.tobytes() for name, value in buffers.items()} == alone, seed


STORE_FIRST = "mad.wide.u32 %d5, %r1, 4, %d1; add.u32 %r6, %r1, 100; st.global.u32 [%d5], %r6;\n"


@pytest.mark.parametrize(
    ("before", "behind"), [("fence.proxy.async;", ""), ("", "fence.proxy.async;"), ("", "fence.proxy.async.global;")]
)
def test_a_fence_on_either_side_of_the_barrier_shows_stores_to_bulk_copies(before: str, behind: str) -> None:
    for seed in SEEDS:
        x, y = launch(STORE_FIRST + before + INIT + behind + COPY + WAIT + STORE + END, seed)
        assert x.tolist() == y.tolist() == list(range(100, 164))


def test_a_store_that_a_bulk_copy_reads_without_a_fence_of_the_proxy_is_reported() -> None:
    for seed in SEEDS:
        with pytest.raises(LaunchError, match=r"a bulk copy touches byte \d+ of argument 0 .* no fence.proxy.async"):
            launch(STORE_FIRST + INIT + COPY + WAIT + STORE + END, seed)
        with pytest.raises(LaunchError, match=r"a bulk copy touches byte \d+ of shared memory"):
            launch("st.shared.u32 [%r4], %r1;" + INIT + COPY + WAIT + STORE + END, seed)


def test_a_super_kernel_without_its_fences_of_the_proxy_is_reported(tmp_path: Path) -> None:
    """A ring in shared memory that another sub-kernel has stored to by plain stores before."""
    gemv = StreamingGemv(20, 264, blocks=2)
    random = np.random.default_rng(0)
    ops = [sk.Op(kernels(tmp_path)["turn"], ["a", "t"], name="turn"), gemv.op("w", "x", "y")]
    words = {name: np.arange(512, dtype=np.uint32) for name in ("a", "t")}
    vectors = {"x": random.standard_normal((1, 264)).astype(np.float32), "y": np.zeros((1, 20), np.float32)}
    buffers = words | vectors | {"w": weights_of(gemv, random)[0]}
    chip = {"name": "small", "architecture": "sm_90a", "sms": 1}
    with sk.compile(ops, name="ring", target="cuda", chip=chip) as kernel:
        kernel.emulate(buffers, seed=1)
        executable = replaced(kernel.executable, "fence.proxy.async", "// fence.proxy.async")
        with pytest.raises(LaunchError, match=r"which op 'turn' .* stored \(line \d+\), and no fence.proxy.async"):
            CudaEmulator().emulate(executable, buffers, LaunchInputs({}, {}), seed=1)
