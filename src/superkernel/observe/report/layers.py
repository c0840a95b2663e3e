"""observe.report.layers: ops and their dependencies -> where each op stands, producers above consumers.

An edge that passes layers goes through a place of its own in each of them, so that it crosses no op and its text can be
read. Edges that leave the same op and are kept alike share these places as long as they go the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from .data import Edge, Sync

Point = tuple[float, float]
ACROSS, DOWN = 220, 84  # pixels between neighbours
_BESIDE = 70  # pixels that an edge takes where it passes a layer
_SWEEPS, _SHIFTS = 4, 8
_MOST_PLACES = 3000  # of passing edges; what does not find one is drawn as a bow


@dataclass(frozen=True)
class Layout:
    """Places of the ops, then places that edges pass; for each edge the numbers of those that it goes through."""

    points: tuple[Point, ...]
    passed: tuple[Point, ...]
    ways: tuple[tuple[int, ...], ...]


@dataclass
class _Drawing:
    """Ops have the first numbers, places of passing edges the others."""

    ops: int
    depth: list[int]
    above: list[list[int]] = field(default_factory=list)  # neighbours in the next layer only
    below: list[list[int]] = field(default_factory=list)

    def width(self, index: int) -> float:
        return ACROSS if index < self.ops else _BESIDE

    def add_place(self, depth: int) -> int:
        self.depth.append(depth)
        self.above.append([])
        self.below.append([])
        return len(self.depth) - 1

    def join(self, upper: int, lower: int) -> None:
        if self.depth[lower] == self.depth[upper] + 1 and upper not in self.above[lower]:
            self.below[upper].append(lower)
            self.above[lower].append(upper)


def lay_out(names: Sequence[str], edges: Sequence[Edge]) -> Layout:
    """Layers by the longest way from the top; inside a layer, ops stand near what they depend on."""
    number = {name: index for index, name in enumerate(names)}
    pairs = [(number[edge.producer], number[edge.consumer]) for edge in edges]
    drawing = _Drawing(len(names), _depths(len(names), pairs), [[] for _ in names], [[] for _ in names])
    ways = _ways(drawing, pairs, [edge.sync for edge in edges])
    layers = _layers(drawing.depth)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        _reorder(layers if downwards else layers[::-1], drawing.above if downwards else drawing.below)
    across = _across(drawing, layers)
    points = tuple((across[index], float(depth * DOWN)) for index, depth in enumerate(drawing.depth))
    ops = len(names)
    return Layout(points[:ops], points[ops:], tuple(tuple(place - ops for place in way) for way in ways))


def _depths(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    below: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for producer, consumer in pairs:
        below[producer].append(consumer)
        missing[consumer] += 1
    depth = [0] * count
    ready = [index for index, waits in enumerate(missing) if not waits]
    while ready:
        index = ready.pop()
        for follower in below[index]:
            depth[follower] = max(depth[follower], depth[index] + 1)
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return depth  # ops on a cycle, which no plan has, stay where their other edges put them


def _ways(drawing: _Drawing, pairs: Sequence[tuple[int, int]], syncs: Sequence[Sync]) -> list[tuple[int, ...]]:
    """The places that each edge passes, shortest edges first: there may be too many for all."""
    ways: list[tuple[int, ...]] = [()] * len(pairs)
    shared: dict[tuple[int, Sync], list[int]] = {}
    depth = drawing.depth
    for at in sorted(range(len(pairs)), key=lambda one: depth[pairs[one][1]] - depth[pairs[one][0]]):
        producer, consumer = pairs[at]
        length = depth[consumer] - depth[producer] - 1
        way = shared.setdefault((producer, syncs[at]), [])
        if len(depth) - drawing.ops + length - len(way) > _MOST_PLACES:
            continue
        while len(way) < length:
            place = drawing.add_place(depth[producer] + len(way) + 1)
            drawing.join(way[-1] if way else producer, place)
            way.append(place)
        ways[at] = tuple(way[: max(0, length)])
        drawing.join(ways[at][-1] if ways[at] else producer, consumer)
    return ways


def _layers(depths: Sequence[int]) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for index, depth in enumerate(depths):
        layers[depth].append(index)
    return layers


def _reorder(layers: Sequence[list[int]], neighbours: list[list[int]]) -> None:
    """Sort each layer by the mean place of the neighbours that were placed before it."""
    places: dict[int, float] = {}
    for layer in layers:
        middle = (len(layer) - 1) / 2
        launch_inputs = {index: position - middle for position, index in enumerate(layer)}
        for index in layer:
            if known := [places[one] for one in neighbours[index] if one in places]:
                launch_inputs[index] = fmean(known)
        layer.sort(key=launch_inputs.__getitem__)
        places.update((index, position - middle) for position, index in enumerate(layer))


def _across(drawing: _Drawing, layers: Sequence[list[int]]) -> list[float]:
    """Each as near to its neighbours as those beside it allow; the whole around zero."""
    across = [0.0] * len(drawing.depth)
    for shift in range(_SHIFTS):
        for layer in layers if shift % 2 == 0 else layers[::-1]:
            launch_inputs = []
            for index in layer:
                # the first time nothing below has a place yet
                near = drawing.above[index] + (drawing.below[index] if shift else [])
                near = [one for one in near if drawing.width(one) == drawing.width(index)] or near  # straight lines
                launch_inputs.append(fmean(across[one] for one in near) if near else across[index])
            for index, place in zip(
                layer, _apart(launch_inputs, [drawing.width(index) for index in layer]), strict=True
            ):
                across[index] = place
    middle = (min(across, default=0.0) + max(across, default=0.0)) / 2
    return [round(place - middle, 1) for place in across]


def _apart(launch_inputs: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Places in this order, none too near to the next, with the least squares of distance to the launch_inputs.

    Without the widths that lie before them they only must not decrease: neighbours that would, share their mean.
    """
    before = [0.0]
    for one, other in pairwise(widths):
        before.append(before[-1] + (one + other) / 2)
    groups: list[tuple[float, int]] = []  # the sum of launch_inputs, and how many share it
    for wish, offset in zip(launch_inputs, before, strict=False):
        total, count = wish - offset, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            earlier, more = groups.pop()
            total, count = total + earlier, count + more
        groups.append((total, count))
    shared = [total / count for total, count in groups for _ in range(count)]
    return [place + offset for place, offset in zip(shared, before, strict=False)]
