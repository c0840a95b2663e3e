"""frontend.machine_collectives: a collective of a group across machines -> some inside each, and one between them.

An all_reduce becomes a reduce_scatter of the ranks of this machine, an all_to_all of the whole group in which each rank
exchanges its part with one rank of every other machine, and an all_gather of the ranks of this machine. Those inside a
machine are ops of segments; torch runs the one between machines, on the group's own back end: no group is created. In
the graph, a collective inside a machine has the name of the whole group and the number of ranks on one machine.

Elements are reduced by rank inside a machine, then by machine, in the order of the group: all ranks have the same bits.
Every rank divides alike: by the machines of all ranks, the dtype and the size. That all of them do they agree upon
before the first launch (rank_rounds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..errors import UnsupportedError
from ..targets.collectives import CollectiveSupport
from .lowering.inductor import copied_module
from .machine_groups import Machines, machines_of
from .process_groups import find_process_group

aten, collective = torch.ops.aten, torch.ops._c10d_functional
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64, torch.uint8)
_JOINED: dict[str, Callable[..., Any]] = {
    "sum": aten.add.Tensor,
    "avg": aten.add.Tensor,
    "max": aten.maximum.default,
    "min": aten.minimum.default,
    "product": aten.mul.Tensor,
}


def divide_collectives(module: GraphModule, support: CollectiveSupport) -> GraphModule | None:
    """A copy in which collectives across machines are divided; None where there is nothing to divide."""
    divisible = {node.name for node in module.graph.nodes if _find_division(node, support) is not None}
    if not divisible:
        return None
    copied = copied_module(module)
    for node in list(copied.graph.nodes):
        division = _find_division(node, support) if node.name in divisible else None
        if division is not None:
            division.divide()
    copied.graph.lint()
    copied.recompile()
    return copied


def _find_division(node: Node, support: CollectiveSupport) -> _Division | None:
    """None: it is no collective across machines, or one that torch runs as it is."""
    if node.target not in (collective.all_reduce.default, collective.all_gather_into_tensor.default):
        return None
    users = list(node.users)
    if len(users) != 1 or users[0].target is not collective.wait_tensor.default:
        return None
    value = node.args[0].meta["val"]
    reduction = node.args[1] if node.target is collective.all_reduce.default else "sum"
    dtypes = _FLOATS if reduction == "avg" else _FLOATS + _INTEGERS
    if reduction not in _JOINED or value.dtype not in dtypes or not value.numel():
        return None
    try:
        found = find_process_group(node.args[-1])
    except UnsupportedError:
        return None
    machines = machines_of(found, support)
    return None if machines.count == 1 or machines.ranks_each < 2 else _Division(node, users[0], machines)


@dataclass(frozen=True)
class _Division:
    """A collective of a graph that is to be divided."""

    node: Node
    wait: Node
    machines: Machines

    def divide(self) -> None:
        is_reduction = self.node.target is collective.all_reduce.default
        divided = self._all_reduce() if is_reduction else self._all_gather()
        self.wait.replace_all_uses_with(divided)
        self._graph.erase_node(self.wait)
        self._graph.erase_node(self.node)

    @property
    def _graph(self) -> Graph:
        return self.node.graph

    def _call(self, before: Node, target: Any, *args: Any) -> Node:
        """A node that computes `target`, with the value that it would have."""
        value = self.node.meta["val"]
        with value.fake_mode:
            result = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]))
        with self._graph.inserting_before(before):
            made = self._graph.call_function(target, args)
        made.meta = {**self.node.meta, "val": result}
        made.meta.pop("tensor_meta", None)
        return made

    def _exchanged(self, part: Node, count: int) -> Node:
        """What the partners of this rank on all machines have, started where the collective is; by their places."""
        partners = self.machines.partners(self.machines.index)
        splits = [count if place in partners else 0 for place in range(len(self.machines.of))]
        sent = self._call(self.node, aten.repeat.default, part, [self.machines.count])
        name = self.node.args[-1]
        started = self._call(self.node, collective.all_to_all_single.default, sent, splits, splits, name)
        return self._call(self.wait, collective.wait_tensor.default, started)

    def _inside(self, before: Node, target: Any, *args: Any) -> Node:
        started = self._call(before, target, *args, self.machines.ranks_each, self.node.args[-1])
        return self._call(before, collective.wait_tensor.default, started)

    def _all_reduce(self) -> Node:
        given, reduction = self.node.args[0], self.node.args[1]
        assert isinstance(given, Node)
        value = given.meta["val"]
        ranks, machines = self.machines.ranks_each, self.machines.count
        count = -(-value.numel() // ranks)
        flat = self._call(self.node, aten.reshape.default, given, [value.numel()])
        if count * ranks != value.numel():
            flat = self._call(self.node, aten.constant_pad_nd.default, flat, [0, count * ranks - value.numel()], 0)
        part = self._inside(self.node, collective.reduce_scatter_tensor.default, flat, reduction)
        parts = self._exchanged(part, count)
        total: Node | None = None
        for at in self.machines.received(self.machines.index):
            chunk = self._call(self.wait, aten.slice.Tensor, parts, 0, at * count, (at + 1) * count)
            total = chunk if total is None else self._call(self.wait, _JOINED[str(reduction)], total, chunk)
        assert total is not None
        if reduction == "avg":  # of the averages of machines with as many ranks
            total = self._call(self.wait, aten.div.Tensor, total, machines)
        whole = self._inside(self.wait, collective.all_gather_into_tensor.default, total)
        if count * ranks != value.numel():
            whole = self._call(self.wait, aten.slice.Tensor, whole, 0, 0, value.numel())
        return self._call(self.wait, aten.reshape.default, whole, list(value.shape))

    def _all_gather(self) -> Node:
        given = self.node.args[0]
        assert isinstance(given, Node)
        count, machines = given.meta["val"].numel(), self.machines
        flat = self._call(self.node, aten.reshape.default, given, [count])
        fetched = self._exchanged(flat, count)
        whole = self._inside(self.wait, collective.all_gather_into_tensor.default, fetched)
        chunks = []
        for place, machine in enumerate(machines.of):
            index = machines.members(machine).index(place)
            at = index * machines.count + machines.received(index)[machine]
            chunks.append(self._call(self.wait, aten.slice.Tensor, whole, 0, at * count, (at + 1) * count))
        joined = self._call(self.wait, aten.cat.default, chunks)
        return self._call(self.wait, aten.reshape.default, joined, list(self.node.meta["val"].shape))
