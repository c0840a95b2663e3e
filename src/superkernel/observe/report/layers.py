"""observe.report.layers: ops and their dependencies -> where each op stands, producers above consumers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from .data import Edge

Point = tuple[float, float]
Neighbours = list[list[int]]
ACROSS, DOWN = 220, 84  # pixels between neighbours
_SWEEPS = 4


def place(names: Sequence[str], edges: Sequence[Edge]) -> tuple[Point, ...]:
    """Layers by the longest way from the top; inside a layer, ops stand near what they depend on."""
    number = {name: index for index, name in enumerate(names)}
    above: Neighbours = [[] for _ in names]
    below: Neighbours = [[] for _ in names]
    for edge in edges:
        producer, consumer = number[edge.producer], number[edge.consumer]
        above[consumer].append(producer)
        below[producer].append(consumer)
    layers = _layers(_depths(above, below))
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        _reorder(layers if downwards else layers[::-1], above if downwards else below)
    points: list[Point] = [(0.0, 0.0)] * len(names)
    for depth, layer in enumerate(layers):
        for position, index in enumerate(layer):
            points[index] = ((position - (len(layer) - 1) / 2) * ACROSS, float(depth * DOWN))
    return tuple(points)


def _depths(above: Neighbours, below: Neighbours) -> list[int]:
    depth = [0] * len(above)
    missing = [len(each) for each in above]
    ready = [index for index, count in enumerate(missing) if not count]
    while ready:
        index = ready.pop()
        for follower in below[index]:
            depth[follower] = max(depth[follower], depth[index] + 1)
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return depth  # ops on a cycle, which no plan has, stay where their other edges put them


def _layers(depths: Sequence[int]) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for index, depth in enumerate(depths):
        layers[depth].append(index)
    return layers


def _reorder(layers: Sequence[list[int]], neighbours: Neighbours) -> None:
    """Sort each layer by the mean place of the neighbours that were placed before it."""
    places: dict[int, float] = {}
    for layer in layers:
        middle = (len(layer) - 1) / 2
        wishes = {index: position - middle for position, index in enumerate(layer)}
        for index in layer:
            if known := [places[one] for one in neighbours[index] if one in places]:
                wishes[index] = fmean(known)
        layer.sort(key=wishes.__getitem__)
        places.update((index, position - middle) for position, index in enumerate(layer))
