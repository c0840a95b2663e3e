"""frontend.capture.exchanged_states: an AOTAutograd graph in; the same graph, where writes may take old values.

AOTAutograd writes mutated inputs at the end of the graph, one after the other. Where a later one takes the old value of
an earlier one, as two buffers that change places do, the graph has a clone of it, and Inductor removes the clone as an
operation without effect: the later one would get the new value. A part of a tensor that takes an old value of another
part, as rows that move on by one do, loses its clone as well, and Inductor overwrites what it has yet to read. It does
the same where the value is a view of what it computes from the tensor. Stock Inductor has these faults.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from .written_arguments import written_arguments

aten, prims, higher_order = torch.ops.aten, torch.ops.prims, torch.ops.higher_order
# operations that may give back their argument, beside views: the index of the argument
_UNCHANGED = {
    aten.clone.default: 0,
    aten.copy.default: 1,
    aten._unsafe_view.default: 0,
    aten.reshape.default: 0,
    aten.repeat.default: 0,
    aten.constant_pad_nd.default: 0,
    aten.slice_scatter.default: 1,
    aten.cat.default: 0,
    aten.lift_fresh_copy.default: 0,
    prims.convert_element_type.default: 0,
    prims.device_put.default: 0,
    operator.getitem: 0,
}
_INDEXED = (aten.index_put.default, aten._unsafe_index_put.default)
# operations that Inductor may carry out in place, in their first argument
_IN_PLACE = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
    *_INDEXED,
)


def keep_exchanged_values(graph: Graph) -> None:
    """What is read from memory that is written meanwhile is computed into memory of its own first."""
    scatters = [node for node in graph.nodes if node.target in _IN_PLACE]
    copies = graph.find_nodes(op="call_function", target=aten.copy_.default)
    reads = _Reads(graph, [node.args[0] for node in (*scatters, *copies)])
    for node in scatters:
        target = node.args[0]
        for value in [value for value in node.all_input_nodes if value is not target and reads(value, target)]:
            if node.target in _INDEXED and value is not node.args[2]:
                node.replace_input_with(value, _stored(graph, _computed(graph, value, node), node))
            elif _is_view(value, target):
                node.replace_input_with(value, _computed(graph, value, node))
    for node in graph.nodes:
        if node.target in (higher_order.auto_functionalized, higher_order.auto_functionalized_v2):
            _keep_copies_of_written(graph, node)
    written: set[Node] = set()
    for node in copies:
        target, value = node.args[:2]
        if isinstance(value, Node) and (_origin(value) in written or reads.as_view(value, target)):
            node.args = (target, _computed(graph, value, copies[0]), *node.args[2:])
        written.add(_origin(target))


def _keep_copies_of_written(graph: Graph, node: Node) -> None:
    """A custom operator that writes an argument and is given a copy of it reads the copy."""
    given = node.kwargs
    named = given["_all_bases"] if "_all_bases" in given else map(given.get, written_arguments(node.args[0]))
    written = [tensor for tensor in named if isinstance(tensor, Node)]
    origins = {_origin(tensor) for tensor in written}
    for value in node.all_input_nodes:
        if value not in written and _origin(value) in origins and _is_copied(value):
            node.replace_input_with(value, _computed(graph, value, node))


def _is_copied(value: Node) -> bool:
    """Whether the value is more than a view of its origin."""
    while (argument := _unchanged_argument(value)) is not None:
        if not getattr(value.target, "is_view", False):
            return True
        value = argument
    return False


class _Reads:
    """Which nodes are computed from which of the written tensors."""

    def __init__(self, graph: Graph, written: Sequence[Node]) -> None:
        origins = dict.fromkeys(_origin(node) for node in written)
        self._bits = {origin: 1 << number for number, origin in enumerate(origins)}
        self._found: dict[Node, int] = {}
        for node in graph.nodes:
            found = self._bits.get(node, 0)
            for value in node.all_input_nodes:
                found |= self._found[value]
            self._found[node] = found

    def __call__(self, value: Node, target: Node) -> bool:
        return bool(self._found[value] & self._bits[_origin(target)])

    def as_view(self, value: Node, target: Node) -> bool:
        """Whether a view of something computed from the target is copied to it, and no part of it has been replaced."""
        origin = _origin(value)
        is_computed = not _is_view(value, target) or isinstance(origin.target, torch._ops.HigherOrderOperator)
        if is_computed or not self(value, target):
            return False
        return origin.target not in _IN_PLACE or _origin(origin.args[0]) is not _origin(target)


def _is_view(value: Node, target: Node) -> bool:
    """Whether the value may be the target, or a view; what an operation has just computed is stored before a write."""
    while value.target is aten.copy.default:
        value = value.args[1]
    return _origin(value) is not value or value is _origin(target)


def _origin(node: Node) -> Node:
    """The tensor that the value of a node may be, or be a view of."""
    while (argument := _unchanged_argument(node)) is not None:
        node = argument
    return node


def _unchanged_argument(node: Node) -> Node | None:
    """The argument that a node may give back."""
    if node.target is aten.slice_scatter.default and node.args[1].meta["val"].shape != node.meta["val"].shape:
        return None
    index = 0 if getattr(node.target, "is_view", False) else _UNCHANGED.get(node.target)
    argument = None if index is None else node.args[index]
    if isinstance(argument, list | tuple) and len(argument) == 1:
        (argument,) = argument
    return argument if isinstance(argument, Node) else None


def _stored(graph: Graph, value: Node, before: Node) -> Node:
    """The value as one that Inductor has in memory: of others it computes an element when it needs it."""
    tensor = value.meta["val"] = value.meta["val"].contiguous()
    with graph.inserting_before(before):
        stored = graph.call_function(aten.as_strided.default, (value, list(tensor.shape), list(tensor.stride())))
    stored.meta = {**value.meta}
    return stored


def _computed(graph: Graph, value: Node, before: Node) -> Node:
    """The same bits, by two operations that no pass of Inductor takes for one without effect."""
    tensor = value.meta["val"]
    twice = aten.neg.default if tensor.is_floating_point() or tensor.is_complex() else aten.bitwise_not.default
    with graph.inserting_before(before):
        for _ in range(2):
            metadata = value.meta
            value = graph.call_function(twice, (value,))
            value.meta = {**metadata, "val": tensor}
    return value
