"""plan.near_clocks: classes of cores and groups -> clocks that also say what a core knows of its own group.

A clock has one number per class: how far all cores of the class are known to be. Where cores wait for those of their
own group alone, a second half follows: how far the cores of the class in the own group are known to be. Who knows the
first knows the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from .classes import CoreClasses
from .steps import Cores

ClockNumbers = tuple[int, ...]
Heard = tuple[ClockNumbers, int]  # the clock of a member of a class, and how far it knows the other members to be


class NearClasses:
    """Where the numbers of classes stand in a clock, and what a clock that another core hands over says."""

    def __init__(self, classes: CoreClasses, near_groups: tuple[Cores, ...]) -> None:
        """Without `near_groups` a clock has no second half."""
        self.count = len(classes)
        self.present = bool(near_groups)
        self.span = 2 * self.count if near_groups else self.count
        group_of = {core: number for number, group in enumerate(near_groups) for core in group}
        members = [[group_of.get(core, -1 - core) for core in cores] for cores in classes.members]
        self._groups = [frozenset(groups) for groups in members]
        # classes of which no core has another member in its own group
        self.single = tuple(len(groups) == len(found) for groups, found in zip(self._groups, members, strict=True))
        self._covers = lru_cache(maxsize=None)(self._find_covered)
        self._heard_by_group = lru_cache(maxsize=None)(self._find_heard)
        self._nothing: ClockNumbers = (-1,) * self.span

    def index(self, core_class: int) -> int:
        """The place of what a core knows of the members of a class in its own group."""
        return self.count + core_class

    def class_at(self, index: int) -> int:
        return index % self.count

    def is_near(self, index: int) -> bool:
        return index >= self.count

    def _find_covered(self, core_class: int) -> tuple[int, ...]:
        """The classes whose members all have a core of this class in their group."""
        return tuple(other for other in range(self.count) if self._groups[other] <= self._groups[core_class])

    def from_all(self, clock: ClockNumbers, core_class: int) -> ClockNumbers:
        """What is known to a core that hears from all members of a class, each of which knows its own group."""
        if not self.present:
            return clock
        known = list(clock[: self.count])
        for other in self._covers(core_class):
            known[other] = max(known[other], clock[self.index(other)])
        return (*known, *known)

    def from_group(self, core_class: int, heard: Mapping[int, Heard]) -> ClockNumbers:
        """What is known to a core of a class that hears from those members of other classes that are in its group.

        Not every class need have a member in every group: what is known is what the cores of all groups hear.
        """
        clocks = {other: self._without_own(other, *found) for other, found in heard.items()}
        by_group = [
            tuple(map(max, *(clocks[other] for other in others), self._nothing)) if others else self._nothing
            for others in self._heard_by_group(core_class, tuple(sorted(heard)))
        ]
        known = list(map(min, *by_group)) if len(by_group) > 1 else list(by_group[0])
        for other, (clock, _) in heard.items():
            known[self.index(other)] = clock[self.index(other)]
        return tuple(known)

    def _without_own(self, core_class: int, clock: ClockNumbers, of_others: int) -> ClockNumbers:
        return (*clock[:core_class], of_others, *clock[core_class + 1 :])

    def _find_heard(self, core_class: int, others: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The different sets of classes that have members in a group of the cores of a class."""
        groups = self._groups[core_class]
        found = (tuple(other for other in others if group in self._groups[other]) for group in groups)
        return tuple(dict.fromkeys(found))

    def with_own(self, clock: ClockNumbers, core_class: int, position: int) -> ClockNumbers:
        """A clock that says that all members of a class, in the own group as well, have come so far."""
        changed = (*clock[:core_class], position, *clock[core_class + 1 :])
        if not self.present:
            return changed
        index = self.index(core_class)
        return (*changed[:index], position, *changed[index + 1 :])
