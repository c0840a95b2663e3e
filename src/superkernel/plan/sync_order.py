"""plan.sync_order: in which order the syncs of a launch are chosen; the encoding of a sync comes from the subclass.

Each op polls its events, has its tiling requested and selected, is called, and notifies. A tiling is requested as soon
as the last op is done whose outputs it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from ..model.graph import Graph
from ..model.hazards import Edge, Hazard

Agent = TypeVar("Agent")
AT_ENTRY = -1  # in place of an op: before the first


class SyncOrder(ABC, Generic[Agent]):
    """Positions are numbers that grow along the issue order; what they count is up to the encoding."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.graph, self.issue_order = graph, order
        self.stream_ends: dict[int, dict[Agent, int]] = {}  # stream -> agent -> position of its last op
        self.at_send: dict[int, dict[Agent, int]] = {}  # sending op -> a copy of the above

    def choose(self) -> None:
        requests = self._early_requests()
        for dynamic in requests.get(AT_ENTRY, ()):
            self._request(dynamic, AT_ENTRY)
        for op in self.issue_order:
            node = self.graph.nodes[op]
            self._poll(op)
            if node.dynamic:
                if node.awaits:  # what the tiling reads may be what the event announces
                    self._request(op, op)
                self._select(op)
            self._call(op)
            if node.notifies:
                self._notify(op)
            for dynamic in requests.get(op, ()):
                self._request(dynamic, op)

    def _early_requests(self) -> dict[int, list[int]]:
        """Op, or AT_ENTRY -> the dynamic ops that can be requested behind it: it is their last producer."""
        rank = {op: place for place, op in enumerate(self.issue_order)}
        found: dict[int, list[int]] = {}
        for op in self.issue_order:
            if self.graph.nodes[op].dynamic and not self.graph.nodes[op].awaits:
                producers = [edge.producer for edge in self.graph.incoming[op] if feeds_tiling(edge)]
                found.setdefault(max(producers, key=rank.__getitem__, default=AT_ENTRY), []).append(op)
        return found

    def _end(self, op: int, agents: Iterable[Agent], position: int) -> None:
        """The op is done on its agents: a send waits for it and for all earlier ops of its stream."""
        ends = self.stream_ends.setdefault(self.graph.nodes[op].stream, {})
        ends.update(dict.fromkeys(agents, position))
        if self.graph.nodes[op].sends:
            self.at_send[op] = dict(ends)

    @abstractmethod
    def _poll(self, op: int) -> None:
        """One core polls each external event of the op, unless a core has for an earlier op."""

    @abstractmethod
    def _request(self, op: int, behind: int) -> None:
        """One core knows that the producers of the inputs are done, then asks for the tiling; behind another op, at the
        entry, or behind its own events."""

    @abstractmethod
    def _select(self, op: int) -> None:
        """The cores of the op see its lock, and know what the requesting core knew."""

    @abstractmethod
    def _call(self, op: int) -> None:
        """The op is called once its cores know that what it needs is stored."""

    @abstractmethod
    def _notify(self, op: int) -> None:
        """One core knows that the op and all earlier ones of its stream are done, and sets the op's external events."""


def feeds_tiling(edge: Edge) -> bool:
    """The tiling reads what the op reads, and may rely on the op's events."""
    return any(reason.hazard in (Hazard.READ_AFTER_WRITE, Hazard.EVENT) for reason in edge.reasons)


def raise_to(positions: dict[Agent, int], others: Mapping[Agent, int]) -> None:
    """Raises each agent to at least the position that `others` gives it."""
    for agent, position in others.items():
        positions[agent] = max(position, positions.get(agent, -1))
