"""targets.ascend.argument_layout: a graph -> the slots of its parameter block, the source of every offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...model.argument_layout import Layout, Role, Slot, SlotFields, number_slots, slots_of
from ...model.graph import Graph
from ...model.node import Node

ORDER_EVENT = "order of stream "  # the beginning of event names that stand for nothing but stream order
SENDS, RECEIVES = (Role.SEND, Role.INNER_SEND), (Role.RECV, Role.INNER_RECV)
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

    def of_events(self, op: str, roles: tuple[Role, Role]) -> list[int]:
        """The slots of all events that an op sends, or receives, in the order of its list."""
        return sorted(slot.index for role in roles for slot in self.all(op, role))

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
    counts = (len(_slots_of(node)) + (node.index in prefetched) for node in graph.nodes)
    return ArgumentSlots(layout, tuple(accumulate(counts, initial=1))[:-1])


def listed_events(events: Sequence[str]) -> list[str]:
    """The events that the user's list names, by their labels."""
    return [event for event in events if not event.startswith(ORDER_EVENT)]


def _slots_of(node: Node) -> list[SlotFields]:
    """Those of every target, and one for each inner event: slots of events run parallel to the lists of events."""
    slots = [wanted for wanted in slots_of(node) if wanted[1] not in (Role.SEND, Role.RECV)]
    for word, events, external, (role, inner) in (
        ("send", node.sends, node.notifies, SENDS),
        ("recv", node.receives, node.awaits, RECEIVES),
    ):
        for event in listed_events(events):
            known = event in external
            slots.append((f"{word}_{event}", role if known else inner, None, event if known else None, 0, 0))
    return slots


def _wanted(graph: Graph, prefetched: frozenset[int], workspace: bool, profiling: bool) -> Wanted:
    yield "", ("sync_base", Role.SYNC_BASE, None, None, 0, 0)
    for node in graph.nodes:
        slots = _slots_of(node)
        if node.index in prefetched:  # as one more event sent
            received = sum(1 for wanted in slots if wanted[1] in RECEIVES)
            slots.insert(len(slots) - received, ("prefetch", Role.PREFETCH, None, None, 0, 0))
        yield from ((node.name, wanted) for wanted in slots)
    if workspace:
        yield "", ("workspace", Role.WORKSPACE, None, None, 0, 0)
    if profiling:
        yield "", ("profiling", Role.PROFILING, None, None, 0, 0)
        yield "", ("task_id", Role.TASK_ID, None, None, 0, 0)
