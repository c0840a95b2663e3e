"""Key and value heads that queries share are not repeated in memory; whatever only looks like that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.fused import check
from measured import sample
from torch import Tensor

pytestmark = pytest.mark.slow


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query * 2, repeated(key, 2), repeated(value, 2))


def cached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key.index_copy_(2, torch.tensor([3]), query[:, :2])
    value.index_copy_(2, torch.tensor([3]), query[:, 2:])
    return grouped(query, key, value)


def used_besides(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return grouped(query, key, value), repeated(key, 2).relu()


def only_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, repeated(key, 2), torch.cat((value, value + 1), 1))


def interleaved(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The heads as a whole several times: another order."""
    return F.scaled_dot_product_attention(query, key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1))


def largest_buffer(model: Callable[..., Any]) -> int:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 512, 16), torch.randn(1, 2, 512, 16)
    with torch.no_grad():
        (scope,) = check(model, query, key, value).report.scopes
    assert not scope.unfusible
    (segment,) = scope.segments
    return segment.buffer_bytes


@pytest.mark.parametrize("model", sample([cached, grouped]))
def test_shared_heads_are_read_where_they_are(model: Callable[..., Any]) -> None:
    assert largest_buffer(model) < 3 * 4 * 2 * 512 * 16  # key and value, and little else


@pytest.mark.parametrize("model", sample([interleaved, used_besides, only_keys]))
def test_other_graphs_give_what_they_gave(model: Callable[..., Any]) -> None:
    assert largest_buffer(model) > 3 * 4 * 2 * 512 * 16
