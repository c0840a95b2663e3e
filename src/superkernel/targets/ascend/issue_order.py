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
        note = f"stream-fusion: cube and vector lane in the order of the list ({estimates})"
        return IssueOrder(graph.order, True, note)
    return IssueOrder(reordered, True, f"stream-fusion: cube and vector lane ({estimates})")


class _ClassTimeline:
    """When the classes of cores become free and ops end, as ops are issued one after the other."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.finish = graph, [0.0] * len(graph.nodes)
        self.classes = [facts_of(node.kernel).op_class.classes for node in graph.nodes]
        self.free = dict.fromkeys(CoreClass, 0.0)

    def start(self, op: int) -> float:
        waited = (self.finish[edge.producer] + _COSTS.sync_ns for edge in self.graph.incoming[op])
        return max(*(self.free[core_class] for core_class in self.classes[op]), *waited, 0.0)

    def issue(self, op: int) -> None:
        self.finish[op] = self.start(op) + block_cost(self.graph.nodes[op], _COSTS)
        self.free |= dict.fromkeys(self.classes[op], self.finish[op])


def _estimate(graph: Graph, order: Sequence[int]) -> float:
    """Estimated nanoseconds until the last op ends, in this order."""
    timeline = _ClassTimeline(graph)
    for op in order:
        timeline.issue(op)
    return max(timeline.finish)


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
    timeline, order = _ClassTimeline(graph), list[int]()
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
                candidates.append((timeline.start(op), rank[op], op))
        _, _, op = min(candidates)
        order.append(op)
        done[op] = True
        heads[graph.nodes[op].stream] += 1
        timeline.issue(op)
    return tuple(order)
