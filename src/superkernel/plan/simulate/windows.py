"""plan.simulate.windows: the memory that simulated ranks share: words and slots of windows, and how a rank sees them.

A slot is a row of cells. The op that sends a collective stores into the slot of its rank; those that wait for it read
the slots of all ranks, in the round that their rank is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ...model.collectives import Collective
from ...model.node import Node
from ...model.ranks import RankGroup
from ...model.window_layout import WindowLayout
from ..plan import Plan
from .memory import Memory, Row, Rows, Use

WindowKey = tuple[str, tuple[int, ...], int]  # name and ranks of its group; its place among the group's windows
LayoutOf = Callable[[RankGroup, int], WindowLayout]  # group as a rank knows it, cells of a slot -> where slots lie


def usual_layout(group: RankGroup, cells: int) -> WindowLayout:
    return WindowLayout(group.size, cells)


class Windows:
    """The shared memory of all groups."""

    def __init__(self) -> None:
        self.arrived: dict[WindowKey, list[int]] = {}  # the last round that each place of the group has published
        self._slots: dict[tuple[WindowKey, int], Row] = {}  # by their offset in the window

    def slot(self, key: WindowKey, offset: int, cells: int) -> Row:
        """What nothing has been stored into holds values of its own."""
        place = key, offset
        if place not in self._slots:
            self._slots[place] = Row([hash((offset, len(self._slots), i)) for i in range(cells)])
        return self._slots[place]


@dataclass(frozen=True)
class SeenWindow:
    """A window as the ops of one rank know it."""

    name: str
    key: WindowKey
    group: RankGroup
    collectives: tuple[Collective, ...]  # that it serves: one, in a plan that validates
    layout: WindowLayout
    cells: tuple[int, ...] = ()  # of the slot of each place

    def offset(self, place: int, round_number: int) -> int:
        return self.layout.slot(round_number, place)


def slot_name(window: str, place: int) -> str:
    return f"{window}, slot of place {place}"


def windows_of(plan: Plan, layout_of: LayoutOf) -> dict[str, SeenWindow]:
    """The windows of a plan by name, without the sizes of their slots."""
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    found: dict[str, SeenWindow] = {}
    lengths = Memory(plan).lengths
    for collective in plan.graph.collectives:
        name, group = collective.window, collective.group
        if name in found:
            found[name] = replace(found[name], collectives=(*found[name].collectives, collective))
            continue
        known = group.name, group.ranks
        key = (*known, counts.get(known, 0))
        counts[known] = key[2] + 1
        found[name] = SeenWindow(name, key, group, (collective,), layout_of(group, lengths[name]))
    return found


class RankMemory(Memory):
    """The memory of one rank: its own buffers, and for every window the slots of all ranks."""

    def __init__(self, plan: Plan, windows: Mapping[str, SeenWindow]) -> None:
        super().__init__(plan)
        self.windows = windows
        self.slots = {slot_name(w.name, place): (w, place) for w in windows.values() for place in range(w.group.size)}

    @cached_property
    def lengths(self) -> dict[str, int]:
        slots = {name: window.cells[place] for name, (window, place) in self.slots.items()}
        return Memory(self.plan).lengths | slots

    def _uses(self, node: Node) -> tuple[Use, ...]:
        if node.index not in self._uses_of:
            uses: list[Use] = []
            for use in self._find_uses(node):
                window = self.windows.get(use.buffer)
                if window is None:
                    uses.append(use)
                elif use.writes:
                    uses.append(replace(use, buffer=slot_name(window.name, window.group.rank)))
                else:
                    aligned = use.aligned and window.group.size == 1  # otherwise all ranks are read
                    for place in range(window.group.size):
                        name = slot_name(window.name, place)
                        whole = [] if aligned else self._pieces(name, 0, self.lengths[name])
                        uses.append(replace(use, buffer=name, aligned=aligned, whole=whole))
            self._uses_of[node.index] = tuple(uses)
        return self._uses_of[node.index]

    def rows_of_round(self, own: Rows, windows: Windows, round_number: int) -> Rows:
        """What the ops of this rank find in a round."""
        slots = {
            name: windows.slot(window.key, window.offset(place, round_number), window.cells[place])
            for name, (window, place) in self.slots.items()
        }
        return {**own, **slots}
