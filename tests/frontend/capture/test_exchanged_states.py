"""Written tensors that take old values of each other or of themselves: the values are computed before the write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from frontend.fused import check
from torch import Tensor
from torch.fx import Graph

from superkernel.frontend.capture.exchanged_states import keep_exchanged_values

aten = torch.ops.aten


def exchange(dtype: torch.dtype) -> Graph:
    """As AOTAutograd writes it: both inputs are written at the end."""
    graph = Graph()
    first, second = graph.placeholder("first"), graph.placeholder("second")
    old = graph.call_function(aten.clone.default, (first,))
    new = graph.call_function(aten.copy.default, (first, second))
    graph.call_function(aten.copy_.default, (first, new))
    graph.call_function(aten.copy_.default, (second, old))
    graph.output(())
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(4, dtype=dtype)
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_an_old_value_is_computed_before_the_first_write(dtype: torch.dtype) -> None:
    graph = exchange(dtype)
    keep_exchanged_values(graph)
    graph.lint()
    writes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    order = list(graph.nodes)
    computed = writes[1].args[1]
    operation = aten.neg.default if dtype.is_floating_point or dtype.is_complex else aten.bitwise_not.default
    assert computed.target is operation and computed.args[0].target is operation
    assert order.index(computed) < order.index(writes[0])
    values = torch.tensor([0.0, -0.0, 2.5, -1.0]).to(dtype)
    assert torch.equal(operation(operation(values)), values), "the bits stay"


def test_values_that_are_not_exchanged_stay_as_they_are() -> None:
    graph = Graph()
    first, second = graph.placeholder("first"), graph.placeholder("second")
    graph.call_function(aten.copy_.default, (first, graph.call_function(aten.clone.default, (second,))))
    graph.call_function(aten.copy_.default, (second, graph.call_function(aten.add.Tensor, (first, 1))))
    before = [(node.target, node.args) for node in graph.nodes]
    keep_exchanged_values(graph)
    assert [(node.target, node.args) for node in graph.nodes] == before


def rows_move(x: Tensor) -> None:
    x[1:] = x[:-1].clone()


def rows_move_by_index(x: Tensor) -> None:
    x[torch.arange(1, len(x))] = x[:-1].clone()


def rows_move_twice(x: Tensor) -> Tensor:
    inner = x @ x
    inner[torch.arange(1, len(x))] = inner[:-1].clone()
    return inner @ x


def columns_become_rows(x: Tensor) -> None:
    x.view(-1).copy_(x.t().reshape(-1))


def a_view_of_what_is_computed(x: Tensor) -> None:
    x.view(-1).copy_((x + 1).t().reshape(-1))


def half_turned(x: Tensor) -> None:
    x[:20] = x.flip(0)[10:30]


def rows_move_after_some_are_written(x: Tensor) -> None:
    x[torch.tensor([2, 4])] = 0.5
    x[1:] = x[:-1].clone()


def half_turned_after_some_are_written(x: Tensor) -> None:
    x[torch.tensor([2, 4])] = 0.5
    x.copy_(x.flip(0))


def entries_that_it_names(x: Tensor) -> None:
    x[(x[:, :1].long() + 3).remainder(len(x)).expand(-1, 2)] = 7.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        rows_move,
        rows_move_by_index,
        rows_move_twice,
        columns_become_rows,
        a_view_of_what_is_computed,
        half_turned,
        rows_move_after_some_are_written,
        half_turned_after_some_are_written,
        entries_that_it_names,
    ],
)
def test_a_tensor_may_take_old_values_of_itself(model: Callable[[Tensor], object]) -> None:
    with torch.no_grad():
        check(model, torch.randperm(1600).remainder(40).float().view(40, 40))


@torch.library.custom_op("exchanged::take_previous", mutates_args=("x",))
def take_previous(x: Tensor, source: Tensor) -> None:
    for row in range(1, len(x)):
        x[row] = source[row - 1]


@pytest.mark.parametrize("copied", [lambda x: x.clone(), lambda x: x.t().contiguous(), lambda x: x[:].clone()])
def test_a_custom_operator_reads_a_copy_of_what_it_writes(copied: Callable[[Tensor], Tensor]) -> None:
    def model(x: Tensor) -> Tensor:
        take_previous(x, copied(x))
        return x * 2

    check(model, torch.arange(16.0).view(4, 4))


def test_a_part_that_is_replaced_in_place_stays_so() -> None:
    """As a cache is updated through a view of it."""
    graph = Graph()
    cache, rows = graph.placeholder("cache"), graph.placeholder("rows")
    cache.meta["val"], rows.meta["val"] = torch.zeros(4, 3), torch.zeros(2, 3)
    for target, arguments, shape in (
        (aten.view.default, (cache, [12]), (12,)),
        (aten.view.default, (rows, [6]), (6,)),
    ):
        graph.call_function(target, arguments).meta["val"] = torch.zeros(shape)
    flat, values = list(graph.nodes)[2:]
    replaced = graph.call_function(aten.slice_scatter.default, (flat, values, 0, 3, 9))
    replaced.meta["val"] = torch.zeros(12)
    whole = graph.call_function(aten.view.default, (replaced, [4, 3]))
    whole.meta["val"] = torch.zeros(4, 3)
    graph.call_function(aten.copy_.default, (cache, whole))
    before = [(node.target, node.args) for node in graph.nodes]
    keep_exchanged_values(graph)
    assert [(node.target, node.args) for node in graph.nodes] == before


def test_a_sum_that_is_written_to_a_part_stays_as_it_is() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    part = graph.call_function(aten.slice.Tensor, (x, 0, 1, 4))
    new = graph.call_function(aten.copy.default, (part, graph.call_function(aten.add.Tensor, (part, 1))))
    whole = graph.call_function(aten.slice_scatter.default, (x, new, 0, 1, 4))
    graph.call_function(aten.copy_.default, (x, whole))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(4, 3) if node in (x, whole) else torch.zeros(3, 3)
    before = [(node.target, node.args) for node in graph.nodes]
    keep_exchanged_values(graph)
    assert [(node.target, node.args) for node in graph.nodes] == before
