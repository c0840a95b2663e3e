"""frontend.run_parts: the compiled parts of a graph -> one function that runs them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..runtime.launch_events import has_listeners, launch_call
from .capture.partition import GraphPart, graph_attribute

PartFunction = Callable[[list[Any]], Sequence[Any]]
_Places = tuple[int, ...]  # among the values of the graph


def join_parts(module: GraphModule, parts: Sequence[GraphPart], functions: Sequence[PartFunction]) -> PartFunction:
    """A function of a list of inputs, which it empties, as AOTAutograd requires."""
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    attributes = [node for node in nodes if node.op == "get_attr"]
    constants = [graph_attribute(module, node) for node in attributes]
    computed = [node for part in parts for node in part.outputs]
    places = {node: place for place, node in enumerate([*placeholders, *attributes, *computed])}
    outputs: list[Any] = list(nodes[-1].args[0])
    results = tuple(places[value] if isinstance(value, Node) else None for value in outputs)
    is_whole_graph = (
        len(parts) == 1
        and not constants
        and parts[0].inputs == tuple(placeholders)
        and tuple(outputs) == parts[0].outputs
    )
    if is_whole_graph:
        return _boxed(functions[0])
    calls = _part_calls(parts, functions, places, {place for place in results if place is not None})
    unset = [None] * (len(places) - len(placeholders) - len(constants))

    def run(args: list[Any]) -> Sequence[Any]:
        values = [*args, *constants, *unset]
        args.clear()
        for function, inputs, outputs_of_part, dead in calls:
            returned = function([values[place] for place in inputs])
            for place, value in zip(outputs_of_part, returned, strict=True):
                values[place] = value
            for place in dead:
                values[place] = None
        return [outputs[i] if place is None else values[place] for i, place in enumerate(results)]

    return _boxed(run)


def _part_calls(
    parts: Sequence[GraphPart], functions: Sequence[PartFunction], places: dict[Node, int], returned: set[int]
) -> list[tuple[PartFunction, _Places, _Places, _Places]]:
    """Each part's function, its inputs, its outputs, and the values that no later part and no output needs."""
    last_use = {places[node]: at for at, part in enumerate(parts) for node in part.inputs}
    calls = []
    for at, (part, function) in enumerate(zip(parts, functions, strict=True)):
        inputs = tuple(places[node] for node in part.inputs)
        dead = tuple(place for place in dict.fromkeys(inputs) if last_use[place] == at and place not in returned)
        calls.append((function, inputs, tuple(places[node] for node in part.outputs), dead))
    return calls


def _boxed(function: PartFunction) -> PartFunction:
    def call(args: list[Any]) -> Sequence[Any]:
        if not has_listeners():
            return function(args)
        with launch_call():
            return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def op_by_op(module: GraphModule) -> PartFunction:
    """The graph as it is, every op called by torch."""
    forward = module.forward

    def call(args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return forward(*args)  # type: ignore[no-any-return]

    return call
