"""targets.ascend.issue_order: a graph -> the order in which its ops are issued, with lanes or without, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.graph import Graph
from ...plan.cost import block_cost
from ...plan.machine import Costs
from .core_types import CoreClass
from .facts import facts_of
from .launch_shape import LaunchShape

_COSTS = Costs()


@dataclass(frozen=True)
class IssueOrder:
    ops: tuple[int, ...]
    lanes: bool  # cube and vector cores follow separate lists
    note: str = ""


def choose_order(graph: Graph, launch: LaunchShape, stream_fusion: bool) -> IssueOrder:
    """The list's order, or with stream-fusion=1 the one that keeps both classes busy, if that is not slower."""
    if not stream_fusion:
        return IssueOrder(graph.order, False)
    if not launch.mixed:
        only = launch.classes[0].value
        return IssueOrder(graph.order, False, f"stream-fusion: one lane, for all ops run on {only} cores")
    reordered = _greedy(graph)
    serial, side = _estimate(graph, graph.order), _estimate(graph, reordered)
    estimates = f"estimated {side / 1e3:.1f} us, {serial / 1e3:.1f} us in the order of the list"
    if serial < side:
        return IssueOrder(
            graph.order, True, f"stream-fusion: cube and vector lane in the order of the list ({estimates})"
        )
    return IssueOrder(reordered, True, f"stream-fusion: cube and vector lane ({estimates})")


def _costs(graph: Graph) -> list[float]:
    return [block_cost(node, _COSTS) for node in graph.nodes]


def _start(graph: Graph, op: int, free: dict[CoreClass, float], finish: Sequence[float]) -> float:
    classes = facts_of(graph.nodes[op].kernel).op_class.classes
    waited = (finish[edge.producer] + _COSTS.sync_ns for edge in graph.incoming[op])
    return max(*(free[core_class] for core_class in classes), *waited, 0.0)


def _estimate(graph: Graph, order: Sequence[int]) -> float:
    """Estimated nanoseconds until the last op ends, in this order."""
    costs, finish = _costs(graph), [0.0] * len(graph.nodes)
    free = dict.fromkeys(CoreClass, 0.0)
    for op in order:
        finish[op] = _start(graph, op, free, finish) + costs[op]
        for core_class in facts_of(graph.nodes[op].kernel).op_class.classes:
            free[core_class] = finish[op]
    return max(finish)


def _greedy(graph: Graph) -> tuple[int, ...]:
    """Of the ops at the head of each stream, the op that can begin first; of equals the first of the list."""
    rank = {op: place for place, op in enumerate(graph.order)}
    streams: dict[int, list[int]] = {}
    for op in graph.order:
        streams.setdefault(graph.nodes[op].stream, []).append(op)
    heads = dict.fromkeys(streams, 0)
    # An op that waits for another agent stays behind every op that may be what the agent waits for.
    notifiers = [op for op in graph.order if graph.nodes[op].notifies]
    done, notified = [False] * len(graph.nodes), 0
    costs, finish = _costs(graph), [0.0] * len(graph.nodes)
    free = dict.fromkeys(CoreClass, 0.0)
    order: list[int] = []
    while len(order) < len(graph.nodes):
        while notified < len(notifiers) and done[notifiers[notified]]:
            notified += 1
        first_pending = rank[notifiers[notified]] if notified < len(notifiers) else len(graph.nodes)
        candidates = []
        for stream, ops in streams.items():
            if heads[stream] == len(ops):
                continue
            op = ops[heads[stream]]
            held = graph.nodes[op].awaits and first_pending < rank[op]
            if not held and all(done[edge.producer] for edge in graph.incoming[op]):
                candidates.append((_start(graph, op, free, finish), rank[op], op))
        start, _, op = min(candidates)
        order.append(op)
        done[op] = True
        heads[graph.nodes[op].stream] += 1
        finish[op] = start + costs[op]
        for core_class in facts_of(graph.nodes[op].kernel).op_class.classes:
            free[core_class] = finish[op]
    return tuple(order)
