"""Weights that are staged across ops, on the emulator: the bits of single launches, and faults that are noticed."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.graph_kernels import WORDS, kernels
from targets.cuda.emulator.planted_faults import replaced
from targets.cuda.emulator.test_bulk_copies import weights_of

import superkernel as sk
from superkernel.errors import BuildError, LaunchError
from superkernel.targets.cuda.emulator import CudaEmulator
from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.kernels.streaming_gemv import StreamingGemv
from superkernel.targets.cuda.read_back import check_table
from superkernel.targets.cuda.reader import read_ptx_file
from superkernel.targets.cuda.task_layout import STAGE_ENTRY_BYTES, WORD, HeaderWord, StageWord
from superkernel.targets.cuda.task_table import encode
from superkernel.targets.protocol import LaunchInputs

pytestmark = pytest.mark.slow
KB = 1 << 10


def gemv(rows: int, columns: int, **given: Any) -> StreamingGemv:
    return StreamingGemv(rows, columns, **{"blocks": 2, "ring_bytes": 64 * KB, "flying_behind_bytes": 32 * KB} | given)


def products(gemvs: list[StreamingGemv]) -> tuple[list[sk.Op], dict[str, Any]]:
    random = np.random.default_rng(2)
    buffers: dict[str, Any] = {"x0": random.standard_normal((1, gemvs[0].columns)).astype(np.float32)}
    ops = []
    for number, product in enumerate(gemvs):
        w, scales, _ = weights_of(product, random)
        buffers |= {f"w{number}": w, **{f"s{number}": scale for scale in scales}}
        buffers[f"x{number + 1}"] = np.zeros((1, product.rows), np.float32)
        scale = f"s{number}" if scales else None
        ops.append(product.op(f"w{number}", f"x{number}", f"x{number + 1}", scale=scale))
    return ops, buffers


def alone(ops: list[sk.Op], buffers: dict[str, Any]) -> dict[str, bytes]:
    """The buffers after the ops were launched one by one; the results are then overwritten."""
    for op in ops:
        arguments = [argument if isinstance(argument, int) else buffers[str(argument)] for argument in op.args]
        shape = {"grid": op.kernel.grid, "threads": op.kernel.threads, "shared": op.kernel.shared}
        launch_entry(read_ptx_file(op.kernel.binary.path), op.kernel.name, arguments, **shape)
    found = {name: value.tobytes() for name, value in buffers.items()}
    for number in range(len(ops)):
        buffers[f"x{number + 1}"][:] = np.nan
    return found


@pytest.mark.parametrize(
    "gemvs",
    [
        [gemv(256, 256)] * 3 + [gemv(512, 256), gemv(32, 512)],  # more chunks than the ring holds
        [gemv(2048, 1024), gemv(96, 2048), gemv(64, 96)],  # two entries, one ring
        [gemv(96, 4096), gemv(91, 96)],  # the last group is not full
        [gemv(64, 8192), gemv(8192, 64, idle_blocks=1), gemv(37, 8192)],  # all warps share a row; an idle block
        [gemv(64, 1024, weights="int8"), gemv(70, 64, weights="int8")],
    ],
    ids=["square", "shapes", "uneven", "idle", "int8"],
)
def test_staged_products_have_the_bits_of_single_launches(gemvs: list[StreamingGemv]) -> None:
    ops, buffers = products(gemvs)
    expected = alone(ops, buffers)
    with sk.compile(ops, name="products", target="cuda") as k:
        assert str(k.plan).count("stage weights of") == len(ops)
        assert "cp.async.mbarrier.arrive.noinc" in k.source
        for seed in range(2):
            k.emulate(buffers, seed=seed)
            assert {name: value.tobytes() for name, value in buffers.items()} == expected, seed
        k.emulate(buffers, seed=9, launches=2)  # the ring of a launch begins empty
        assert {name: value.tobytes() for name, value in buffers.items()} == expected


def between(folder: Path) -> tuple[list[sk.Op], dict[str, Any]]:
    """Staged products, and among them an op with shared memory of its own."""
    ops, buffers = products([gemv(256, 256)] * 4)
    total = kernels(folder)["total"]
    buffers |= {"u": np.arange(WORDS, dtype=np.uint32), "v": np.zeros(WORDS, np.uint32)}
    return [*ops[:3], sk.Op(total, ["u", "v"]), ops[3]], buffers


def test_other_ops_keep_off_the_ring(tmp_path: Path) -> None:
    ops, buffers = between(tmp_path)
    staged = [op for op in ops if op.kernel.name != "total"]
    expected = alone(staged, buffers)
    with sk.compile(ops, name="products", target="cuda") as k:
        assert str(k.plan).count("stage weights of") == 4
        base = k.executable.slot_shape.ring.nbytes
        for seed in range(4):
            k.emulate(buffers, seed=seed)
            assert all(buffers[name].tobytes() == expected[name] for name in ("x1", "x2", "x3", "x4")), seed
        within = replaced(k.executable, f"%sk_shared, {base};", "%sk_shared, 0;")
    with pytest.raises(LaunchError, match=r"op 'total'.*in the ring of staged weights"):
        CudaEmulator().emulate(within, buffers, LaunchInputs({}, {}), seed=1)


def test_a_saved_super_kernel_stages_as_before(tmp_path: Path) -> None:
    ops, buffers = products([gemv(256, 256)] * 3)
    expected = alone(ops, buffers)
    with sk.compile(ops, name="products", target="cuda") as k:
        k.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as loaded:
        assert str(loaded.plan).count("stage weights of") == 3
        loaded.emulate(buffers, seed=1)
    assert {name: value.tobytes() for name, value in buffers.items()} == expected


@pytest.mark.parametrize("copied", [True, False], ids=["in shared memory", "in device memory"])
def test_every_changed_word_of_a_table_with_staged_inputs_is_noticed(tmp_path: Path, copied: bool) -> None:
    """Beside a warp that asks for other inputs; also a number of chunks that nothing could hold, at once."""
    ops, _ = between(tmp_path)
    with sk.compile(ops, name="products", target="cuda", options="prefetch-weights=1") as k:
        numbers = k.executable.numbers
        assert "stage weights of" in str(k.plan) and "prefetch weights of total: u" in str(k.plan), str(k.plan)
    data = encode(numbers, copied=copied).data
    check_table(data, numbers, copied=copied)
    for at in range(0, len(data), WORD):
        for change in (1, 16, 1 << 31):
            table = bytearray(data)
            (word,) = struct.unpack_from("<I", table, at)
            struct.pack_into("<I", table, at, word ^ change)
            with pytest.raises(BuildError, match="the task table is not the validated plan"):
                check_table(bytes(table), numbers, copied=copied)


def with_entry(executable: Any, entry: int, word: StageWord, add: int) -> Any:
    """The executable with a changed word of a staged input."""
    data = bytearray(executable.table.data)
    (begin,) = struct.unpack_from("<I", data, WORD * HeaderWord.STAGED)
    at = begin + entry * STAGE_ENTRY_BYTES + WORD * word
    (value,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, (value + add) & 0xFFFFFFFF)
    return replace(executable, table=replace(executable.table, data=bytes(data)))


FAULTS = {
    "a chunk short": lambda e: with_entry(e, 1, StageWord.CHUNKS, -1),
    "a chunk more": lambda e: with_entry(e, 0, StageWord.CHUNKS, 1),
    "another block": lambda e: with_entry(e, 0, StageWord.FIRST, 1),
    "shorter chunks": lambda e: with_entry(e, 0, StageWord.BYTES, -16),
    "no room awaited": lambda e: replaced(e, "@%sk_p bra $sk_stage_flying;", "bra $sk_stage_flying;"),
    "arrives before its copies": lambda e: replaced(
        e, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [", "mbarrier.arrive.shared::cta.b64 _, ["
    ),
    "ends with copies on their way": lambda e: replaced(
        with_entry(e, 2, StageWord.CHUNKS, 8), "cp.async.wait_all;\n\tbra $sk_leave;", "bra $sk_leave;"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault: str) -> None:
    ops, buffers = products([gemv(256, 256, ring_bytes=32 * KB)] * 3)
    expected = alone(ops, buffers)
    with sk.compile(ops, name="products", target="cuda") as k:
        executable = FAULTS[fault](k.executable)
    noticed = 0
    for seed in range(3):
        for number in range(len(ops)):
            buffers[f"x{number + 1}"][:] = np.nan
        try:
            CudaEmulator().emulate(executable, buffers, LaunchInputs({}, {}), seed=seed)
        except LaunchError:
            noticed += 1
        else:
            noticed += {name: value.tobytes() for name, value in buffers.items()} != expected
    assert noticed, fault
