"""frontend.partition: a graph from AOTAutograd and a scope per node -> parts, in program order, each a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

_NEUTRAL = ("placeholder", "get_attr", "output")


@dataclass(frozen=True)
class Part:
    """Consecutive nodes of one scope, or of none, as a graph whose inputs and outputs are nodes of the whole."""

    scope: str | None
    nodes: tuple[Node, ...]
    module: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def partition(module: GraphModule, scope_of: Callable[[Node], str | None]) -> list[Part]:
    """Cut the graph where the scope changes."""
    order = _with_early_copies([node for node in module.graph.nodes if node.op not in _NEUTRAL], scope_of)
    runs: list[tuple[str | None, list[Node]]] = []
    for node in order:
        scope = scope_of(node)
        if not runs or runs[-1][0] != scope:
            runs.append((scope, []))
        runs[-1][1].append(node)
    output = next(node for node in module.graph.nodes if node.op == "output")
    last_use = _last_uses(order, output)
    position = {node: at for at, node in enumerate(order)}
    return [_part(module, scope, nodes, position, last_use) for scope, nodes in runs]


def _last_uses(order: Sequence[Node], output: Node) -> dict[Node, int]:
    last: dict[Node, int] = {}
    for at, node in enumerate([*order, output]):
        for used in node.all_input_nodes:
            last[used] = at
    return last


def _part(
    module: GraphModule,
    scope: str | None,
    nodes: Sequence[Node],
    position: Mapping[Node, int],
    last_use: Mapping[Node, int],
) -> Part:
    mine = set(nodes)
    end = max(position[node] for node in nodes)
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs: list[Node] = []
    subgraphs: list[Node] = []
    for node in nodes:
        for used in node.all_input_nodes:
            if used in mine or used in copies or used in subgraphs:
                continue
            if used.op == "get_attr" and not isinstance(_attribute(module, used), torch.Tensor):
                subgraphs.append(used)
                continue
            copies[used] = graph.placeholder(used.name)
            copies[used].meta = dict(used.meta)
            inputs.append(used)
    for used in subgraphs:
        copies[used] = graph.get_attr(str(used.target))
        copies[used].meta = dict(used.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
    outputs = tuple(node for node in nodes if last_use.get(node, -1) > end)
    graph.output(tuple(copies[node] for node in outputs))
    return Part(scope, tuple(nodes), GraphModule(module, graph), tuple(inputs), outputs)


def _attribute(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _with_early_copies(order: list[Node], scope_of: Callable[[Node], str | None]) -> list[Node]:
    """Copies into mutated inputs stand at the end of the graph; they move to the run that computes their value.

    A copy may pass a node unless that node reads the input, whose old value it would no longer see.
    """
    for copy in [node for node in order if node.target is torch.ops.aten.copy_.default]:
        target, value = copy.args[0], copy.args[1]
        if not isinstance(target, Node) or target.op != "placeholder" or value not in order:
            continue
        at = order.index(copy)
        goal = order.index(value) + 1  # type: ignore[arg-type]
        while goal < at and scope_of(order[goal]) == scope_of(copy):
            goal += 1
        readers = _readers(target)
        if any(node in readers for node in order[goal:at]):
            continue
        order.insert(goal, order.pop(at))
    return order


def _readers(value: Node) -> set[Node]:
    """Nodes that see the memory of `value`, through views or directly."""
    found: set[Node] = set()
    pending = [value]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if getattr(user.target, "is_view", False):
                    pending.append(user)
    return found


def example_inputs(part: Part) -> list[Any]:
    """What stands for the inputs of a part while it is compiled."""
    return [node.meta.get("val") for node in part.inputs]
