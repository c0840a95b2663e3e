"""plan.replication: a placement -> the cheap ops that every group of cores computes for itself, into private copies.

A sync costs more than a small op. An op whose result many cores need is then computed by each of them from the same
inputs by the same code, so that its consumers find a copy of their own and wait for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from ..model.graph import Graph
from ..model.hazards import Hazard
from ..model.node import Node
from ..model.params import Kind
from .cost import Timeline, copy_cost, op_cost
from .machine import Machine
from .steps import Cores

MOST_BYTES = 64 * 1024  # of one output


@dataclass(frozen=True)
class Copy:
    """One of the runs of a replicated op, for one group of cores. Copy 0 writes the buffer itself."""

    cores: Cores  # that compute it: block b on cores[b % len(cores)]
    readers: Cores  # the only cores that may read it


Copies = tuple[Copy, ...]


def replicate(
    graph: Graph, placements: tuple[Cores, ...], machine: Machine, cores: int
) -> tuple[dict[int, Copies], tuple[str, ...]]:
    """Ops that are estimated to be worth copying, walking the list in issue order; and why."""
    if not machine.replicates or cores == 1:
        return {}, ()
    writers = count_writers(graph)
    candidates = {op for op in graph.order if replicable(graph, graph.nodes[op], writers, machine.near_needs)}
    if machine.near_needs:  # no group computes all of an op that has blocks for several groups
        largest = max(map(len, machine.groups))
        candidates = {op for op in candidates if graph.nodes[op].blocks <= largest}
    readers = _readers(graph, placements, candidates)
    candidates = {
        op
        for op in candidates
        if (machine.near_needs or readers[op].issuperset(placements[op])) and len(placements[op]) < len(readers[op])
    }
    if not candidates:
        return {}, ()
    timeline, plain = Timeline(graph, machine, cores), Timeline(graph, machine, cores)
    copies: dict[int, Copies] = {}
    for op in graph.order:
        plain.occupy(op, placements[op], plain.starts(op))
        starts = timeline.starts(op)
        if op in candidates:
            wanted = _copies(graph.nodes[op], readers[op], placements[op], machine)
            if len(wanted) > 1 and _pays(graph, op, placements[op], wanted, starts, machine):
                copies[op] = wanted
                timeline.occupy_copies(op, [copy.cores for copy in wanted], starts)
                continue
        timeline.occupy(op, placements[op], starts)
    if not copies:
        return {}, (f"replicated: none of {len(candidates)} small ops; a sync is cheaper than fetching its inputs",)
    times = f"estimated {timeline.end / 1e3:.1f} us, {plain.end / 1e3:.1f} us without"
    if timeline.end >= plain.end:
        return {}, (f"replicated: none of {len(candidates)} small ops ({times})",)
    readers = _readers(graph, placements, copies.keys())  # of those that were chosen
    copies = {op: _copies(graph.nodes[op], readers[op], placements[op], machine) for op in copies}
    used = {core for op, cores in enumerate(placements) if op not in copies for core in cores}
    if len(used.union(*(copy.cores for found in copies.values() for copy in found))) < cores:
        return {}, ()  # cores would be launched for nothing
    names = ", ".join(graph.nodes[op].name for op in copies)
    return copies, (f"replicated, one copy for each group of cores that reads it: {names} ({times})",)


def _pays(graph: Graph, op: int, once_on: Cores, copies: Copies, starts: list[float], machine: Machine) -> bool:
    """Whether the last reader has its copy before a sync could show it the single result."""
    node, costs = graph.nodes[op], machine.costs
    once = max(starts[core] for core in once_on) + op_cost(node, len(once_on), costs) + costs.sync_ns
    ends = []
    cost = copy_cost(graph, node, len(copies[0].cores), costs)  # all copies have as many cores
    for copy in copies:
        begin = max(starts[core] for core in copy.cores)
        near_ns = costs.near_sync_ns if copy.readers != copy.cores or len(copy.cores) > 1 else 0.0
        ends.append(begin + cost + near_ns)
    return max(ends) < once


def _copies(node: Node, needed: set[int], once_on: Cores, machine: Machine) -> Copies:
    """One copy per group of the cores that need the result; in a machine with teams, on the team of the op."""
    groups: dict[int, list[int]] = {}
    for core in sorted(needed):
        groups.setdefault(machine.group_of[core], []).append(core)
    computing = groups
    team = next((frozenset(team) for team in machine.teams if team[: len(once_on)] == once_on), frozenset[int]())
    if team:
        computing = {number: sorted(team.intersection(machine.groups[number])) for number in groups}
    width = min(node.blocks, *map(len, computing.values()))  # the same in all copies
    chosen = {
        number: cores[-width:] if machine.small_ops_last else cores[:width] for number, cores in computing.items()
    }
    return tuple(
        Copy(tuple(chosen[number]), tuple(sorted({*chosen[number], *group}))) for number, group in groups.items()
    )


def _readers(graph: Graph, placements: tuple[Cores, ...], copied: Collection[int]) -> dict[int, set[int]]:
    """Op -> the cores that read what it writes, if the ops in `copied` run wherever their own readers are."""
    readers: dict[int, set[int]] = {op: set() for op in graph.order}
    consumers: dict[int, list[int]] = {op: [] for op in graph.order}
    for edge in graph.edges:
        if any(reason.hazard is Hazard.READ_AFTER_WRITE for reason in edge.reasons):
            consumers[edge.producer].append(edge.consumer)
    for op in reversed(graph.order):
        for consumer in consumers[op]:
            readers[op] |= readers[consumer] if consumer in copied else set(placements[consumer])
        if op in copied:
            readers[op].add(placements[op][0])  # the buffer itself is written as well
    return readers


def count_writers(graph: Graph) -> Counter[str]:
    """Buffer -> how many ops write it."""
    written = ({name for param, name in node.arguments() if param.kind.writes} for node in graph.nodes)
    return Counter(name for names in written for name in names)


def replicable(graph: Graph, node: Node, writers: Counter[str], may_wait: bool) -> bool:
    """P19: no in-place, external or random effect; outputs that are small and that no other op writes.

    may_wait: also one that waits inside.
    """
    kernel = node.kernel
    waits = kernel.waits_inside and not may_wait
    effects = kernel.sync_all or waits or kernel.signals_inside or kernel.may_fail is not False
    if not kernel.pure or effects or node.dynamic or node.op.send or node.op.recv or node.ranks:
        return False
    arguments = list(node.places())
    inputs = {place.name for param, place in arguments if param.kind is Kind.IN}
    outputs = {place.name for param, place in arguments if param.kind is Kind.OUT}
    if any(param.kind in (Kind.INOUT, Kind.WORKSPACE) for param, _ in arguments) or inputs & outputs:
        return False
    if any(place.offset for param, place in arguments if param.kind is Kind.OUT):
        return False
    buffers = [graph.buffers[name] for name in outputs]
    small = all(b.nbytes is not None and b.nbytes <= MOST_BYTES and not b.needs_value for b in buffers)
    return bool(outputs) and small and all(writers[name] == 1 for name in outputs)
