"""frontend.capture.bool_collectives: collectives of bool tensors that Inductor would make int64 -> those of bytes.

Inductor promotes a bool tensor with the numbers among the arguments of an operator, here the size of the group or the
place of the root: what comes back would be int64.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

_REDUCTIONS = {"sum": "max", "max": "max", "product": "min", "min": "min"}  # of bytes that are 0 or 1


def keep_bools(graph: Graph) -> None:
    if not torch.distributed.is_available():
        return
    c10d = torch.ops._c10d_functional
    for target in (c10d.all_gather_into_tensor.default, c10d.broadcast.default, c10d.reduce_scatter_tensor.default):
        for node in graph.find_nodes(op="call_function", target=target):
            is_reduction = target is c10d.reduce_scatter_tensor.default
            known = not is_reduction or node.args[1] in _REDUCTIONS
            if (
                known
                and _value(node).dtype is torch.bool
                and all(u.target is c10d.wait_tensor.default for u in node.users)
            ):
                _use_bytes(graph, node, is_reduction)


def _use_bytes(graph: Graph, node: Node, is_reduction: bool) -> None:
    source, *others = node.args
    assert isinstance(source, Node)
    with graph.inserting_before(node):
        as_bytes = _converted(graph, source, torch.uint8, node)
    if is_reduction:
        others[0] = _REDUCTIONS[str(others[0])]
    node.args = (as_bytes, *others)
    for taken in (node, *node.users):
        taken.meta["val"] = _value(taken).to(torch.uint8)
    for wait in list(node.users):
        with graph.inserting_after(wait):
            back = _converted(graph, wait, torch.bool, wait)
        wait.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
        while again := next((user for user in back.users if user.target is wait.target), None):
            again.replace_all_uses_with(back)  # nothing is left to wait for, and Inductor cannot
            graph.erase_node(again)


def _converted(graph: Graph, source: Node, dtype: torch.dtype, like: Node) -> Node:
    """A conversion that belongs to the scope of another node."""
    converted = graph.call_function(torch.ops.prims.convert_element_type.default, (source, dtype))
    converted.meta = {**like.meta, "val": _value(source).to(dtype)}
    return converted


def _value(node: Node) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value
