"""Models on the emulated chip: the bits of torch and of the cpu target, in another order of the cores in every call."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import superkernel as sk
from superkernel import ops
from superkernel.errors import LaunchError
from superkernel.frontend.explain import import_file

pytestmark = pytest.mark.slow

ASCEND = {"target": "ascend"}


def on_target(model: Any, options: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="superkernel", fullgraph=True, dynamic=False, options=options)


def bits(tensors: Any) -> list[Tensor]:
    return [tensor.contiguous().view(torch.uint8) for tensor in tensors]


def assert_same_bits(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    assert all(torch.equal(a, b) for a, b in zip(bits(found), bits(expected), strict=True))


def experts(x: Tensor, gate: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Cube, vector and mixed ops; a view that must be moved; results with other strides; a tensor used twice."""
    with sk.super_kernel("sk1"):
        weights, chosen, _ = ops.moe_gating_top_k(x @ gate, 2)
        hidden, row_scale = ops.dequant_swiglu_quant(x + x, quant_mode=1)
        product = ops.quant_matmul(hidden, weight.t(), scale, pertoken_scale=row_scale, output_dtype=torch.bfloat16)
        return weights + weights.flip(0), chosen.t().contiguous(), product.float().t() * 0.5


def expert_inputs() -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(5)
    weight = torch.randint(-20, 20, (48, 32), generator=random, dtype=torch.int8)
    return (
        torch.randn(24, 64, generator=random),
        torch.randn(64, 8, generator=random),
        weight,
        torch.rand(48, generator=random),
    )


def lookup(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """An input that is changed in place, and an op that may fail; every kernel is compiled for some seconds."""
    with sk.super_kernel("lookup"):
        x.add_(y)
        return x[index]


def test_a_model_has_the_bits_of_torch_and_a_kernel_that_fails_names_its_op() -> None:
    x, y = (torch.randn(16, 16, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    index = torch.tensor([3, 5, 3])
    emulated = on_target(lookup, ASCEND)
    for _ in range(2):  # in another order of the cores
        changed = x.clone()
        assert_same_bits((emulated(changed, y, index), changed), ((x + y)[index], x + y))
    with pytest.raises(LaunchError, match=r"super_kernel_scope 'lookup'.*Index(.|\n)*out of bounds"):
        emulated(x.clone(), y, torch.tensor([3, 99, 3]))


@pytest.mark.conformance
def test_a_larger_model_has_the_bits_of_the_cpu_target_in_every_order_of_cores() -> None:
    given = expert_inputs()
    with torch.no_grad():
        expected = on_target(experts, {"profit_gate": 0})(*given)
        emulated = on_target(experts, ASCEND)
        for _ in range(4):
            assert_same_bits(emulated(*given), expected)
        assert_same_bits(on_target(experts, ASCEND | {"fuse": "off"})(*given), expected)


def test_an_operator_that_the_host_cannot_compute_is_listed_and_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    swiglu = torch.library.custom_op(
        "npu::npu_swiglu", _swiglu, mutates_args=(), schema="(Tensor x, int dim) -> Tensor"
    )
    swiglu.register_fake(lambda x, dim: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)))

    def model(x: Tensor) -> Tensor:
        with sk.super_kernel("glu"):
            return torch.ops.npu.npu_swiglu(x, -1)

    x = torch.linspace(-3, 3, 64).reshape(4, 16)
    (segment,) = sk.explain(model, x, options=ASCEND).scopes[0].segments
    assert [op.name for op in segment.ops] == ["SwiGlu"]
    with caplog.at_level(logging.WARNING, "superkernel"):
        assert torch.equal(on_target(model, ASCEND)(x), _swiglu(x, -1))
    assert (
        "super_kernel_scope 'glu': runs unfused through Inductor: npu.npu_swiglu.default: the host has no kernel"
        in (caplog.text)
    )


def _swiglu(x: Tensor, dim: int) -> Tensor:
    gate, value = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * value


@pytest.mark.conformance
def test_the_sample_of_six_scopes_has_the_bits_of_the_cpu_target() -> None:
    place = Path(__file__).resolve().parents[2] / "examples" / "03_moe_compare.py"
    sample: Any = import_file(place)
    model, given = sample.Model().eval(), sample.inputs()
    with torch.no_grad():
        expected = on_target(model, {"profit_gate": 0})(*given)
        emulated = on_target(model, ASCEND)
        for _ in range(20):
            assert_same_bits(emulated(*given), expected)
