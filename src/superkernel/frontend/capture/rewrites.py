"""frontend.capture.rewrites: an AOTAutograd graph in; the same graph with less to compute out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

aten, prims = torch.ops.aten, torch.ops.prims
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
_INT8_ACTIVATIONS = (torch.float32, torch.bfloat16, torch.float16)  # that a matmul with int8 weights takes


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


def use_int8_weights(graph: Graph) -> None:
    """(x @ converted(w).T) * scales reads int8 weights in place, where they would be converted in every call.

    So quantised linear layers are written: the matmul converts the weights, and its results are scaled by column.
    """
    for product in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        for scaled, scales in (product.args, product.args[::-1]):
            matmul = _unreshaped(scaled, product)
            weight = None if matmul is None else _int8_weight(matmul.args[1])
            if matmul is None or weight is None or not _scales_columns(scales, matmul, product):
                continue
            with graph.inserting_before(product):
                whole = graph.call_function(aten._weight_int8pack_mm.default, (matmul.args[0], weight, scales))
                whole.meta = {**matmul.meta}
                replaced = whole
                if scaled is not matmul:
                    replaced = graph.call_function(aten.view.default, (whole, list(product.meta["val"].shape)))
                    replaced.meta = {**product.meta}
            product.replace_all_uses_with(replaced)
            graph.erase_node(product)
            _remove_unused(graph, scaled)
            break


def _unreshaped(node: object, user: Node) -> Node | None:
    """The matmul whose result, or a view of it, only `user` reads."""
    if isinstance(node, Node) and node.target in _VIEWS and len(node.users) == 1:
        columns = node.meta["val"].shape[-1]
        node, user = node.args[0], node
        if isinstance(node, Node) and node.meta["val"].shape[-1] != columns:
            return None
    is_matmul = isinstance(node, Node) and node.target is aten.mm.default and list(node.users) == [user]
    return node if is_matmul else None


def _int8_weight(node: object) -> Node | None:
    """w, if the node is converted(transposed(w)) or transposed(converted(w)) of int8 with contiguous rows."""
    targets = []
    while isinstance(node, Node) and node.target in (prims.convert_element_type.default, aten.permute.default):
        if node.target is aten.permute.default and list(node.args[1]) != [1, 0]:
            return None
        targets.append(node.target)
        node = node.args[0]
    if not isinstance(node, Node) or len(targets) != 2 or targets[0] is targets[1]:
        return None
    value = node.meta["val"]
    return node if value.dtype is torch.int8 and value.stride(1) == 1 else None


def _scales_columns(scales: object, matmul: Node, product: Node) -> bool:
    if not isinstance(scales, Node) or scales.meta["val"].dim() != 1:
        return False
    value, columns = scales.meta["val"], matmul.meta["val"]
    same_mark = matmul.meta.get("custom") == product.meta.get("custom")
    same_dtype = columns.dtype in _INT8_ACTIVATIONS and value.dtype is columns.dtype
    return same_mark and value.shape[0] == columns.shape[1] and same_dtype


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
