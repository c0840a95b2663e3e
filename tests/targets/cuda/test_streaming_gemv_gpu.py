"""The streaming GEMV on a GPU: float64 says the same, and a super kernel gives the bits of single launches."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.targets.cuda.kernels.streaming_gemv import StreamingGemv  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-3, "float16": 1e-3}
SHAPES = [(4096, 4096), (144, 272), (1008, 2048), (64, 20480)]


def matrix(gemv: StreamingGemv) -> tuple[Any, Any, Any]:
    """Weights, their scale, and the matrix that both stand for in float64."""
    shape = gemv.rows, gemv.columns
    if gemv.weights == "int8":
        w = torch.randint(-127, 128, shape, device="cuda", dtype=torch.int8)
        scale = torch.rand(gemv.rows, device="cuda") / math.sqrt(gemv.columns)
        return w, scale, w.double() * scale.double()[:, None]
    w = (torch.randn(shape, device="cuda") / math.sqrt(gemv.columns)).to(getattr(torch, gemv.weights))
    return w, None, w.double()


@pytest.mark.parametrize("weights", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_two_products_are_those_of_float64_and_of_single_launches(weights: str, batch: int) -> None:
    torch.manual_seed(0)
    for rows, columns in SHAPES:
        for activations in TOLERANCE:
            first = StreamingGemv(rows, columns, batch=batch, weights=weights, activations=activations)
            second = StreamingGemv(48, batch * rows, weights=weights, activations=activations)
            (w, w_scale, w_value), (v, v_scale, v_value) = matrix(first), matrix(second)
            x = torch.randn(batch, columns, device="cuda").to(getattr(torch, activations))
            buffers = {"w": w, "v": v, "x": x}
            buffers |= {} if w_scale is None else {"w_scale": w_scale, "v_scale": v_scale}
            names = [None, None] if w_scale is None else ["w_scale", "v_scale"]
            ops = [first.op("w", "x", "y", scale=names[0]), second.op("v", "y", "z", scale=names[1])]
            with sk.compile(ops, name="products", target="cuda", outputs=["y", "z"]) as k:
                fused, alone = k(buffers), k.unfused()(buffers)
                torch.cuda.synchronize()
            for name in ("y", "z"):
                assert torch.equal(fused[name], alone[name]), (rows, columns, activations)
            expected = x.double() @ w_value.T
            _close(fused["y"], expected, activations)
            _close(fused["z"], fused["y"].flatten().double() @ v_value.T, activations)


def _close(found: Any, expected: Any, activations: str) -> None:
    difference = (found.double().flatten() - expected.flatten()).abs().max()
    assert difference <= TOLERANCE[activations] * expected.abs().max()
