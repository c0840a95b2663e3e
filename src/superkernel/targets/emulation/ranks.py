"""targets.emulation.ranks: the graphs of all ranks -> which rank each is, and what they share, checked.

Ranks pair the collectives of a group by their order in it, whatever each rank calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superkernel.errors import LaunchError, shown
from superkernel.model.collective_digest import collective_digest
from superkernel.model.collectives import Collective
from superkernel.model.graph import Graph
from superkernel.model.ranks import RankGroup

Meeting = tuple[str, int]  # a group, and the number of a collective in it


@dataclass(frozen=True)
class EmulatedRanks:
    """The global rank of each graph, and how many bytes the window of each meeting has."""

    ranks: tuple[int, ...]
    windows: Mapping[Meeting, int]


def meetings(graph: Graph) -> Iterator[tuple[Meeting, Collective]]:
    """The collectives of a graph, numbered inside each group."""
    counts: dict[str, int] = {}
    for collective in graph.collectives:
        name = collective.group.name
        counts[name] = number = counts.get(name, -1) + 1
        yield (name, number), collective


def check_ranks(graphs: Sequence[Graph]) -> EmulatedRanks:
    """Every rank of every group has one graph, and all say the same of its collectives; else a LaunchError."""
    ranks = tuple(_global_rank(graph) for graph in graphs)
    for place, rank in enumerate(ranks):
        if rank in ranks[:place]:
            first = graphs[ranks.index(rank)].name
            raise LaunchError(f"super kernels {shown(first)} and {shown(graphs[place].name)} are both of rank {rank}")
    by_rank = dict(zip(ranks, graphs, strict=True))
    for graph in graphs:
        for group in dict.fromkeys(collective.group for collective in graph.collectives):
            for rank in group.ranks:
                _check_alike(graph, by_rank.get(rank), group, rank)
    windows = {meeting: _window_bytes(graph, each) for graph in graphs for meeting, each in meetings(graph)}
    return EmulatedRanks(ranks, windows)


def _global_rank(graph: Graph) -> int:
    where = f"super_kernel_scope {shown(graph.name)}: "
    ranks = {collective.group.global_rank for collective in graph.collectives}
    if not ranks:
        raise LaunchError(f"{where}it has no collective, and is no rank of a group: emulate it alone")
    if len(ranks) > 1:
        spelled = ", ".join(map(str, sorted(ranks)))
        raise LaunchError(f"{where}its groups say that it is of the ranks {spelled}; it can be one only")
    return ranks.pop()


def _check_alike(graph: Graph, other: Graph | None, group: RankGroup, rank: int) -> None:
    where = f"super_kernel_scope {shown(graph.name)}: collectives of group {group}: "
    if other is None:
        raise LaunchError(f"{where}there is no super kernel of rank {rank}; pass one for each rank")
    theirs = {collective.group for collective in other.collectives if collective.group.name == group.name}
    if any(found.ranks != group.ranks for found in theirs):
        raise LaunchError(f"{where}for rank {rank} the group is {next(iter(theirs))}")
    here, there = collective_digest(graph, group.name), collective_digest(other, group.name)
    if difference := here.difference(there):
        raise LaunchError(f"{where}rank {rank} ({shown(other.name)}) says otherwise: {difference}")


def _window_bytes(graph: Graph, collective: Collective) -> int:
    nbytes = graph.buffers[collective.window].nbytes
    if nbytes is None:
        raise LaunchError(
            f"super_kernel_scope {shown(graph.name)}: the window {shown(collective.window)} has no type; write it as "
            "out:window:uint8[bytes] where an op stores into it"
        )
    return nbytes
