"""plan.placement: a graph and a number of cores -> the cores of every op, and the lanes they form."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError
from ..model.graph import Graph
from ..model.node import Node
from ..model.options import Options
from .cost import block_cost, estimate, op_cost, start_of
from .steps import Cores


@dataclass(frozen=True)
class Placement:
    cores: int  # launch size
    of: tuple[Cores, ...]  # per op
    teams: tuple[Cores, ...]  # per op: the cores that join its sync_all barriers; empty without sync_all
    lanes: tuple[Cores, ...]
    note: str = ""


def place(graph: Graph, options: Options, cores: int) -> Placement:
    """One stream, or side by side where that is estimated to be faster."""
    for node in graph.nodes:
        if node.kernel.sync_all and node.blocks > cores:
            raise PlanError(
                f"super_kernel_scope {graph.name!r}: op {node.name!r} calls sync_all with {node.blocks} blocks, but "
                f"there are {cores} cores: its blocks could never all be resident. Lower block_dim or use more cores"
            )
    serial = _serial(graph, cores)
    if not options.stream_fusion:
        return _checked(graph, serial, options)
    side = min((_grouped(graph, cores), _spread(graph, cores)), key=lambda p: estimate(graph, list(p), cores))
    times = estimate(graph, list(serial.of), cores), estimate(graph, list(side), cores)
    text = f"estimated {times[1] / 1e3:.1f} us side by side, {times[0] / 1e3:.1f} us in one stream"
    if times[0] <= times[1]:
        return _checked(graph, serial, options, f"stream-fusion: in one stream ({text})")
    fused = _side_by_side(graph, side)
    return Placement(
        fused.cores, fused.of, fused.teams, fused.lanes, f"stream-fusion: {len(fused.lanes)} lanes ({text})"
    )


def _serial(graph: Graph, cores: int) -> Placement:
    """Every op from core 0 on; all cores follow one list."""
    size = min(cores, max(node.blocks for node in graph.nodes))
    everyone = tuple(range(size))
    of = tuple(everyone[: node.blocks] for node in graph.nodes)
    teams = tuple(everyone if node.kernel.sync_all else () for node in graph.nodes)
    return Placement(size, of, teams, (everyone,))


def _checked(graph: Graph, placement: Placement, options: Options, note: str = "") -> Placement:
    for node in graph.nodes:
        if not node.kernel.sync_all or options.feed_sync_all:
            continue
        if node.blocks != placement.cores or node.dynamic:
            blocks = f"up to {node.blocks}" if node.dynamic else str(node.blocks)
            raise PlanError(
                f"super_kernel_scope {graph.name!r}: op {node.name!r} calls sync_all with {blocks} blocks in a launch "
                f"of {placement.cores} cores: the idle cores would never arrive. Set feed-sync-all=1, or "
                f"block_dim={placement.cores}"
            )
    return Placement(placement.cores, placement.of, placement.teams, placement.lanes, note)


def _spread(graph: Graph, cores: int) -> tuple[Cores, ...]:
    """Each op on the cores that can start it first; among equals the cores of its producers."""
    placed: list[Cores] = [()] * len(graph.nodes)
    finish, free = [0.0] * len(graph.nodes), [0.0] * cores
    for op in graph.order:
        node = graph.nodes[op]
        width = min(node.blocks, cores)
        home = {core for edge in graph.incoming[op] for core in placed[edge.producer]}
        starts = {core: start_of(graph, op, core, placed, finish, free) for core in range(cores)}
        chosen = sorted(range(cores), key=lambda c: (starts[c], c not in home, c))[:width]
        _occupy(node, op, tuple(sorted(chosen)), starts, placed, finish, free)
    return tuple(placed)


def _grouped(graph: Graph, cores: int) -> tuple[Cores, ...]:
    """A group of cores per stream in proportion to its work; a wide op takes all cores where it ends sooner so."""
    groups = _stream_groups(graph, cores)
    placed: list[Cores] = [()] * len(graph.nodes)
    finish, free = [0.0] * len(graph.nodes), [0.0] * cores
    everyone = tuple(range(cores))
    for op in graph.order:
        node = graph.nodes[op]
        starts = {core: start_of(graph, op, core, placed, finish, free) for core in everyone}
        narrow, wide = groups[node.stream][: node.blocks], everyone[: node.blocks]

        def end(on: Cores, node: Node = node, starts: dict[int, float] = starts) -> float:
            return max(starts[core] for core in on) + op_cost(node, len(on))

        crowded = node.kernel.sync_all and node.blocks > len(narrow)
        _occupy(node, op, wide if crowded or end(wide) < end(narrow) else narrow, starts, placed, finish, free)
    return tuple(placed)


def _occupy(
    node: Node,
    op: int,
    on: Cores,
    starts: dict[int, float],
    placed: list[Cores],
    finish: list[float],
    free: list[float],
) -> None:
    placed[op] = on
    for core in on:
        free[core] = starts[core] + op_cost(node, len(on))
    finish[op] = max(free[core] for core in on)


def _stream_groups(graph: Graph, cores: int) -> dict[int, Cores]:
    work: dict[int, float] = {}
    for op in graph.order:
        node = graph.nodes[op]
        work[node.stream] = work.get(node.stream, 0.0) + block_cost(node) * node.blocks
    streams = sorted(work, key=lambda s: -work[s])
    if len(streams) >= cores:  # one core each, the heaviest streams spread first
        load = [0.0] * cores
        groups: dict[int, Cores] = {}
        for stream in streams:
            core = load.index(min(load))
            load[core] += work[stream]
            groups[stream] = (core,)
        return groups
    sizes = dict.fromkeys(streams, 1)
    for _ in range(cores - len(streams)):
        sizes[max(streams, key=lambda s: work[s] / sizes[s])] += 1
    groups, first = {}, 0
    for stream in streams:
        groups[stream] = tuple(range(first, first + sizes[stream]))
        first += sizes[stream]
    return groups


def _side_by_side(graph: Graph, placed: tuple[Cores, ...]) -> Placement:
    """Number the used cores from 0 in order of first use, and group the cores that follow the same list."""
    number: dict[int, int] = {}
    for op in graph.order:
        for core in placed[op]:
            number.setdefault(core, len(number))
    of = tuple(tuple(sorted(number[core] for core in on)) for on in placed)
    lists: dict[tuple[int, ...], list[int]] = {}
    for core in range(len(number)):
        lists.setdefault(tuple(op for op, on in enumerate(of) if core in on), []).append(core)
    teams = tuple(on if node.kernel.sync_all else () for node, on in zip(graph.nodes, of, strict=True))
    return Placement(len(number), of, teams, tuple(tuple(cores) for cores in lists.values()))
