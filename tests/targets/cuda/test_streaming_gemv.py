"""The streaming GEMV: its PTX is that of its source, its shapes fit the machine, its mistakes are named."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import superkernel as sk
from superkernel.errors import GraphError
from superkernel.targets.cuda.kernels.streaming_gemv import WEIGHT_BYTES, StreamingGemv

ROOT = Path(__file__).resolve().parents[3]
RING_BYTES = 8 * 4096  # of one slot of all warps


@pytest.fixture(scope="module")
def write_ptx() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_ptx", ROOT / "tools" / "write_ptx.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ptx_was_written_from_the_source(write_ptx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_ptx.main(["--check"]) == 0
    assert len(write_ptx.outputs()) == 15
    monkeypatch.setattr(write_ptx, "FLAGS", ("-ptx",))
    assert write_ptx.main(["--check"]) == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_this_nvcc_writes_the_same_ptx(write_ptx: ModuleType) -> None:
    path, macros = next(iter(write_ptx.outputs().items()))
    shipped = path.read_text()
    if write_ptx.nvcc_release() not in shipped.partition("\n")[0]:
        pytest.skip(f"written by another release than {write_ptx.nvcc_release()}")
    assert write_ptx.compiled(macros) == shipped


@pytest.mark.parametrize("weights", WEIGHT_BYTES)
@pytest.mark.parametrize("batch", range(1, 9))
@pytest.mark.parametrize("columns", [16, 2048, 4096, 8192, 14336, 53248])
def test_every_shape_fits_into_shared_memory(weights: str, batch: int, columns: int) -> None:
    gemv = StreamingGemv(128256, columns, batch=batch, weights=weights)
    assert 2 <= gemv.slots <= 6 and gemv.shared <= 216 << 10
    assert gemv.splits or (gemv.panel % 256 == 0 and gemv.panel >= min(columns, 2048))
    assert gemv.kernel.shared == gemv.shared and gemv.kernel.threads == (256, 1, 1)


def test_one_vector_is_split_among_warps_and_keeps_the_ring_that_was_fastest() -> None:
    for columns, splits in ((1024, 1), (2048, 1), (4096, 2), (8192, 4), (14336, 8), (4104, 0), (20480, 0)):
        assert StreamingGemv(4096, columns).splits == splits
    gemv = StreamingGemv(4096, 4096)
    assert (gemv.slots, gemv.panel, gemv.kernel.name) == (6, 0, "streaming_gemv_bfloat16_sliced")
    assert gemv.shared == 6 * (RING_BYTES + 64) + 4 * 8 * 8  # 8 rows of each of 4 teams of 2 warps
    assert StreamingGemv(4096, 4096, batch=2).splits == 0


def test_an_op_has_typed_buffers_and_the_shape_as_scalars() -> None:
    gemv = StreamingGemv(4096, 2048, batch=3)
    op = gemv.op("w", "x", "y")
    assert op.kernel.name == "streaming_gemv_bfloat16_4" and op.kernel.grid == (132, 1, 1)
    params = [str(param) for param in op.kernel.params]
    assert params[:4] == ["in:w:bfloat16[4096,2048]", "in:x:float32[3,2048]", "out:y:float32[3,4096]", "in:next"]
    assert list(op.args) == ["w", "x", "y", "w", 4096, 2048, 3, 2048, 5, 0, 4096, 2048, 2048, 0]


def test_int8_weights_have_a_scale_and_others_none() -> None:
    quantized = StreamingGemv(64, 64, weights="int8", activations="bfloat16")
    op = quantized.op("w", "x", "y", scale=sk.Place("scales", 256))
    assert list(op.args) == ["w", sk.Place("scales", 256), "x", "y", "w", 64, 64, 1, 6, 1, 64, 64, 1, 0]
    assert str(op.kernel.params[1]) == "in:scale:float32[64]"
    with pytest.raises(GraphError, match="int8 weights need scale"):
        quantized.op("w", "x", "y")
    with pytest.raises(GraphError, match="bfloat16 weights have no scale"):
        StreamingGemv(64, 64).op("w", "x", "y", scale="s")


def test_the_next_weights_are_prefetched_where_they_are_named() -> None:
    first, second = StreamingGemv(64, 64), StreamingGemv(128, 256)
    op = first.op("w", "x", "y", following=("v", second))
    assert op.args[3] == "v" and list(op.args)[-4:] == [128, 256, 1, 6]
    assert list(first.op("w", "x", "y", following=("v", second), prefetch=2).args)[-1] == 2
    with pytest.raises(GraphError, match="same blocks, dtype"):
        first.op("w", "x", "y", following=("v", StreamingGemv(64, 64, blocks=8)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "bfloat"}, "weights='bfloat'.*did you mean 'bfloat16'"),
        ({"activations": "int8"}, "activations='int8'"),
        ({"batch": 9}, "batch=9; it must be a whole number from 1 to 8"),
        ({"rows": 0}, "rows=0"),
        ({"columns": 20}, "columns=20; copies take 16 bytes, so that it must be a multiple of 8"),
        ({"rows": 2**30, "columns": 65536, "batch": 8, "blocks": 1}, "give more blocks"),
    ],
)
def test_mistakes_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        StreamingGemv(**{"rows": 64, "columns": 64, **given})  # type: ignore[arg-type]
