"""plan.placement: a graph and a machine -> the cores of every op, copies of cheap ops, and the lanes they form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import PlanError
from ..model.graph import Graph
from ..model.node import Node
from ..model.options import EarlyStart, Options
from ..model.params import Kind
from .cost import Timeline, block_cost, estimate, op_cost
from .machine import Machine
from .replication import Copies, replicate
from .steps import Cores

WORTH_TEAMS = 0.8  # of the time without teams: they take more cores, whose loads delay the signals of others


@dataclass(frozen=True)
class Placement:
    cores: int  # launch size
    of: tuple[Cores, ...]  # per op
    teams: tuple[Cores, ...]  # per op: the cores that join its sync_all barriers; empty without sync_all
    lanes: tuple[Cores, ...]
    notes: tuple[str, ...] = ()
    copies: Mapping[int, Copies] = field(default_factory=dict)  # replicated op -> the cores of each copy
    core_teams: tuple[Cores, ...] = ()  # of the launch, where ops that start early have cores of their own


def place(graph: Graph, options: Options, machine: Machine) -> Placement:
    """One stream, or side by side where that is estimated to be faster."""
    cores = machine.cores
    for node in graph.nodes:
        if node.kernel.sync_all and node.blocks > cores:
            raise PlanError(
                f"super_kernel_scope {graph.name!r}: op {node.name!r} calls sync_all with {node.blocks} blocks, but "
                f"there are {cores} cores: its blocks could never all be resident. Lower block_dim or use more cores"
            )
    serial = _serial(graph, machine)
    if not options.stream_fusion:
        return _faster_of_teams(graph, _checked(graph, serial, options, machine), options, machine)
    candidates = (_grouped(graph, machine), _spread(graph, machine))
    side = min(candidates, key=lambda placed: estimate(graph, placed, machine, cores))
    times = estimate(graph, serial.of, machine, cores), estimate(graph, side, machine, cores)
    text = f"estimated {times[1] / 1e3:.1f} us side by side, {times[0] / 1e3:.1f} us in one stream"
    if times[0] <= times[1]:
        return replace(_checked(graph, serial, options, machine), notes=(f"stream-fusion: in one stream ({text})",))
    fused = _side_by_side(graph, side)
    return replace(fused, notes=(f"stream-fusion: {len(fused.lanes)} lanes ({text})",))


def _serial(graph: Graph, machine: Machine) -> Placement:
    """Every op from core 0 on; all cores follow one list. A few small blocks run in the group of core 0.

    Where small ops run last, those with at most half as many blocks as there are cores end at the last core.
    """
    size = min(machine.cores, max(node.blocks for node in graph.nodes))
    everything = tuple(range(size))
    last = machine.small_ops_last
    group = machine.group_of[size - 1] if last else 0
    near = tuple(core for core in machine.groups[group] if core < size) if machine.groups else ()
    widths = {
        width: everything[size - width :] if last and 2 * width <= size else everything[:width]
        for width in {min(size, node.blocks) for node in graph.nodes}
    }
    grouped = {width: near[-width:] if last else near[:width] for width in widths if width <= len(near)}
    of = tuple(
        (grouped if node.blocks in grouped and fits_group(node, machine) else widths)[min(size, node.blocks)]
        for node in graph.nodes
    )
    teams = tuple(
        () if not node.kernel.sync_all else everything if machine.feeds_sync_all else cores
        for node, cores in zip(graph.nodes, of, strict=True)
    )
    return Placement(size, of, teams, (everything,))


def fits_group(node: Node, machine: Machine) -> bool:
    """Whether an op is known to move so little that the cores of one group are as fast as cores of several."""
    sizes = [param.nbytes for param in node.kernel.params if param.kind is not Kind.SCALAR]
    return node.blocks == 1 or (sum(size or 0 for size in sizes) <= machine.near_bytes and None not in sizes)


def _checked(graph: Graph, placement: Placement, options: Options, machine: Machine) -> Placement:
    for node in graph.nodes:
        if not node.kernel.sync_all or options.feed_sync_all or not machine.feeds_sync_all:
            continue
        if node.blocks != placement.cores or node.dynamic:
            blocks = f"up to {node.blocks}" if node.dynamic else str(node.blocks)
            raise PlanError(
                f"super_kernel_scope {graph.name!r}: op {node.name!r} calls sync_all with {blocks} blocks in a launch "
                f"of {placement.cores} cores: the idle cores would never arrive. Set feed-sync-all=1, or "
                f"block_dim={placement.cores}"
            )
    return placement


def _with_copies(graph: Graph, placement: Placement, options: Options, machine: Machine) -> Placement:
    if options.early_start is EarlyStart.OFF and machine.near_needs:  # a barrier holds the cores of all groups
        return placement
    copies, notes = replicate(graph, placement.of, machine, placement.cores)
    of = list(placement.of)
    for op, found in copies.items():
        of[op] = tuple(core for copy in found for core in copy.cores)
    return replace(placement, of=tuple(of), copies=copies, notes=(*placement.notes, *notes))


def _faster_of_teams(graph: Graph, serial: Placement, options: Options, machine: Machine) -> Placement:
    """All ops on the same cores, or two teams where that is estimated to be faster; with copies of cheap ops."""
    plain = _with_copies(graph, serial, options, replace(machine, teams=()))
    meeting = any(node.kernel.sync_all for node in graph.nodes)  # whose blocks must all be resident
    if not machine.teams or meeting or options.early_start is not EarlyStart.FULL:
        return plain
    if not any(_is_wide(node, machine) for node in graph.nodes):
        return plain
    divided = _with_copies(graph, _in_teams(graph, machine), options, machine)
    if len(set[int]().union(*divided.of)) < divided.cores or _has_more_rounds(graph, divided, plain):
        return plain  # cores would be launched for nothing, or ops would run longer than early loads save
    times = [_estimated(graph, placed, machine) for placed in (divided, plain)]
    text = f"estimated {times[0] / 1e3:.1f} us with two teams, {times[1] / 1e3:.1f} us without"
    chosen = divided if times[0] < WORTH_TEAMS * times[1] else plain
    return replace(chosen, notes=(*chosen.notes, f"teams: {text}"))


def _has_more_rounds(graph: Graph, divided: Placement, plain: Placement) -> bool:
    """Whether the cores of an op run more blocks one after the other in teams than without."""
    ops = [node for node in graph.nodes if node.index not in divided.copies]
    return any(
        -(-node.blocks // len(divided.of[node.index])) > -(-node.blocks // len(plain.of[node.index])) for node in ops
    )


def _in_teams(graph: Graph, machine: Machine) -> Placement:
    """Wide ops that start early on the cores of the second team, small ops on those of the first."""
    small, wide = machine.teams
    widest = max(min(len(wide), node.blocks) for node in graph.nodes if _is_wide(node, machine))
    size = len(small) + widest
    everything = tuple(range(size))
    of = tuple(
        (wide if _is_wide(node, machine) else small if node.blocks <= len(small) else everything)[: node.blocks]
        for node in graph.nodes
    )
    met = tuple(cores if node.kernel.sync_all else () for node, cores in zip(graph.nodes, of, strict=True))
    return Placement(size, of, met, (everything,), core_teams=(small, wide[:widest]))


def _is_wide(node: Node, machine: Machine) -> bool:
    """Whether an op starts early and has blocks for more than half of the groups; a team has a core in each."""
    return bool(node.kernel.waits_inside) and 2 * node.blocks > len(machine.teams[0])


def _estimated(graph: Graph, placement: Placement, machine: Machine) -> float:
    """Estimated nanoseconds until the last op ends, with copies."""
    timeline = Timeline(graph, machine, placement.cores)
    for op in graph.order:
        starts = timeline.starts(op)
        if op in placement.copies:
            timeline.occupy_copies(op, [copy.cores for copy in placement.copies[op]], starts)
        else:
            timeline.occupy(op, placement.of[op], starts)
    return timeline.end


def _spread(graph: Graph, machine: Machine) -> tuple[Cores, ...]:
    """Each op on the cores that can start it first; among equals the cores of its producers."""
    timeline = Timeline(graph, machine, machine.cores)
    for op in graph.order:
        width = min(graph.nodes[op].blocks, machine.cores)
        home = {core for edge in graph.incoming[op] for core in timeline.placed[edge.producer]}
        starts = timeline.starts(op)
        chosen = sorted(range(machine.cores), key=lambda c: (starts[c], c not in home, c))[:width]
        timeline.occupy(op, tuple(sorted(chosen)), starts)
    return tuple(timeline.placed)


def _grouped(graph: Graph, machine: Machine) -> tuple[Cores, ...]:
    """A group of cores per stream in proportion to its work; a wide op takes all cores where it ends sooner so."""
    groups = _stream_groups(graph, machine)
    timeline = Timeline(graph, machine, machine.cores)
    everything = tuple(range(machine.cores))
    for op in graph.order:
        node, starts = graph.nodes[op], timeline.starts(op)
        narrow, wide = groups[node.stream][: node.blocks], everything[: node.blocks]
        ends = [max(starts[core] for core in on) + op_cost(node, len(on), machine.costs) for on in (narrow, wide)]
        crowded = node.kernel.sync_all and node.blocks > len(narrow)
        timeline.occupy(op, wide if crowded or ends[1] < ends[0] else narrow, starts)
    return tuple(timeline.placed)


def _stream_groups(graph: Graph, machine: Machine) -> dict[int, Cores]:
    work: dict[int, float] = {}
    for op in graph.order:
        node = graph.nodes[op]
        work[node.stream] = work.get(node.stream, 0.0) + block_cost(node, machine.costs) * node.blocks
    streams = sorted(work, key=lambda s: -work[s])
    if len(streams) >= machine.cores:  # one core each, the heaviest streams spread first
        load = [0.0] * machine.cores
        groups: dict[int, Cores] = {}
        for stream in streams:
            core = load.index(min(load))
            load[core] += work[stream]
            groups[stream] = (core,)
        return groups
    sizes = dict.fromkeys(streams, 1)
    for _ in range(machine.cores - len(streams)):
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
    ops_of: list[list[int]] = [[] for _ in number]
    for op, on in enumerate(of):
        for core in on:
            ops_of[core].append(op)
    lists: dict[tuple[int, ...], list[int]] = {}
    for core, ops in enumerate(ops_of):
        lists.setdefault(tuple(ops), []).append(core)
    teams = tuple(on if node.kernel.sync_all else () for node, on in zip(graph.nodes, of, strict=True))
    return Placement(len(number), of, teams, tuple(tuple(cores) for cores in lists.values()))
