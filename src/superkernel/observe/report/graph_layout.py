"""observe.report.graph_layout: ops and their dependencies -> a layered drawing, producers above consumers.

An edge that passes layers has a waypoint in each of them, so that it crosses no op and its text can be read. Edges of
the same producer and sync share waypoints as long as they go the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from ...plan.plan import SyncKind
from ..profile import ProfiledEdge

Point = tuple[float, float]
ACROSS, DOWN = 220, 104  # pixels between neighbours
_WAYPOINT_WIDTH = 70  # pixels
_SWEEPS, _SHIFTS = 4, 8
_MOST_WAYPOINTS = 3000  # an edge without waypoints is drawn as a bow


@dataclass(frozen=True)
class GraphLayout:
    """Places of the ops and of the waypoints; for each edge the numbers of the waypoints that it passes."""

    points: tuple[Point, ...]
    passed: tuple[Point, ...]
    ways: tuple[tuple[int, ...], ...]


@dataclass
class _Drawing:
    """Nodes of the drawing: ops have the first numbers, waypoints the others."""

    ops: int
    depth: list[int]
    above: list[list[int]] = field(default_factory=list)  # neighbours in the next layer only
    below: list[list[int]] = field(default_factory=list)

    def width(self, index: int) -> float:
        return ACROSS if index < self.ops else _WAYPOINT_WIDTH

    def add_waypoint(self, depth: int) -> int:
        self.depth.append(depth)
        self.above.append([])
        self.below.append([])
        return len(self.depth) - 1

    def join(self, upper: int, lower: int) -> None:
        if self.depth[lower] == self.depth[upper] + 1 and upper not in self.above[lower]:
            self.below[upper].append(lower)
            self.above[lower].append(upper)


def lay_out(names: Sequence[str], edges: Sequence[ProfiledEdge]) -> GraphLayout:
    """Layers by the longest way from the top; inside a layer, ops stand near what they depend on."""
    number = {name: index for index, name in enumerate(names)}
    pairs = [(number[edge.producer], number[edge.consumer]) for edge in edges]
    drawing = _Drawing(len(names), _depths(len(names), pairs), [[] for _ in names], [[] for _ in names])
    ways = _ways(drawing, pairs, [edge.sync for edge in edges])
    layers: list[list[int]] = [[] for _ in range(max(drawing.depth, default=-1) + 1)]
    for index, depth in enumerate(drawing.depth):
        layers[depth].append(index)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        _reorder(layers if downwards else layers[::-1], drawing.above if downwards else drawing.below)
    across = _across(drawing, layers)
    points = tuple((across[index], float(depth * DOWN)) for index, depth in enumerate(drawing.depth))
    ops = len(names)
    return GraphLayout(points[:ops], points[ops:], tuple(tuple(place - ops for place in way) for way in ways))


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


def _ways(drawing: _Drawing, pairs: Sequence[tuple[int, int]], syncs: Sequence[SyncKind]) -> list[tuple[int, ...]]:
    """The waypoints of each edge; shortest edges first, because their number is limited."""
    ways: list[tuple[int, ...]] = [()] * len(pairs)
    shared: dict[tuple[int, SyncKind], list[int]] = {}
    depth = drawing.depth
    for at in sorted(range(len(pairs)), key=lambda edge: depth[pairs[edge][1]] - depth[pairs[edge][0]]):
        producer, consumer = pairs[at]
        length = depth[consumer] - depth[producer] - 1
        way = shared.setdefault((producer, syncs[at]), [])
        if len(depth) - drawing.ops + length - len(way) > _MOST_WAYPOINTS:
            continue
        while len(way) < length:
            place = drawing.add_waypoint(depth[producer] + len(way) + 1)
            drawing.join(way[-1] if way else producer, place)
            way.append(place)
        ways[at] = tuple(way[: max(0, length)])
        drawing.join(ways[at][-1] if ways[at] else producer, consumer)
    return ways


def _reorder(layers: Sequence[list[int]], neighbours: list[list[int]]) -> None:
    """Sort each layer by the mean place of the neighbours that were placed before it."""
    places: dict[int, float] = {}
    for layer in layers:
        middle = (len(layer) - 1) / 2
        preferred = {index: position - middle for position, index in enumerate(layer)}
        for index in layer:
            if known := [places[other] for other in neighbours[index] if other in places]:
                preferred[index] = fmean(known)
        layer.sort(key=preferred.__getitem__)
        places.update((index, position - middle) for position, index in enumerate(layer))


def _across(drawing: _Drawing, layers: Sequence[list[int]]) -> list[float]:
    """Each node as near to its neighbours as the other nodes of its layer allow; the drawing is centred at zero."""
    across = [0.0] * len(drawing.depth)
    for shift in range(_SHIFTS):
        for layer in layers if shift % 2 == 0 else layers[::-1]:
            preferred = []
            for index in layer:
                # the first time nothing below has a place yet
                near = drawing.above[index] + (drawing.below[index] if shift else [])
                near = [other for other in near if drawing.width(other) == drawing.width(index)] or near  # straight
                preferred.append(fmean(across[other] for other in near) if near else across[index])
            widths = [drawing.width(index) for index in layer]
            for index, place in zip(layer, _apart(preferred, widths), strict=True):
                across[index] = place
    middle = (min(across, default=0.0) + max(across, default=0.0)) / 2
    return [round(place - middle, 1) for place in across]


def _apart(preferred: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Places in this order that do not overlap, with the least squares of distance to the preferred places.

    After subtracting the widths before each node this is isotonic regression, by pooling adjacent violators.
    """
    before = [0.0]
    for width, next_width in pairwise(widths):
        before.append(before[-1] + (width + next_width) / 2)
    groups: list[tuple[float, int]] = []  # the sum of preferred places, and how many nodes share it
    for place, offset in zip(preferred, before, strict=False):
        total, count = place - offset, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            earlier, more = groups.pop()
            total, count = total + earlier, count + more
        groups.append((total, count))
    shared = [total / count for total, count in groups for _ in range(count)]
    return [place + offset for place, offset in zip(shared, before, strict=False)]
