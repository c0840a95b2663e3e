"""frontend.joined: the parts of a graph, compiled -> one callable that runs them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .capture.partition import Part

PartCallable = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class _Step:
    function: PartCallable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # values that nobody needs after it


def join(module: GraphModule, parts: Sequence[Part], functions: Sequence[PartCallable]) -> PartCallable:
    """A function of a list of inputs, which it empties, as AOTAutograd wants it."""
    places: dict[Node, int] = {}
    constants: list[Any] = []
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for node in placeholders:
        places[node] = len(places)
    for node in nodes:
        if node.op == "get_attr":
            places[node] = len(places)
            constants.append(_attribute(module, node))
    for part in parts:
        for node in part.outputs:
            places[node] = len(places)
    output = nodes[-1]
    plain: list[Any] = list(output.args[0])
    results = tuple(places[value] if isinstance(value, Node) else None for value in plain)
    if (
        len(parts) == 1
        and not constants
        and parts[0].inputs == tuple(placeholders)
        and tuple(plain) == parts[0].outputs
    ):
        return _boxed(functions[0])
    steps = _steps(parts, functions, places, {place for place in results if place is not None})
    blanks = [None] * (len(places) - len(placeholders) - len(constants))

    def run(args: list[Any]) -> Sequence[Any]:
        values = [*args, *constants, *blanks]
        args.clear()
        for step in steps:
            made = step.function([values[place] for place in step.inputs])
            for place, value in zip(step.outputs, made, strict=True):
                values[place] = value
            for place in step.dead:
                values[place] = None
        return [plain[i] if place is None else values[place] for i, place in enumerate(results)]

    return _boxed(run)


def _steps(
    parts: Sequence[Part], functions: Sequence[PartCallable], places: dict[Node, int], kept: set[int]
) -> list[_Step]:
    last: dict[int, int] = {}
    for at, part in enumerate(parts):
        for node in part.inputs:
            last[places[node]] = at
    steps = []
    for at, (part, function) in enumerate(zip(parts, functions, strict=True)):
        inputs = tuple(places[node] for node in part.inputs)
        dead = tuple(place for place in dict.fromkeys(inputs) if last[place] == at and place not in kept)
        steps.append(_Step(function, inputs, tuple(places[node] for node in part.outputs), dead))
    return steps


def _attribute(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _boxed(function: PartCallable) -> PartCallable:
    def call(args: list[Any]) -> Sequence[Any]:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def by_interpreter(module: GraphModule) -> PartCallable:
    """The graph as it stands, every op called by itself."""
    forward = module.forward

    def call(args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return forward(*args)  # type: ignore[no-any-return]

    return call
