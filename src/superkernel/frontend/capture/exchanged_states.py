"""frontend.capture.exchanged_states: an AOTAutograd graph in; the same graph, whose written inputs may exchange values.

AOTAutograd writes mutated inputs at the end of the graph, one after the other. Where a later one takes the old value of
an earlier one, as two buffers that change places do, the graph has a clone of it, and Inductor removes the clone as an
operation without effect: the later one would get the new value. Stock Inductor has this fault.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
# operations that give back their argument: the index of the argument
_UNCHANGED = {
    aten.clone.default: 0,
    aten.alias.default: 0,
    aten.copy.default: 1,
    aten.view.default: 0,
    aten._unsafe_view.default: 0,
    aten.reshape.default: 0,
    aten.expand.default: 0,
    aten.slice.Tensor: 0,
}


def keep_exchanged_values(graph: Graph) -> None:
    """What an input gets from another one that is written before it is computed into memory of its own first."""
    written: set[Node] = set()
    first: Node | None = None
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, value = node.args[:2]
        first = first or node
        if isinstance(value, Node) and _origin(value) in written:
            node.args = (target, _computed(graph, value, first), *node.args[2:])
        written.add(_origin(target))


def _origin(node: Node) -> Node:
    while node.target in _UNCHANGED:
        argument = node.args[_UNCHANGED[node.target]]
        if not isinstance(argument, Node):
            break
        node = argument
    return node


def _computed(graph: Graph, value: Node, before: Node) -> Node:
    """The same bits, by two operations that no pass of Inductor takes for one without effect."""
    tensor = value.meta["val"]
    twice = aten.neg.default if tensor.is_floating_point() else aten.bitwise_not.default
    with graph.inserting_before(before):
        for _ in range(2):
            metadata = value.meta
            value = graph.call_function(twice, (value,))
            value.meta = {**metadata, "val": tensor}
    return value
