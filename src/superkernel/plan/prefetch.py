"""plan.prefetch: a graph and its placement -> the steps that pull inputs of ops towards a cache before they are read.

Caches of cores: a core asks for the constant inputs of its next op. A cache of all cores: a stream of the inputs of all
ops, in issue order, runs ahead of the op that begins by at most a window of bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate

from ..model.graph import Graph
from ..model.node import Node
from ..model.options import Options
from ..model.params import Kind
from .machine import Machine
from .placement import Placement
from .steps import PrefetchWeights

WEIGHT_BUDGET = 256 * 1024  # bytes per core with prefetch-weights=1: a quarter of a common second-level cache
LEAST_STREAMED = 2048  # bytes of a constant input
LEAST_CHANGED = 64 * 1024  # bytes of one that ops change in part; a smaller one is rather all new
Prefetches = dict[int, list[PrefetchWeights]]  # rank in issue order -> steps before the waits of that op


def prefetch_steps(
    graph: Graph, placement: Placement, options: Options, machine: Machine, staged: Collection[str] = ()
) -> Prefetches:
    """`staged`: inputs that are copied ahead into the memory of the cores."""
    if not options.prefetch_weights:
        return {}
    if machine.prefetch_window:
        return _streamed(graph, placement, machine, staged)
    return _one_op_ahead(graph, placement, options)


def _one_op_ahead(graph: Graph, placement: Placement, options: Options) -> Prefetches:
    """Before the waits of an op: its own weights, and those of the op behind it where this is replicated, for then the
    op behind it waits for nothing."""
    found: Prefetches = {}
    budget = WEIGHT_BUDGET if options.prefetch_weights == 1 else options.prefetch_weights
    for rank, op in enumerate(graph.order):
        if names := graph.weights_of(graph.nodes[op]):
            ahead = rank
            while ahead and graph.order[ahead - 1] in placement.copies:
                ahead -= 1
            found.setdefault(ahead, []).append(PrefetchWeights(placement.of[op], op, names, budget))
    return found


def _streamed(graph: Graph, placement: Placement, machine: Machine, staged: Collection[str]) -> Prefetches:
    """An input at place p of the stream may be asked for when an op begins whose own inputs are at p - window or later.

    The first core of every group asks, for a part of its own. Staged inputs have a place, because they pass through the
    cache, but are not asked for a second time: that would only slow down what the ops between them read.
    """
    firsts = tuple(group[0] for group in machine.groups if group[0] < placement.cores) or (0,)
    inputs = list(_inputs(graph))
    begins = [0] * (len(graph.order) + 1)  # by rank: the place in the stream of the inputs of an op
    for rank, _, nbytes in inputs:
        begins[rank + 1] += nbytes
    begins = list(accumulate(begins))
    found: Prefetches = {}
    place = opening = 0  # of the input in the stream; the op whose begin lets the next bytes be asked for
    for rank, name, nbytes in inputs:
        asked, end = place, place + nbytes
        while asked < end and opening <= rank:
            until = min(end, begins[opening] + machine.prefetch_window)
            if until > asked and name not in staged:
                budget = -(-(until - asked) // len(firsts))
                part = asked - place, until - place
                step = PrefetchWeights(firsts, graph.order[rank], (name,), budget, part)
                found.setdefault(opening, []).append(step)
            asked = max(asked, until)
            if asked < end:
                opening += 1
        place = end
    return found


def _inputs(graph: Graph) -> Iterator[tuple[int, str, int]]:
    """Rank of an op, name and size of an input whose contents come from outside of the launch, in issue order.

    That are the constant ones, and those that ops change in part, such as caches: an op that is not pure may leave some
    of its output as it was. What lies in a cache of all cores stays coherent, whatever is stored there later.
    """
    replaced = {
        name
        for node in graph.nodes
        for param, name in node.arguments()
        if param.kind.writes and (node.kernel.pure or param.kind is Kind.WORKSPACE)
    }
    changed = {name for node in graph.nodes for param, name in node.arguments() if param.kind.writes}
    seen: set[str] = set()
    for rank, op in enumerate(graph.order):
        for name in _read_names(graph.nodes[op]):
            nbytes = graph.buffers[name].nbytes or 0
            least = LEAST_CHANGED if name in changed else LEAST_STREAMED
            if name not in replaced and name not in seen and nbytes >= least:
                seen.add(name)
                yield rank, name, nbytes


def _read_names(node: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for param, name in node.arguments() if param.kind in (Kind.IN, Kind.INOUT)))
