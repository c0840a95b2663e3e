"""targets.ascend.weights: a graph in an order of issue -> the weights that a copy engine can bring closer ahead."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.graph import Graph
from .rank_events import rank_labels

Weights = dict[int, tuple[str, ...]]  # op -> names


def weights_by_reader(graph: Graph, order: Sequence[int]) -> Weights:
    """The inputs that no op writes, each at the op that reads it first.

    What is read behind an external event of the same stream may be written outside while the kernel runs: it is none.
    Other ranks write windows only.
    """
    between_ranks = rank_labels(graph)
    found: Weights = {}
    seen: set[str] = set()
    awaited: set[int] = set()  # streams that have waited for an external event
    for op in order:
        node = graph.nodes[op]
        if not between_ranks.issuperset(node.awaits):
            awaited.add(node.stream)
        names = graph.weights_of(node)
        fresh = tuple(name for name in names if name not in seen)
        seen.update(names)
        if fresh and node.stream not in awaited:
            found[op] = fresh
    return found
