"""plan.work: a graph and the cores that are available -> how many of them its estimated work deserves.

The bytes that an op moves are known, its arithmetic is not. So the times are estimated twice, for kernels that stream
and for kernels that compute long on every byte. Where both estimates prefer one core, or both a team, that decides.
Otherwise the plan is for a team, and the first launches measure whether one core alone is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..model.graph import Graph
from ..model.options import Options
from ..model.params import Kind
from .cost import op_cost
from .machine import Costs, Machine

_STREAMING_CALL_NS = 20.0
_COMPUTING_BYTES_PER_NS = 1.0


@dataclass(frozen=True)
class CoreChoice:
    """How many cores a plan is made for."""

    cores: int
    measures_alone: bool = False  # the first launches also try one core alone
    reason: str = ""

    @property
    def note(self) -> str:
        """What the page of the plan says."""
        return f"cores: {self.reason}" if self.reason else ""


def choose_cores(graph: Graph, options: Options, machine_of: Callable[[int], Machine], available: int) -> CoreChoice:
    """As many cores as the estimated work deserves, at most `available` and the blocks that can run at once."""
    blocks = [node.blocks for node in graph.nodes]
    most = min(available, sum(blocks) if options.stream_fusion else max(blocks))
    if most == 1:
        return CoreChoice(available)
    if any(node.kernel.sync_all for node in graph.nodes):
        return CoreChoice(available)  # its launch size is a matter of correctness
    if any(node.dynamic for node in graph.nodes) or graph.events:
        return CoreChoice(available, reason="dynamic ops and external events take unknown time")
    if any(
        param.nbytes is None for node in graph.nodes for param in node.kernel.params if param.kind is not Kind.SCALAR
    ):
        return CoreChoice(available, reason="the sizes of untyped parameters are unknown")
    sizes = [size for size in (2**exponent for exponent in range(most.bit_length())) if size < most] + [most]
    streaming, computing = (
        {size: _time(graph, options, replace(machine_of(size), costs=costs(machine_of(size).costs))) for size in sizes}
        for costs in (_when_streaming, _when_computing)
    )
    least, most_work = (min(times, key=lambda size: (times[size], size)) for times in (streaming, computing))
    team = max(least, most_work)
    text = f"{_span(streaming[1], computing[1])} on 1 core"
    if team == 1:
        return CoreChoice(1, reason=f"estimated {text}: a team costs more")
    text = f"{text}, {_span(streaming[team], computing[team])} on {team}"
    if least == 1:
        return CoreChoice(team, measures_alone=True, reason=f"estimated {text}: the first launches measure both")
    return CoreChoice(team, reason=f"estimated {text}")


def _when_streaming(costs: Costs) -> Costs:
    return replace(costs, call_ns=_STREAMING_CALL_NS)


def _when_computing(costs: Costs) -> Costs:
    return replace(costs, bytes_per_ns=_COMPUTING_BYTES_PER_NS)


def _time(graph: Graph, options: Options, machine: Machine) -> float:
    """Estimated nanoseconds of one launch, with the start of a team and the syncs of one stream."""
    cores, costs = machine.cores, machine.costs
    if cores == 1:
        return sum(op_cost(node, 1, costs) for node in graph.nodes)
    if options.stream_fusion:  # side by side, at best without a wait
        return costs.team_ns + sum(op_cost(node, 1, costs) for node in graph.nodes) / cores
    times = (op_cost(node, min(cores, node.blocks), costs) for node in graph.nodes)
    waits = sum(bool(edges) for edges in graph.incoming)
    return costs.team_ns + sum(times) + waits * costs.sync_ns


def _span(least_ns: float, most_ns: float) -> str:
    return f"{least_ns / 1e3:.1f} to {most_ns / 1e3:.1f} us"
