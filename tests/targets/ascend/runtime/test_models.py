"""A model whose operators have kernels, launched through CANN's run time: from torch.compile to an NPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from targets.ascend.runtime.emulated_npu import EmulatedNpu

import superkernel as sk
from superkernel.frontend.registry import _registered

KERNELS = """#include <superkernel/host_kernel.h>
template <class Compute>
static void each(uint64_t slots, int inputs, Compute compute) {  // 2 blocks of 32 elements
    float values[2][32] = {};
    const int64_t at = sk::block_idx() * 32;
    for (int i = 0; i < inputs; ++i) (sk::buffer<float>(slots, i) + at).copy_in(values[i], 32);
    for (int k = 0; k < 32; ++k) values[0][k] = compute(values[0][k], values[1][k]);
    (sk::buffer<float>(slots, inputs) + at).copy_out(values[0], 32);
}
extern "C" void negate(uint64_t slots) { each(slots, 1, [](float x, float) { return -x; }); }
extern "C" void add(uint64_t slots) { each(slots, 2, [](float x, float y) { return x + y; }); }
"""
X, Y = torch.arange(64.0), torch.full((64,), 0.5)


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[None]:
    """Kernels of one's own for two operators."""
    source = tmp_path / "kernels.cpp"
    source.write_text(KERNELS)

    def kernel(name: str, params: list[str]) -> sk.SubKernel:
        return sk.SubKernel.from_source(source, name, block_dim=2, params=params, core="vector")

    @sk.register_kernel("aten::neg", target="ascend")
    def negate(self: Any, *, out: Any) -> sk.Op:
        return sk.Op(kernel("negate", ["in:x", "out:y"]), [self, out])

    @sk.register_kernel("aten::add.Tensor", target="ascend")
    def add(self: Any, other: Any, alpha: Any, *, out: Any) -> sk.Op:
        return sk.Op(kernel("add", ["in:x1", "in:x2", "out:y"]), [self, other, out])

    torch._dynamo.reset()
    yield
    for operator in ("aten::neg", "aten::add.Tensor"):
        del _registered[operator, "ascend"]


def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with sk.super_kernel("sk1"):
        return (-x) + y


def test_a_model_is_launched_on_the_npu(npu: EmulatedNpu, kernels: None) -> None:
    options = {"target": "ascend"}
    (segment,) = sk.explain(model, X, Y, options=options).scopes[0].segments
    assert segment.launches == "fused"
    before = len(npu.launches)
    compiled = torch.compile(model, backend="superkernel", fullgraph=True, options=options)
    for _ in range(2):
        assert torch.equal(compiled(X, Y), Y - X)
    assert len(npu.launches) == before + 2


def test_the_same_model_is_emulated_without_an_npu(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    compiled = torch.compile(model, backend="superkernel", fullgraph=True, options={"target": "ascend"})
    assert torch.equal(compiled(X, Y), Y - X)


def test_an_operator_without_a_kernel_is_emulated_although_there_is_an_npu(npu: EmulatedNpu) -> None:
    torch._dynamo.reset()
    (segment,) = sk.explain(model, X, Y, options={"target": "ascend"}).scopes[0].segments
    assert segment.launches == "emulated" and not npu.launches
