"""frontend.capture.rewrites: an AOTAutograd graph in; the same graph with less to compute out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)


def share_heads(graph: Graph, attention_operators: Sequence[Any]) -> None:
    """Attention reads key and value heads that several query heads share without copies of them.

    Models with fewer key than query heads repeat the heads of their whole cache before every step; these operators
    accept fewer key and value heads.
    """
    calls = [graph.find_nodes(op="call_function", target=operator) for operator in attention_operators]
    for node in [node for nodes in calls for node in nodes]:
        repeated = node.args[1:3]
        shared = [_unrepeated(argument) for argument in repeated]
        if None in shared:
            continue
        node.args = (node.args[0], *shared, *node.args[3:])
        for argument in repeated:
            _remove_unused(graph, argument)


def _unrepeated(node: object) -> Node | None:
    """x, if the node is view(clone(expand(unsqueeze(x, 2)))): each head is repeated."""
    if not isinstance(node, Node) or node.target not in _VIEWS:
        return None
    expanded = node.args[0]
    if isinstance(expanded, Node) and expanded.target is torch.ops.aten.clone.default:
        expanded = expanded.args[0]
    if not isinstance(expanded, Node) or expanded.target is not torch.ops.aten.expand.default:
        return None
    inserted = expanded.args[0]
    if not isinstance(inserted, Node) or inserted.target is not torch.ops.aten.unsqueeze.default:
        return None
    source = inserted.args[0]
    if inserted.args[1] not in (2, -3) or not isinstance(source, Node):
        return None
    batch, heads, length, size = source.meta["val"].shape if source.meta["val"].dim() == 4 else (0, 0, 0, 0)
    group = expanded.meta["val"].shape
    if tuple(group) != (batch, heads, group[2], length, size) or size == 0:
        return None
    repeated = (batch, heads * group[2], length, size)
    return source if tuple(node.meta["val"].shape) == repeated and source.meta["val"].stride()[-1] == 1 else None


def _remove_unused(graph: Graph, node: object) -> None:
    while isinstance(node, Node) and not node.users and node.op == "call_function":
        source = node.args[0]
        graph.erase_node(node)
        node = source
