"""frontend.capture.partition: an AOTAutograd graph and a scope per node -> parts in program order, each a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

_NEUTRAL = ("placeholder", "get_attr", "output")
# An op with effects takes a token and returns the next one, which fixes the order of effects. Parts run in order, so
# each part begins and ends its own chain of tokens.
_MAKE_TOKEN, _SINK_TOKENS = torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default


@dataclass(frozen=True)
class GraphPart:
    """Consecutive nodes of one scope, or outside of scopes, as a graph; inputs and outputs are nodes of the whole."""

    scope: str | None
    nodes: tuple[Node, ...]
    module: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def partition(module: GraphModule, scope_of: Callable[[Node], str | None]) -> list[GraphPart]:
    """Cut the graph where the scope changes."""
    order = [node for node in module.graph.nodes if node.op not in _NEUTRAL]
    order = [node for node in order if node.target not in (_MAKE_TOKEN, _SINK_TOKENS)]
    order = _with_early_copies(order, scope_of)
    runs = _runs(order, scope_of)
    output = next(node for node in module.graph.nodes if node.op == "output")
    order = [node for _, nodes in runs for node in nodes]
    last_use = {used: at for at, node in enumerate([*order, output]) for used in node.all_input_nodes}
    position = {node: at for at, node in enumerate(order)}
    return [_part(module, scope, nodes, max(map(position.__getitem__, nodes)), last_use) for scope, nodes in runs]


def is_free(node: Node) -> bool:
    """It computes nothing: it is a view, or takes one of several results."""
    return getattr(node.target, "is_view", False) or node.target is operator.getitem


def _runs(order: Sequence[Node], scope_of: Callable[[Node], str | None]) -> list[tuple[str | None, list[Node]]]:
    """Consecutive nodes of one scope. Nodes that compute nothing neither begin nor end a run."""
    runs: list[tuple[str | None, list[Node]]] = []
    run_of: dict[Node, list[Node]] = {}
    waiting: list[Node] = []  # free nodes since the last op: each joins the run of that op or of the next

    def put(node: Node, before: list[Node], after: list[Node]) -> None:
        sources = [run_of.get(source) for source in node.all_input_nodes]
        if node.target is operator.getitem and sources[0] is not None:
            place = sources[0]  # a tuple of results does not cross from part to part
        elif scope_of(node) == runs[-1][0] or any(source is after for source in sources):
            place = after
        else:
            place = before
        place.append(node)
        run_of[node] = place

    for node in order:
        if is_free(node):
            waiting.append(node)
            continue
        scope = scope_of(node)
        if not runs or runs[-1][0] != scope:
            runs.append((scope, []))
        after = runs[-1][1]
        before = runs[-2][1] if len(runs) > 1 and not after else after
        for free in waiting:
            put(free, before, after)
        waiting.clear()
        put(node, after, after)
    runs = runs or [(None, [])]
    for free in waiting:
        put(free, runs[-1][1], runs[-1][1])
    return [(scope, nodes) for scope, nodes in runs if nodes]


def _part(
    module: GraphModule, scope: str | None, nodes: Sequence[Node], end: int, last_use: Mapping[Node, int]
) -> GraphPart:
    """`end`: the position of the last of the nodes."""
    inside = set(nodes)
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs: list[Node] = []
    subgraphs: list[Node] = []
    for node in nodes:
        for used in node.all_input_nodes:
            if used in inside or used in copies or used in subgraphs or _is_token(used):
                continue
            if used.op == "get_attr" and not isinstance(graph_attribute(module, used), torch.Tensor):
                subgraphs.append(used)
                continue
            copies[used] = graph.placeholder(f"in{len(inputs)}")  # so that equal parts have equal names
            copies[used].meta = dict(used.meta)
            inputs.append(used)
    for used in subgraphs:
        copies[used] = graph.get_attr(str(used.target))
        copies[used].meta = dict(used.meta)
    for token in [used for node in nodes for used in node.all_input_nodes if _is_token(used) and used not in inside]:
        copies[token] = graph.call_function(_MAKE_TOKEN)
        copies[token].meta = dict(token.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
    if last_tokens := [copies[node] for node in nodes if _is_token(node) and not inside & set(node.users)]:
        graph.call_function(_SINK_TOKENS, (last_tokens,))
    outputs = tuple(node for node in nodes if last_use.get(node, -1) > end and not _is_token(node))
    graph.output(tuple(copies[node] for node in outputs))
    return GraphPart(scope, tuple(nodes), GraphModule(module, graph), tuple(inputs), outputs)


def _is_token(node: Node) -> bool:
    if node.target is operator.getitem and node.args[1] == 0:
        return node.args[0].target is torch.ops.higher_order.with_effects
    return node.target is _MAKE_TOKEN


def graph_attribute(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _with_early_copies(order: list[Node], scope_of: Callable[[Node], str | None]) -> list[Node]:
    """Copies into mutated inputs are at the end of the graph; they move to the run that computes their value.

    A copy may move before a node unless that node reads the old value of the input.
    """
    for copy in [node for node in order if node.target is torch.ops.aten.copy_.default]:
        target, value = copy.args[0], copy.args[1]
        if not isinstance(target, Node) or target.op != "placeholder" or value not in order:
            continue
        at = order.index(copy)
        goal = order.index(value) + 1
        while goal < at and scope_of(order[goal]) == scope_of(copy):
            goal += 1
        readers = _readers(target)
        if any(node in readers for node in order[goal:at]):
            continue
        order.insert(goal, order.pop(at))
    return order


def _readers(value: Node) -> set[Node]:
    """Nodes that read the memory of `value`, directly or through views."""
    found: set[Node] = set()
    pending = [value]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if getattr(user.target, "is_view", False):
                    pending.append(user)
    return found


def example_inputs(part: GraphPart) -> list[Any]:
    """Fake tensors and numbers with which a part is compiled."""
    return [node.meta.get("val") for node in part.inputs]
