"""Written inputs that take the old values of each other: the values are computed before anything is written."""

from __future__ import annotations

import pytest
import torch
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_an_old_value_is_computed_before_the_first_write(dtype: torch.dtype) -> None:
    graph = exchange(dtype)
    keep_exchanged_values(graph)
    graph.lint()
    writes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    order = list(graph.nodes)
    computed = writes[1].args[1]
    operation = aten.neg.default if dtype.is_floating_point else aten.bitwise_not.default
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
