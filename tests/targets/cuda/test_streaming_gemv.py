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
from superkernel.targets.cuda.kernels.streaming_gemv import SLICES, WEIGHT_BYTES, StreamingGemv

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
    assert len(write_ptx.outputs()) == 23
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
    assert gemv.slices or (gemv.panel % 256 == 0 and gemv.panel >= min(columns, 2048))
    assert gemv.kernel().shared == gemv.shared and gemv.kernel().threads == (288 if gemv.slices else 256, 1, 1)


def test_one_vector_is_sliced_among_warps() -> None:
    found = {}
    for columns in (512, 2048, 4096, 8192, 3072, 264, 20480):
        gemv = StreamingGemv(4096, columns)
        found[columns] = gemv.slices and (gemv.slices.parts, gemv.slices.steps, gemv.slices.rows), gemv.slots
    assert found == {
        512: ((4, 1, 8), 10), 2048: ((4, 2, 4), 10), 4096: ((4, 4, 2), 10), 8192: ((8, 4, 1), 10),
        3072: ((4, 4, 2), 10), 264: (None, 3), 20480: (None, 3),
    }  # fmt: skip
    assert StreamingGemv(4096, 4096, batch=2).slices is None
    for slices in (slices for of_weights in SLICES.values() for slices in of_weights):
        assert slices.chunk_bytes == 16 << 10
    assert StreamingGemv(4096, 4096, ring_bytes=80 << 10).slots == 4  # as many for each set of warps


def test_an_op_has_typed_buffers_and_the_shape_as_scalars() -> None:
    staged = StreamingGemv(4096, 2048, batch=3).op("w", "x", "y")
    assert staged.kernel.name == "streaming_gemv_bfloat16_4" and staged.kernel.grid == (132, 1, 1)
    params = [str(param) for param in staged.kernel.params]
    assert params[:3] == ["in:w:bfloat16[4096,2048]", "in:x:float32[3,2048]", "out:y:float32[3,4096]"]
    assert list(staged.args) == ["w", "x", "y", 4096, 2048, 3, 2048, 3, 0]
    sliced = StreamingGemv(4096, 4096, activations="bfloat16").op("w", "x", "y")
    assert sliced.kernel.name == "streaming_gemv_bfloat16_columns4096" and sliced.kernel.pure
    assert list(sliced.args) == ["w", "x", "y", 4096, 4096, 0, 10, 8, 3, 3, 64, 0, 1]  # 10 chunks, 8 early, 3 at a time


@pytest.mark.parametrize(
    ("weights", "columns", "batch"),
    [(weights, columns, 1) for weights in WEIGHT_BYTES for columns in (1024, 2048, 4096, 8192, 16384)]
    + [(weights, 2048, batch) for weights in WEIGHT_BYTES for batch in (2, 8)],
)
def test_the_wait_comes_after_the_first_weights(weights: str, columns: int, batch: int) -> None:
    kernel = complete(StreamingGemv(256, columns, weights=weights, batch=batch).kernel())
    assert kernel.waits_inside and kernel.read_before_wait == ("w",)


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
    ("param", "offset", "activations", "multiple"),
    [("w", 8, "float32", 16), ("w", 2, "bfloat16", 16), ("x", 4, "float32", 16), ("x", 4, "bfloat16", 8)],
)
def test_a_place_that_copies_and_loads_cannot_begin_at_is_refused(
    param: str, offset: int, activations: str, multiple: int
) -> None:
    """On a GPU a misaligned access loses the context."""
    gemv = StreamingGemv(64, 64, activations=activations)
    with pytest.raises(GraphError, match=f"streaming GEMV: {param} is .*the offset must be a multiple of {multiple}"):
        gemv.op(**{"w": "w", "x": "x", "y": "y"} | {param: sk.Place("all", offset)})
    gemv.op(**{"w": "w", "x": "x", "y": "y"} | {param: sk.Place("all", multiple)})
    gemv.op("w", "x", sk.Place("all", 4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "bfloat"}, "weights='bfloat'.*did you mean 'bfloat16'"),
        ({"activations": "int8"}, "activations='int8'"),
        ({"batch": 9}, "batch=9; it must be a whole number from 1 to 8"),
        ({"rows": 0}, "rows=0"),
        ({"columns": 20}, "columns=20; copies take 16 bytes, so that it must be a multiple of 8"),
        ({"rows": 2**30, "columns": 65536, "batch": 8, "blocks": 1}, "Give more blocks"),
        ({"idle_blocks": 132}, "idle_blocks=132; it must be a whole number from 0 to 131"),
        ({"idle_blocks": 1, "batch": 2}, "0 where x is staged"),
        ({"ring_bytes": 4096}, "a ring of 4096 bytes: there is no shared memory"),
    ],
)
def test_mistakes_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        StreamingGemv(**{"rows": 64, "columns": 64, **given})  # type: ignore[arg-type]
