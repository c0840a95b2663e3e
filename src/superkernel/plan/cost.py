"""plan.cost: ops and a placement -> an estimated time, only good enough to compare two placements."""

from __future__ import annotations

from ..model.graph import Graph
from ..model.node import Node
from .steps import Cores

CALL_NS = 200.0  # an op of unknown size
BYTES_PER_NS = 8.0  # what one core streams
SYNC_NS = 150.0  # one core learns of another core's progress


def block_cost(node: Node) -> float:
    """Estimated nanoseconds of one block."""
    moved = sum(param.nbytes or 0 for param in node.kernel.params)
    return CALL_NS + moved / node.blocks / BYTES_PER_NS


def op_cost(node: Node, width: int) -> float:
    """Estimated nanoseconds of one op on `width` cores."""
    return block_cost(node) * -(-node.blocks // width)


def start_of(
    graph: Graph, op: int, core: int, placements: list[Cores], finish: list[float], free: list[float]
) -> float:
    """When `core` could begin `op`: it is free and what the op needs has been finished and seen."""
    start = free[core]
    for edge in graph.incoming[op]:
        seen = finish[edge.producer]
        if any(other != core for other in placements[edge.producer]):
            seen += SYNC_NS
        start = max(start, seen)
    return start


def estimate(graph: Graph, placements: list[Cores], cores: int) -> float:
    """Estimated nanoseconds until the last op ends."""
    free = [0.0] * cores
    finish = [0.0] * len(graph.nodes)
    for op in graph.order:
        begin = {core: start_of(graph, op, core, placements, finish, free) for core in placements[op]}
        cost = op_cost(graph.nodes[op], len(placements[op]))
        for core, start in begin.items():
            free[core] = start + cost
        finish[op] = max(free[core] for core in placements[op])
    return max(free)
