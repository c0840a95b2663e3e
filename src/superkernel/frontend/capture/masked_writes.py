"""frontend.capture.masked_writes: an AOTAutograd graph in; the same graph, in which `x[mask] = value` is a where.

`x[mask] = value` is an index_put, for which Inductor gives x another memory. Where x is the result of a scatter or of
another index_put, that one then writes into the other memory as well, after the masked write. Stock Inductor has this
fault.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from .row_layouts import argument_values

aten = torch.ops.aten


def write_masked_by_where(graph: Graph) -> None:
    """The same bits: where the mask is false, elements stay."""
    for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
        given = argument_values(node)
        tensor, indices, value = given["self"], given["indices"], given["values"]
        if not _is_masked(tensor, indices, value):
            continue
        (mask,) = indices
        with graph.inserting_before(node):
            for _ in range(mask.meta["val"].dim(), tensor.meta["val"].dim()):
                mask = _call(graph, node, aten.unsqueeze.default, mask, -1)
            if value.meta["val"].dim():
                value = _call(graph, node, aten.view.default, value, [])
            if given["accumulate"]:
                value = _call(graph, node, aten.add.Tensor, tensor, value)
            chosen = graph.call_function(aten.where.self, (mask, value, tensor))
        chosen.meta = dict(node.meta)
        node.replace_all_uses_with(chosen)
        graph.erase_node(node)


def _is_masked(tensor: Node, indices: list[Node | None], value: Node) -> bool:
    """Whether one value goes wherever a mask says."""
    if len(indices) != 1 or indices[0] is None or indices[0].meta["val"].dtype is not torch.bool:
        return False
    return value.meta["val"].numel() == 1 and value.meta["val"].dtype is tensor.meta["val"].dtype


def _call(graph: Graph, like: Node, operator: torch._ops.OpOverload, first: Node, *others: object) -> Node:
    """An operator with the mark and the source line of `like`."""
    node = graph.call_function(operator, (first, *others))
    values = [other.meta["val"] if isinstance(other, Node) else other for other in others]
    node.meta = {**like.meta, "val": operator(first.meta["val"], *values)}
    return node
