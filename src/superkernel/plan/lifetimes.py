"""plan.lifetimes: a plan in; its MemoryPlan out, by the order that its syncs enforce.

Two buffers share bytes if every access to one of them happens before every access to the other, on all cores; the
order of the list alone says nothing of other cores. Buffers that all their ops touch by @block, in equal parts on
equal cores, may also share one place: each core reuses its own part in its own order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import or_
from typing import Protocol

from ..model.graph import Graph
from .memory import MemoryPlan, PlacedBuffer, Request, arrange
from .plan import Plan
from .verify.agents import Clocks
from .verify.vector_clocks import ClassAgents, walk


def with_memory(plan: Plan) -> Plan:
    """The plan with a place in the arena for every inner name of its graph."""
    if not plan.graph.inner:
        return plan
    return replace(plan, memory=plan_memory(plan))


def plan_memory(plan: Plan) -> MemoryPlan:
    names, order = plan.graph.inner, op_order(plan)
    users, divided = accesses(plan.graph, names), partitions(plan, names)
    return place(names, [plan.graph.buffers[name].nbytes or 0 for name in names], users, order, list(divided))


def place(
    names: Sequence[str],
    sizes: Sequence[int],
    users: Sequence[Sequence[Access]],
    order: Unfinished,
    divided: Sequence[Hashable],
) -> MemoryPlan:
    """The arena of buffers that come in the order of their first access; `divided` are their partitions."""
    requests = [Request(*fields) for fields in zip(sizes, _firsts(users), _lasts(users), divided, strict=True)]
    arrangement = arrange(requests, conflicts(users, order), touched_together(users))
    placed = map(PlacedBuffer, names, arrangement.offsets, sizes)
    return MemoryPlan(tuple(placed), arrangement.arena, arrangement.peak, sum(sizes))


def op_order(plan: Plan) -> OpOrder:
    """The order that the syncs of a plan enforce; what is wrong with them is for validate to report."""
    agents = ClassAgents(plan)
    return OpOrder(plan.graph, walk(plan, agents, lambda which, message: None), agents)


Access = tuple[int, bool]  # rank of the op in the serial order; whether it touches the buffer before its wait point


def accesses(graph: Graph, names: Sequence[str]) -> list[list[Access]]:
    """Per name: the ops that touch it, in serial order."""
    found: dict[str, dict[int, bool]] = {name: {} for name in names}
    for rank, op in enumerate(graph.order):
        node = graph.nodes[op]
        for param, name in node.arguments():
            if name in found:
                early = param.name in node.kernel.read_before_wait
                found[name][rank] = found[name].get(rank, False) or early
    return [list(found[name].items()) for name in names]


def _firsts(users: Sequence[Sequence[Access]]) -> Iterator[int]:
    return (used[0][0] for used in users)


def _lasts(users: Sequence[Sequence[Access]]) -> Iterator[int]:
    return (used[-1][0] for used in users)


class Unfinished(Protocol):
    def unfinished(self, rank: int, early: bool) -> int:
        """The bit set of ops of which some core may not have finished when this op begins; early: before its wait."""


class OpOrder:
    """Which ops are over, on all of their cores, when another op begins or passes its wait point. Ops are ranks."""

    def __init__(self, graph: Graph, clocks: Clocks, agents: ClassAgents) -> None:
        self._order, self._clocks, self._agents = graph.order, clocks, agents
        ends: dict[int, list[tuple[int, int]]] = {}  # class -> position behind a call, rank of its op
        for rank, op in enumerate(graph.order):
            for core_class in agents.of(op):
                ends.setdefault(core_class, []).append((clocks.ends.get((op, core_class), 1 << 62), rank))
        self._positions: dict[int, list[int]] = {}
        self._unfinished: dict[int, list[int]] = {}  # class -> bit sets: the ops behind the first n positions
        for core_class, found in ends.items():
            found.sort()
            self._positions[core_class] = [position for position, _ in found]
            behind = [0, *accumulate((1 << rank for _, rank in reversed(found)), or_)]
            self._unfinished[core_class] = behind[::-1]

    def unfinished(self, rank: int, early: bool) -> int:
        op = self._order[rank]
        known = self._clocks.begins if early else self._clocks.bodies
        clocks = [known[op, core_class] for core_class in self._agents.of(op) if (op, core_class) in known]
        if len(clocks) < len(self._agents.of(op)):
            return (1 << len(self._order)) - 1  # never called somewhere: P1 says so
        least = clocks[0] if len(clocks) == 1 else tuple(map(min, *clocks))
        late = 0
        for core_class, positions in self._positions.items():
            late |= self._unfinished[core_class][bisect_right(positions, least[core_class])]
        return late


def conflicts(users: Sequence[Sequence[Access]], order: Unfinished) -> list[int]:
    """Per buffer: the bit set of the buffers of which some access is not ordered with all of its own.

    The buffers come in the order of their first access.
    """
    count = max((used[-1][0] for used in users), default=-1) + 1
    touched = [0] * count  # per op: its buffers
    for i, used in enumerate(users):
        for rank, _ in used:
            touched[rank] |= 1 << i
    later = [*accumulate(reversed(touched), or_)][::-1]  # per op: the buffers of it and of all later ops
    touched_by = RangeUnion(touched)
    live: dict[Access, int] = {}  # the buffers that are not over at an access
    found = [0] * len(users)
    for i, used in enumerate(users):
        for access in used:
            if access not in live:
                rank, early = access
                live[access] = later[rank]
                for begin, end in runs(order.unfinished(rank, early) & ((1 << rank) - 1)):
                    live[access] |= touched_by.union(begin, end)
            found[i] |= live[access]
        found[i] &= (1 << i) - 1  # a buffer that begins later cannot be over before
    return both_ways(found)


def both_ways(earlier: Sequence[int]) -> list[int]:
    """`earlier[i]`: smaller numbers that are in relation with i. All numbers that are in relation with i."""
    begins: list[int] = [0] * (len(earlier) + 1)
    ends: list[int] = [0] * (len(earlier) + 1)
    for i, mask in enumerate(earlier):
        for begin, end in runs(mask):
            begins[begin] |= 1 << i
            ends[end] |= 1 << i
    found, current = [], 0
    for i, mask in enumerate(earlier):
        current = (current & ~ends[i]) | begins[i]  # a run that ends here does not begin here
        found.append(mask | current)
    return found


class RangeUnion:
    """Bit sets in; the union of any range of them out, in constant time: a sparse table."""

    def __init__(self, sets: Sequence[int]) -> None:
        self._levels = [list(sets)]  # level n: unions of 2**n neighbours
        width = 1
        while 2 * width <= len(sets):
            below = self._levels[-1]
            self._levels.append([below[i] | below[i + width] for i in range(len(below) - width)])
            width *= 2

    def union(self, begin: int, end: int) -> int:
        level = (end - begin).bit_length() - 1
        return self._levels[level][begin] | self._levels[level][end - (1 << level)]


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a bit set, as begin and end."""
    while mask:
        lowest = mask & -mask
        rest = mask & (mask + lowest)
        run = mask ^ rest
        yield lowest.bit_length() - 1, run.bit_length()
        mask = rest


def partitions(plan: Plan, names: Sequence[str]) -> Iterator[Hashable]:
    """Per name: how it is divided, if every op that touches it promises @block in equal parts on equal cores."""
    graph = plan.graph
    divided: dict[str, set[Hashable]] = {name: set() for name in names}
    for node in graph.nodes:
        for param, name in node.arguments():
            if name not in divided:
                continue
            buffer = graph.buffers[name]
            whole = param.block and param.dtype == buffer.dtype and param.shape == buffer.shape
            apart = whole and not node.dynamic and node.index not in plan.copies
            divided[name].add((buffer.dtype, buffer.shape, node.blocks, plan.placements[node.index]) if apart else None)
    for name in names:
        yield next(iter(divided[name])) if len(divided[name]) == 1 else None


def touched_together(users: Sequence[Sequence[Access]]) -> list[list[int]]:
    """Per op: its buffers."""
    by_op: dict[int, list[int]] = {}
    for i, used in enumerate(users):
        for rank, _ in used:
            by_op.setdefault(rank, []).append(i)
    return list(by_op.values())
