"""targets.ascend.argument_layout: a graph -> the slots of its parameter block, the source of every offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...model.argument_layout import Layout, Role, Slot, SlotFields, number_slots, slots_of
from ...model.graph import Graph

SYNC_BASE = 0  # the first slot
Wanted = Iterator[tuple[str, SlotFields]]  # op, slot


@dataclass(frozen=True)
class ArgumentSlots:
    """The layout, asked by op and role."""

    layout: Layout
    first: tuple[int, ...]  # per op: its first slot

    @cached_property
    def _by_role(self) -> dict[tuple[str, Role], list[Slot]]:
        found: dict[tuple[str, Role], list[Slot]] = {}
        for slot in self.layout:
            found.setdefault((slot.op, slot.role), []).append(slot)
        return found

    def all(self, op: str, role: Role) -> list[Slot]:
        return self._by_role.get((op, role), [])

    def slot(self, op: str, role: Role) -> int:
        return self._by_role[op, role][0].index

    def find(self, role: Role) -> int | None:
        """A slot that belongs to no op."""
        found = self.all("", role)
        return found[0].index if found else None

    @cached_property
    def _words(self) -> dict[tuple[Role, str], int]:
        slots = [slot for slot in self.layout if slot.role in (Role.SEND, Role.RECV)]
        return {(slot.role, slot.source or ""): slot.index for slot in reversed(slots)}

    def event(self, role: Role, label: str) -> int:
        """The slot that holds the address of an external event's word."""
        return self._words[role, label]


def number_arguments(graph: Graph, prefetched: frozenset[int], workspace: bool, profiling: bool) -> ArgumentSlots:
    """Sync base; per op parameters, tiling words, sends, receives; then what the whole kernel uses."""
    layout = number_slots(_wanted(graph, prefetched, workspace, profiling))
    counts = (sum(1 for _ in slots_of(node)) + 2 * (node.index in prefetched) for node in graph.nodes)
    return ArgumentSlots(layout, tuple(accumulate(counts, initial=1))[:-1])


def _wanted(graph: Graph, prefetched: frozenset[int], workspace: bool, profiling: bool) -> Wanted:
    yield "", ("sync_base", Role.SYNC_BASE, None, None, 0, 0)
    for node in graph.nodes:
        slots = list(slots_of(node))
        if node.index in prefetched:  # as one more event sent, and one more received
            received = sum(1 for wanted in slots if wanted[1] is Role.RECV)
            slots.insert(len(slots) - received, ("prefetch", Role.PREFETCH, None, None, 0, 0))
            slots.append(("prefetched", Role.PREFETCHED, None, None, 0, 0))
        yield from ((node.name, wanted) for wanted in slots)
    if workspace:
        yield "", ("workspace", Role.WORKSPACE, None, None, 0, 0)
    if profiling:
        yield "", ("profiling", Role.PROFILING, None, None, 0, 0)
        yield "", ("task_id", Role.TASK_ID, None, None, 0, 0)
