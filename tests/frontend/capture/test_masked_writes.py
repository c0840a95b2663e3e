"""x[mask] = value after another write of x: the values stay where eager torch has them."""

from __future__ import annotations

import pytest
import torch
from frontend.fused import check
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from superkernel.frontend.capture.masked_writes import write_masked_by_where

aten = torch.ops.aten


def written_after_a_scatter(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    x.scatter_(1, at[:, None], values[:, None])
    x[x < 0] = 0
    return x * 2


def of_a_sum(x: Tensor, at: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.zeros_like(x).index_add(0, at, x + values[:, None])
    sums[values > 0] = -1
    return sums, sums.argmax(1)


@pytest.mark.parametrize("model", [written_after_a_scatter, of_a_sum])
def test_a_masked_write_follows_the_writes_before_it(model: object) -> None:
    torch.manual_seed(0)
    given = torch.randn(4, 6), torch.tensor([1, 0, 3, 1]), torch.tensor([1.0, -1.0, -2.0, 3.0])
    check(model, *given)


@pytest.mark.parametrize(
    ("mask", "value", "adds"),
    [
        (torch.tensor([[True, False, True], [False, False, True]]), torch.tensor(5.0), False),
        (torch.tensor([False, True]), torch.tensor([5.0]), False),
        (torch.tensor(True), torch.tensor(-0.0), False),
        (torch.tensor([True, False]), torch.tensor(5.0), True),
    ],
)
def test_where_gives_what_index_put_gives(mask: Tensor, value: Tensor, adds: bool) -> None:
    x = torch.tensor([[1.0, -0.0, 2.0], [3.0, 4.0, float("nan")]])
    traced = make_fx(lambda x, m, v: aten.index_put(x, [m], v, adds), tracing_mode="fake")(x, mask, value)
    write_masked_by_where(traced.graph)
    traced.graph.lint()
    traced.recompile()
    assert not traced.graph.find_nodes(op="call_function", target=aten.index_put.default)
    expected = aten.index_put(x, [mask], value, adds)
    assert torch.equal(traced(x, mask, value).view(torch.int32), expected.view(torch.int32)), "the same bits"


@pytest.mark.parametrize(
    ("index", "value"),
    [(torch.tensor([1, 0]), torch.tensor(5.0)), (torch.tensor([True, True]), torch.tensor([[1.0, 2.0, 3.0]]))],
)
def test_other_writes_stay_as_they_are(index: Tensor, value: Tensor) -> None:
    x = torch.zeros(2, 3)
    traced = make_fx(lambda x, i, v: aten.index_put(x, [i], v), tracing_mode="fake")(x, index, value)
    write_masked_by_where(traced.graph)
    assert traced.graph.find_nodes(op="call_function", target=aten.index_put.default)
