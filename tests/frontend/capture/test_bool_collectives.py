"""Collectives of bool tensors travel as bytes, and come back as bools."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph, Node  # noqa: E402

from superkernel.frontend.capture.bool_collectives import keep_bools  # noqa: E402

c10d = torch.ops._c10d_functional


def gathered(graph: Graph, waits: int) -> Node:
    """An all_gather of bools in a group of one rank, awaited as often."""
    value = torch.ones(2, dtype=torch.bool)
    node = graph.placeholder("x")
    node.meta["val"] = value
    node = graph.call_function(c10d.all_gather_into_tensor.default, (node, 1, "0"))
    node.meta["val"] = value
    for _ in range(waits):
        node = graph.call_function(c10d.wait_tensor.default, (node,))
        node.meta["val"] = value
    return node


@pytest.mark.parametrize("waits", [1, 2, 3])
def test_a_gather_of_bools_is_one_of_bytes_that_is_awaited_once(waits: int) -> None:
    graph = Graph()
    output = graph.output(gathered(graph, waits))
    keep_bools(graph)
    graph.lint()
    (collective,) = graph.find_nodes(op="call_function", target=c10d.all_gather_into_tensor.default)
    (wait,) = graph.find_nodes(op="call_function", target=c10d.wait_tensor.default)
    assert collective.meta["val"].dtype is wait.meta["val"].dtype is torch.uint8
    assert output.args[0].meta["val"].dtype is torch.bool and output.args[0].args == (wait, torch.bool)
