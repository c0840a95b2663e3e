"""The streaming GEMV: its PTX is that of its source, its shapes fit the machine, its mistakes are named."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import superkernel as sk
from superkernel.errors import GraphError
from superkernel.targets.cuda.facts import complete
from superkernel.targets.cuda.kernels.streaming_gemv import WEIGHT_BYTES, StreamingGemv

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def write_ptx() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_ptx", ROOT / "tools" / "write_ptx.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ptx_was_written_from_the_source(write_ptx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_ptx.main(["--check"]) == 0
    assert len(write_ptx.outputs()) == 16
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
    assert gemv.slots >= 2 and gemv.shared <= 217 << 10
    assert gemv.steps or (gemv.panel % 256 == 0 and gemv.panel >= min(columns, 2048))
    assert gemv.kernel().shared == gemv.shared and gemv.kernel().threads == (288 if gemv.steps else 256, 1, 1)


def test_one_vector_is_sliced_among_warps() -> None:
    found = {}
    for columns in (1024, 2048, 4096, 8192, 3072, 264, 20480):
        gemv = StreamingGemv(4096, columns)
        found[columns] = gemv.steps, gemv.steps and gemv.rows_of_group, gemv.slots
    assert found == {
        1024: (1, 4, 8), 2048: (1, 4, 8), 4096: (2, 4, 4), 8192: (4, 2, 4), 3072: (2, 4, 4), 264: (0, 0, 4),
        20480: (0, 0, 4),
    }  # fmt: skip
    assert StreamingGemv(4096, 4096, batch=2).steps == 0


def test_an_op_has_typed_buffers_and_the_shape_as_scalars() -> None:
    staged = StreamingGemv(4096, 2048, batch=3).op("w", "x", "y")
    assert staged.kernel.name == "streaming_gemv_bfloat16_4" and staged.kernel.grid == (132, 1, 1)
    params = [str(param) for param in staged.kernel.params]
    assert params[:3] == ["in:w:bfloat16[4096,2048]", "in:x:float32[3,2048]", "out:y:float32[3,4096]"]
    assert list(staged.args) == ["w", "x", "y", 4096, 2048, 3, 2048, 4, 0]
    pooled = StreamingGemv(4096, 4096, activations="bfloat16").op("w", "x", "y", tickets="t")
    assert pooled.kernel.name == "streaming_gemv_bfloat16_tickets" and not pooled.kernel.pure
    assert list(pooled.args) == ["w", "x", "y", "t", 4096, 4096, 2, 4, 2, 32, 1]
    assert str(pooled.kernel.params[3]) == "inout:tickets:uint32[1]"


def test_without_tickets_every_block_has_its_rows() -> None:
    op = StreamingGemv(4096, 4096).op("w", "x", "y")
    assert op.kernel.name == "streaming_gemv_bfloat16_fixed" and op.kernel.pure
    assert list(op.args) == ["w", "x", "y", 4096, 4096, 2, 4, 8, 32, 0]  # 8 x 132 groups of 4 rows
    assert len(StreamingGemv(64, 64, batch=2).op("w", "x", "y", tickets="t").kernel.params) == 9  # staged: no tickets


@pytest.mark.parametrize(
    ("weights", "kind"),
    [(weights, kind) for weights in ("bfloat16", "float16") for kind in ("fixed", "tickets", "2", "8")]
    + [("int8", kind) for kind in ("1", "2", "8")],
)
def test_the_wait_comes_after_the_first_weights(weights: str, kind: str) -> None:
    gemv = StreamingGemv(256, 2048, weights=weights, batch=int(kind) if kind.isdigit() else 1)
    kernel = complete(gemv.kernel(kind == "tickets"))
    assert kernel.name.endswith(kind) and kernel.waits_inside and kernel.read_before_wait == ("w",)


def test_int8_weights_have_a_scale_and_others_none() -> None:
    quantized = StreamingGemv(64, 1024, weights="int8", activations="bfloat16")
    op = quantized.op("w", "x", "y", scale=sk.Place("scales", 256))
    assert list(op.args)[:4] == ["w", sk.Place("scales", 256), "x", "y"]
    assert str(op.kernel.params[1]) == "in:scale:float32[64]"
    with pytest.raises(GraphError, match="int8 weights need scale"):
        quantized.op("w", "x", "y")
    with pytest.raises(GraphError, match="bfloat16 weights have no scale"):
        StreamingGemv(64, 64).op("w", "x", "y", scale="s")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "bfloat"}, "weights='bfloat'.*did you mean 'bfloat16'"),
        ({"activations": "int8"}, "activations='int8'"),
        ({"batch": 9}, "batch=9; it must be a whole number from 1 to 8"),
        ({"rows": 0}, "rows=0"),
        ({"columns": 20}, "columns=20; copies take 16 bytes, so that it must be a multiple of 8"),
        ({"rows": 2**30, "columns": 65536, "batch": 8, "blocks": 1}, "Give more blocks"),
        ({"ring_bytes": 4096}, "a ring of 4096 bytes: there is no shared memory"),
    ],
)
def test_mistakes_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        StreamingGemv(**{"rows": 64, "columns": 64, **given})  # type: ignore[arg-type]
