"""plan.cost: ops, a placement and a machine -> estimated times, only good enough to compare two placements."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.graph import Graph
from ..model.node import Node
from .machine import Costs, Machine
from .steps import Cores

RANK_SYNC = 4.0  # how much longer a sync between processes takes than one between cores
LOADED_SYNC = 3.0  # how much longer a sync takes while cores fetch inputs of later ops


def block_cost(node: Node, costs: Costs) -> float:
    """Estimated nanoseconds of one block."""
    moved = sum(param.nbytes or 0 for param in node.kernel.params)
    return costs.call_ns + moved / node.blocks / costs.bytes_per_ns


def op_cost(node: Node, width: int, costs: Costs) -> float:
    """Estimated nanoseconds of one op on `width` cores."""
    return block_cost(node, costs) * -(-node.blocks // width)


def copy_cost(graph: Graph, node: Node, width: int, costs: Costs) -> float:
    """The same for one of several copies: all of them fetch what other cores have just stored."""
    inputs = {name: param.nbytes or 0 for param, name in node.arguments() if param.kind.reads}
    fetched = sum(nbytes for name, nbytes in inputs.items() if graph.buffers[name].written)
    return op_cost(node, width, costs) + fetched / costs.shared_bytes_per_ns


def early_cost(graph: Graph, node: Node, machine: Machine) -> float:
    """Nanoseconds of a block's cost that pass while it waits: it fetches what no op of the list writes."""
    if not (machine.early_loads and node.kernel.waits_inside):
        return 0.0
    early = {name: param.nbytes or 0 for param, name in node.arguments() if param.name in node.kernel.read_before_wait}
    constant = sum(nbytes for name, nbytes in early.items() if not graph.buffers[name].written)
    return constant / node.blocks / machine.costs.bytes_per_ns


class Timeline:
    """When cores become free and ops end, as ops are placed one after the other in issue order."""

    def __init__(self, graph: Graph, machine: Machine, cores: int) -> None:
        self._graph, self._machine, self._cores = graph, machine, cores
        self.free = [0.0] * cores
        self.finish = [0.0] * len(graph.nodes)
        self.placed: list[Cores] = [()] * len(graph.nodes)
        self.copied: set[int] = set()
        self._early = [early_cost(graph, node, machine) for node in graph.nodes]
        # signals wait behind the inputs that are on their way
        self._sync_ns = machine.costs.sync_ns * (LOADED_SYNC if any(self._early) else 1.0)

    def inputs_ready(self, op: int) -> tuple[float, dict[int, float]]:
        """When any core can know that all inputs are stored; and the cores that know earlier, as the only producer."""
        sync_ns = self._sync_ns
        edges = self._graph.incoming[op]
        everywhere = max((self._seen(edge.producer) for edge in edges), default=0.0)
        if self._graph.nodes[op].waits_for_ranks:  # every core polls the ranks itself
            return everywhere + sync_ns * (RANK_SYNC - 1), {}
        sole = {self.placed[edge.producer][0] for edge in edges if len(self.placed[edge.producer]) == 1}
        earlier = {}
        for core in sole:
            earlier[core] = max(
                self.finish[edge.producer] + (0.0 if self.placed[edge.producer] == (core,) else sync_ns)
                for edge in edges
            )
        return everywhere, earlier

    def _seen(self, producer: int) -> float:
        """When the other cores know that an op is done; a copied op is done on every core that needs it."""
        return self.finish[producer] + (0.0 if producer in self.copied else self._sync_ns)

    def starts(self, op: int) -> list[float]:
        """Per core: when it could begin `op`."""
        everywhere, earlier = self.inputs_ready(op)
        return [max(free, earlier.get(core, everywhere)) for core, free in enumerate(self.free)]

    def occupy(self, op: int, on: Cores, starts: list[float]) -> None:
        """Place an op on cores that begin at their starts."""
        self._run(op, on, starts, op_cost(self._graph.nodes[op], len(on), self._machine.costs))
        self.placed[op] = on
        self.finish[op] = max(self.free[core] for core in on)

    def occupy_copies(self, op: int, copies: Sequence[Cores], starts: list[float]) -> None:
        """The same for an op that is computed once per group."""
        widths = {len(on) for on in copies}
        cost = {width: copy_cost(self._graph, self._graph.nodes[op], width, self._machine.costs) for width in widths}
        for on in copies:
            self._run(op, on, starts, cost[len(on)])
        self.placed[op] = tuple(core for on in copies for core in on)
        self.finish[op] = max(self.free[core] for core in self.placed[op])
        self.copied.add(op)

    def _run(self, op: int, on: Cores, starts: list[float], cost: float) -> None:
        """The first block of a core may fetch constant inputs while it waits for the others.

        Cores that come late share what the memory delivers among themselves.
        """
        fetching = self._early[op]
        late = sum(self.free[core] + fetching > starts[core] for core in on) / len(on) if fetching else 0.0
        for core in on:
            self.free[core] = max(starts[core], self.free[core] + fetching * late) + cost - fetching

    @property
    def end(self) -> float:
        return max(self.free)


def estimate(graph: Graph, placements: tuple[Cores, ...], machine: Machine, cores: int) -> float:
    """Estimated nanoseconds until the last op ends."""
    timeline = Timeline(graph, machine, cores)
    for op in graph.order:
        timeline.occupy(op, placements[op], timeline.starts(op))
    return timeline.end


class NearTimeline(Timeline):
    """The same where a sync within a group of cores costs less than one between groups."""

    def inputs_ready(self, op: int) -> tuple[float, dict[int, float]]:
        everywhere, earlier = super().inputs_ready(op)
        machine, edges = self._machine, self._graph.incoming[op]
        if self._graph.nodes[op].waits_for_ranks:
            return everywhere, earlier
        group_of, near_ns = machine.group_of, machine.costs.near_sync_ns
        groups = {edge.producer: {group_of[core] for core in self.placed[edge.producer]} for edge in edges}
        for index, group in enumerate(machine.groups):
            if {index} not in groups.values():
                continue
            seen = max(
                self.finish[producer] + (near_ns if found == {index} else self._sync_ns)
                for producer, found in groups.items()
            )
            for core in group:
                earlier[core] = min(earlier.get(core, everywhere), seen)
        return everywhere, earlier


def estimate_near(graph: Graph, placements: tuple[Cores, ...], machine: Machine, cores: int) -> float:
    """Estimated nanoseconds until the last op ends, with cheaper syncs within groups."""
    timeline = NearTimeline(graph, machine, cores)
    for op in graph.order:
        timeline.occupy(op, placements[op], timeline.starts(op))
    return timeline.end
