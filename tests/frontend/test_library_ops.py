"""Operators that Inductor leaves to a library are part of the one super kernel, and give what torch gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.fused import check, compiled
from measured import sample

from superkernel.errors import LaunchError

pytestmark = pytest.mark.slow

pytest.importorskip("transformers.integrations.moe")  # whose operator is among them


def fused_whole(model: Callable[..., Any], *inputs: Any, tolerance: float = 1e-5) -> None:
    """One segment, in which nothing is left to torch."""
    with torch.no_grad():
        run = check(model, *inputs, tolerance=tolerance)
    (scope,) = run.report.scopes
    assert len(scope.segments) == 1 and not scope.unfusible, [str(reason) for reason in scope.unfusible]


X = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
WHOLE = torch.randint(0, 6, (6, 40), generator=torch.Generator().manual_seed(2))


def sorting(x: torch.Tensor, i: torch.Tensor) -> Any:
    part = (x + 1)[2:5, 3:33]
    unsorted = torch.topk(x, 8, sorted=False)[0].sort(-1).values
    smallest, all_of_them = torch.topk(x * 2, 2, dim=0, largest=False), torch.topk(x.view(2, 120), 100)
    stable = torch.sort(i + 1, stable=True, dim=0), torch.sort(x.log(), stable=True)
    ordered = torch.sort(x.sin(), dim=1, descending=True), x.gather(1, x.argsort(1)) * 2
    return torch.topk(x.relu() + x, 3), torch.topk(part, 4), smallest, all_of_them, unsorted, stable, ordered


def scans(x: torch.Tensor) -> Any:
    whole = (x * 10).cumsum(0, dtype=torch.int32), (x > 0).cumsum(1)
    extremes = (x * 2).cummax(0), x.cummin(1)
    return x.exp().cumsum(1) + 1, x.cumsum(0), whole, extremes, x.cumprod(1) * 2


def scattering(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> Any:
    added = (x + 1).scatter_add(0, i, y) * 2, x.index_add(0, i[:, 0], y)
    reduced = x.scatter_reduce(0, i, y, "mean"), x.scatter_reduce(1, i, y, "prod", include_self=False)
    put = i.index_put((i[0],), i[:1] + 1, accumulate=True), (x > 0).index_put((i[0],), y[:1] > 0, accumulate=True)
    return added, reduced, x.scatter_reduce(0, i, y, "amax"), put


def in_place(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.scatter_add_(0, i, y)
    return x.relu_().cumsum(0)


def counting(x: torch.Tensor, steps: torch.Tensor, i: torch.Tensor) -> Any:
    found = torch.searchsorted(steps, x * 3), torch.bucketize(x, steps, out_int32=True)
    by_rows = torch.searchsorted(x.sort(-1).values, x[:, :5].clone(), right=True)
    counted = torch.histc(x * 2, 10, -2, 2), torch.histc(x, 7), F.one_hot(i[0], 8).cumsum(0)
    return found, by_rows, counted, F.embedding(i, x) + 1


def convolutions(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    groups = F.conv2d(x, w[:, :2], stride=2, dilation=2, groups=2) + 1
    signal = F.conv1d(x[:, :, 0].sin(), w.sum(2), b, stride=2)
    patches = F.conv2d(x, w, b, stride=3).flatten(2).transpose(1, 2)
    per_channel = F.conv2d(x.cos(), w[:4, :1], padding=1, groups=4)
    volume = F.conv3d(x[None] * 2, w.view(4, 2, 4, 3, 3)[:, :, :2], padding=1)
    turned = F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, output_padding=1)
    pooled = F.max_pool2d(F.conv2d(x * 2, w, b, padding=1).relu(), 2)
    return pooled, groups, signal, patches, per_channel, volume, turned


MODELS: dict[str, tuple[Any, ...]] = {
    "sorting": (sorting, X, WHOLE),
    "scans": (scans, X),
    "scattering": (scattering, X, WHOLE, X * 2),
    "in place": (in_place, X, WHOLE, X * 2),
    "counting": (counting, X, torch.arange(-3.0, 3.0), WHOLE),
    "convolutions": (convolutions, torch.randn(2, 4, 12, 12), torch.randn(8, 4, 3, 3), torch.randn(8)),
    "bfloat16": (lambda x, i: (torch.topk(x, 4)[0], (x + 1).scatter_add(0, i, x), x.cumsum(1)), X.bfloat16(), WHOLE),
}


SELDOM = ("bfloat16", "in place", "sorting", "scans")  # in make conformance


@pytest.mark.parametrize("name", sample(sorted(MODELS, key=SELDOM.__contains__), len(MODELS) - len(SELDOM)))
def test_library_operators_are_part_of_the_super_kernel(name: str) -> None:
    model, *inputs = MODELS[name]
    fused_whole(model, *inputs, tolerance=5e-2 if name == "bfloat16" else 1e-4)


def experts(x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor, k: int = 2) -> torch.Tensor:
    """A mixture of experts as the models of transformers compute it."""
    number = up.shape[0]
    weights, chosen = torch.topk((x @ router).float().softmax(-1), k)
    flat, order = torch.sort(chosen.reshape(-1))
    counts = torch.histc(flat.float(), bins=number, min=0, max=number - 1)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    if x.dtype is torch.bfloat16:
        multiply = torch._grouped_mm
        hidden = F.silu(multiply(x[order // k], up, offs=ends))
        out = multiply(hidden, down, offs=ends)
    else:
        hidden = F.silu(torch.ops.transformers.grouped_mm_fallback(x[order // k], up, ends))
        out = torch.ops.transformers.grouped_mm_fallback(hidden, down, ends)
    out = out * weights.reshape(-1)[order, None].to(x.dtype)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0])
    return out[back].view(x.shape[0], k, x.shape[1]).sum(1)


@pytest.mark.parametrize(
    ("dtype", "tokens"),
    [
        (torch.bfloat16, 5),
        pytest.param(torch.float32, 70, marks=pytest.mark.conformance),
        pytest.param(torch.float32, 3, marks=pytest.mark.conformance),
        pytest.param(torch.float16, 1, marks=pytest.mark.conformance),
    ],
)
def test_a_mixture_of_experts_is_one_super_kernel(dtype: torch.dtype, tokens: int) -> None:
    x, router = torch.randn(tokens, 32).to(dtype), torch.randn(32, 8).to(dtype)
    up = (torch.randn(8, 48, 32) / 6).to(dtype).transpose(1, 2)
    down = (torch.randn(8, 32, 48) / 7).to(dtype).transpose(1, 2)
    fused_whole(experts, x, router, up, down, tolerance={torch.float32: 1e-5}.get(dtype, 3e-2))


@pytest.mark.conformance
def test_all_tokens_may_choose_the_same_experts() -> None:
    x, router = torch.randn(20, 32).abs(), torch.zeros(32, 8)
    router[:, 5], router[:, 2] = 1, 0.5
    fused_whole(experts, x, router, torch.randn(8, 32, 16) / 6, torch.randn(8, 16, 32) / 4, tolerance=1e-4)


def test_no_tokens() -> None:
    with torch.no_grad():
        found = compiled(experts)(
            torch.randn(0, 32), torch.randn(32, 8), torch.randn(8, 32, 16), torch.randn(8, 16, 32)
        )
    assert found.shape == (0, 32)


def test_what_has_no_kernel_is_left_to_torch_with_the_reason() -> None:
    x, w = torch.randn(1, 2, 5, 5, dtype=torch.float64), torch.randn(3, 2, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        run = check(lambda x, w: F.conv2d(x * 2, w) + 1, x, w)
    (scope,) = run.report.scopes
    assert [entry.op for entry in scope.unfusible] == ["aten::convolution"]
    assert "convolution of float64" in scope.unfusible[0].reason


def test_a_kernel_may_change_what_torch_has_returned() -> None:
    """Inductor lets an operator in place have the memory of a result that nothing else needs."""

    def model(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x).scatter_reduce(0, i, x, "sum")

    run = check(model, torch.rand(6, 6), torch.randint(0, 6, (6, 6)))
    (scope,) = run.report.scopes
    assert [entry.op for entry in scope.unfusible] == ["aten::_cdist_forward"]
    assert "scatter_reduce" in {op.name for segment in scope.segments for op in segment.ops}


def test_an_index_outside_is_an_error_and_not_a_wild_store() -> None:
    model = compiled(lambda x, i, v: x.scatter_add(0, i, v))
    index = torch.full((2, 4), 9)
    with torch.no_grad(), pytest.raises(LaunchError, match="scatter_reduce: an index is outside"):
        model(torch.zeros(4, 4), index, torch.ones(2, 4))


def test_a_histogram_without_a_finite_range_is_an_error_as_in_torch() -> None:
    x = torch.tensor([1.0, math.inf])
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histc(x, 4)
    with torch.no_grad(), pytest.raises(LaunchError, match="is not finite"):
        compiled(lambda x: torch.histc(x, 4))(x)
