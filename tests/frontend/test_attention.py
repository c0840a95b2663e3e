"""torch.nn.functional.scaled_dot_product_attention in a compiled model is part of one super kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.fused import Run, check
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

pytestmark = pytest.mark.slow

OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def check_whole(model: Callable[..., Any], *inputs: Any, **options: Any) -> Run:
    """Everything is in one segment, in which there is attention."""
    with torch.no_grad():
        run = check(model, *inputs, **options)
    (scope,) = run.report.scopes
    assert len(scope.segments) == 1 and not scope.unfusible, (scope.segments, scope.unfusible)
    assert any(op.name.startswith("_scaled_dot_product") for op in scope.segments[0].ops)
    return run


class Block(nn.Module):
    """Self-attention with a projection before and after it."""

    def __init__(self, width: int, heads: int, kv_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.size, self.causal = width // heads, causal
        self.query = nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, kv_heads * self.size) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batches, length, width = x.shape

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(batches, length, -1, self.size).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        gqa = query.shape[1] != key.shape[1]
        y = scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=gqa)
        return x + self.out(y.transpose(1, 2).reshape(batches, length, width))


@pytest.mark.parametrize(("kv_heads", "causal"), [pytest.param(4, False, marks=pytest.mark.conformance), (2, True)])
def test_a_block_of_self_attention_is_one_segment(kv_heads: int, causal: bool) -> None:
    torch.manual_seed(0)
    check_whole(Block(96, 4, kv_heads, causal=causal), torch.randn(2, 37, 96))


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.conformance)])
def test_element_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def model(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query * 0.5, key, value, is_causal=True)

    inputs = [torch.randn(1, 3, 70, 40).to(dtype) for _ in range(3)]
    check_whole(model, *inputs, tolerance=2e-2)


@pytest.mark.parametrize("shape", [(2, 1, 1, 30), pytest.param((9, 30), marks=pytest.mark.conformance)])
def test_masks_of_numbers_and_of_truth_values(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 9, 16), torch.randn(2, 4, 30, 16), torch.randn(2, 4, 30, 16)

    def model(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3).sigmoid()

    check_whole(model, query, key, value, torch.randn(shape))
    takes_part = torch.rand(shape) < 0.6
    takes_part[..., 0] = True
    check_whole(model, query, key, value, takes_part)


@pytest.mark.parametrize(("length", "group"), [pytest.param(32, 1, marks=pytest.mark.conformance), (2300, 4)])
def test_decoding_with_a_cache_that_is_written_in_place(length: int, group: int) -> None:
    torch.manual_seed(0)
    heads, size = 2, 64

    def step(
        x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, weight: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = (x @ weight).split([heads * group * size, heads * size, heads * size], -1)
        keys.index_copy_(2, position, key.view(1, 1, heads, size).transpose(1, 2))
        values.index_copy_(2, position, value.view(1, 1, heads, size).transpose(1, 2))
        seen = (torch.arange(length) <= position).view(1, 1, 1, length)
        rows = query.view(1, 1, heads * group, size).transpose(1, 2)
        out = scaled_dot_product_attention(rows, keys, values, attn_mask=seen, enable_gqa=group > 1)
        return out.transpose(1, 2).reshape(1, -1).tanh()

    weight = torch.randn(48, (group + 2) * heads * size) / 7
    keys, values = torch.zeros(1, heads, length, size), torch.zeros(1, heads, length, size)
    filled = length * 2 // 3
    keys[:, :, :filled], values[:, :, :filled] = torch.randn(2, 1, heads, filled, size)
    run = check_whole(step, torch.randn(1, 48), keys, values, weight, torch.tensor([filled]))
    merged = any("merge" in op.kernel for op in run.report.scopes[0].segments[0].ops)
    assert merged == (length > 1000)


def test_the_sums_of_exponentials_are_right_where_they_are_used() -> None:
    torch.manual_seed(0)

    def model(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, logsumexp = OPERATOR(query, key, value)
        return out, logsumexp * 2

    query, key, value = (torch.randn(2, 3, n, 24) for n in (5, 11, 11))
    run = check_whole(model, query, key, value)
    wanted = 2 * torch.logsumexp(query @ key.mT / math.sqrt(24), -1)
    torch.testing.assert_close(run.outputs[1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.conformance
def test_float64_is_left_to_torch_with_the_reason() -> None:
    torch.manual_seed(0)

    def model(query: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query * 2, query, query) + 1

    with torch.no_grad():
        run = check(model, torch.randn(1, 2, 6, 16, dtype=torch.float64))
    (scope,) = run.report.scopes
    (left,) = scope.unfusible
    assert "attention of float64" in left.reason
