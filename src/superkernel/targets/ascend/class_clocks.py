"""targets.ascend.class_clocks: a vector clock per core class, and the flag syncs that advance it.

Items are what a launch does, in one order: calls, polls, notifies. The clock of a class holds, per class, the last item
that all cores of that class are known to have passed. Flags are counters without labels: the n-th wait takes the n-th
signal, so the flag actions of a class are only ever placed behind those placed before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...plan.steps import Step
from .core_types import CUBE, VECTOR, CoreClass, OpClass
from .launch_shape import LaunchShape
from .pairs import PAIRS, Action, ClassNeed, Pair, barrier_of, pair_of, pairs_for
from .steps import Arrive, Classes, InsideSync, Meet, WholeBarrier

Position = tuple[int, int]  # item; 0 in front of it, 1 behind it
Wanted = dict[ClassNeed, int]  # class whose progress is needed, class that needs it -> item
_MOST_OWED = 4  # arrivals of sub-kernels that no core has waited for
_OTHER = {CUBE: VECTOR, VECTOR: CUBE}


@dataclass
class Item:
    """Something a launch does at one place of its order."""

    op: int
    classes: Classes
    reached: str  # what cores that have passed it are, in words that the op's name follows
    body: list[Step] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)  # syncs
    after: list[Step] = field(default_factory=list)
    inside: dict[CoreClass, InsideSync] = field(default_factory=dict)
    arrives_inside: set[CoreClass] = field(default_factory=set)
    may_arrive_inside: bool = False
    always_arrives: bool = False  # inside, whether or not a core waits for it


class ClassClocks:
    def __init__(self, launch: LaunchShape, flag_limit: int, split: bool) -> None:
        # a flag also has room for what a debug barrier leaves for the next one to take
        self.launch, self.limit = launch, flag_limit - 1
        self.split = split  # arrive as early as possible; else right before the wait
        self.items: list[Item] = []
        self.known = {a: dict.fromkeys(CoreClass, -1) for a in CoreClass}  # by whom -> of whom -> item
        self._floor: dict[CoreClass, Position] = dict.fromkeys(CoreClass, (-1, 1))  # the last flag action of a class
        self._arrived: dict[CoreClass, Position] = dict.fromkeys(CoreClass, (-1, 1))  # the last arrival
        self._waited: dict[CoreClass, list[Position]] = defaultdict(list)  # waits for the class itself
        self._taken: dict[CoreClass, list[int]] = defaultdict(list)  # where the other class took a signal
        self._calls: dict[CoreClass, list[int]] = defaultdict(list)
        self._meetings: dict[CoreClass, list[int]] = defaultdict(list)  # calls that use the class flag
        self._owed: dict[CoreClass, deque[int]] = defaultdict(deque)  # calls that have arrived, not yet waited for

    def add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def note_call(self, index: int, uses_flags: bool) -> None:
        """A call; one that uses the flags itself must find no signal of the plan under way."""
        item = self.items[index]
        classes = item.classes
        for core_class in classes:
            if uses_flags or len(self._owed[core_class]) >= min(_MOST_OWED, self.limit - 2):
                self._settle(core_class, (index, 0))
            self._calls[core_class].append(index)
            if item.always_arrives:
                item.arrives_inside.add(core_class)
                self._owed[core_class].append(index)
                self._arrived[core_class] = self._floor[core_class] = (index, 1)
            if uses_flags:
                self._meetings[core_class].append(index)
                if len(classes) > 1:
                    self._floor[core_class] = (index, 1)

    def settle(self) -> None:
        """At the end no arrival is left that no core waits for."""
        for core_class in self.launch.classes:
            self._settle(core_class, (len(self.items) - 1, 1))

    def _settle(self, core_class: CoreClass, place: Position) -> None:
        while self._owed[core_class]:
            self._take_owed(core_class, place)

    def _take_owed(self, core_class: CoreClass, place: Position) -> None:
        """Wait for an arrival that a sub-kernel has made of its own accord."""
        item = self._owed[core_class].popleft()
        [pair] = pairs_for(frozenset({(core_class, core_class)}))
        meet = Meet((core_class,), self.items[item].op, pair, (Action.WAIT_ALL,), "with the early start of")
        self._steps(place).append(meet)
        insort(self._waited[core_class], place)
        self._floor[core_class] = max(self._floor[core_class], place)
        self._join(core_class, {core_class: item})

    def learn(self, core_class: CoreClass, learned: Mapping[CoreClass, int], index: int) -> None:
        """What a core learns at an item other than a sync; it cannot have passed that on earlier."""
        self._join(core_class, learned)
        self._floor[core_class] = max(self._floor[core_class], (index, 1))

    def _join(self, core_class: CoreClass, learned: Mapping[CoreClass, int]) -> None:
        known = self.known[core_class]
        for of, item in learned.items():
            known[of] = max(known[of], item)

    def missing(self, needs: Mapping[CoreClass, Mapping[CoreClass, int]]) -> Wanted:
        """Of what each class must know, the part that it does not."""
        pairs = [(of, by, item) for by, wanted in needs.items() for of, item in wanted.items()]
        return {(of, by): item for of, by, item in pairs if item > self.known[by][of]}

    def barrier(self, at: int) -> None:
        """Everything launched meets in front of an item."""
        classes, place = self.launch.classes, (at, 0)
        self._steps(place).append(WholeBarrier(classes, self.items[at].op))
        for core_class in classes:
            self._join(core_class, dict.fromkeys(classes, at - 1))
            self._floor[core_class] = max(self._floor[core_class], place)
            actions = barrier_of(classes)[core_class]
            if Action.WAIT_ALL in actions:
                self._arrived[core_class] = place
                insort(self._waited[core_class], place)
            if Action.WAIT_BLOCK in actions:
                self._taken[_OTHER[core_class]].append(at)

    def sync(self, at: int, op: int, purpose: str, wanted: Wanted, inside: OpClass | None = None) -> tuple[Pair, ...]:
        """Teach the classes what they need in front of an item, or inside its call; the rows that did it."""
        if not wanted:
            return ()
        if inside is not None:  # a pair code teaches every class of the op what any of them needs
            for of in CoreClass:
                reach = max((item for (core_class, _), item in wanted.items() if core_class is of), default=-1)
                wanted |= {(of, by): reach for by in inside.classes if reach >= 0}
        self._make_room(wanted)
        if inside is None or any(by not in inside.classes for _, by in wanted):
            return self._meet(at, purpose, pairs_for(frozenset(wanted)), wanted)
        pairs = (pair_of(frozenset(of for of, _ in wanted), inside),)
        return self._meet(at, purpose, pairs, wanted, inside.classes)

    def _make_room(self, wanted: Wanted) -> None:
        """A class that would signal too far ahead must learn that earlier signals were taken."""
        for core_class in self.launch.classes:
            other, taken = _OTHER[core_class], self._taken[core_class]
            if (core_class, other) not in wanted:
                continue
            open_ones = taken[bisect_right(taken, self.known[core_class][other]) :]
            if len(open_ones) >= self.limit - 1:
                middle = open_ones[len(open_ones) // 2]
                wanted[other, core_class] = max(middle, wanted.get((other, core_class), -1))

    def _meet(
        self, at: int, purpose: str, pairs: tuple[Pair, ...], wanted: Wanted, inside: Classes = ()
    ) -> tuple[Pair, ...]:
        op = self.items[at].op
        parts = {c: self._part(c, pairs, wanted, c in inside) for c in self.launch.classes}
        clocks: dict[CoreClass, dict[CoreClass, int]] = {}
        for core_class, (pair, actions) in parts.items():
            if pair is None or not actions:
                continue
            reach = max((item for (of, _), item in wanted.items() if of is core_class), default=-1)
            place = (at, 0) if core_class in inside else self._place(core_class, at, reach, actions)
            if Action.WAIT_ALL in actions:
                self.known[core_class][core_class] = self._arrive(core_class, reach, place)
                insort(self._waited[core_class], place)
            if core_class in inside:
                self.items[at].inside[core_class] = InsideSync(pair, actions, False)
                self._floor[core_class] = (at, 1)
            else:
                self._steps(place).append(Meet((core_class,), op, pair, actions, purpose))
                self._floor[core_class] = max(self._floor[core_class], place)
            clocks[core_class] = dict(self.known[core_class])
        for core_class, (_, actions) in parts.items():
            if Action.WAIT_BLOCK in actions:
                self._taken[_OTHER[core_class]].append(at)
                self._join(core_class, clocks[_OTHER[core_class]])
        return pairs

    def _part(
        self, core_class: CoreClass, pairs: tuple[Pair, ...], wanted: Wanted, inside: bool
    ) -> tuple[Pair | None, tuple[Action, ...]]:
        """What one class does; it does not wait for itself if its clock is far enough already."""
        pair = next((pair for pair in pairs if PAIRS[pair][core_class]), None)
        if pair is None:
            return None, ()
        actions = PAIRS[pair][core_class]
        reach = max((item for (of, _), item in wanted.items() if of is core_class), default=-1)
        if not inside and self.known[core_class][core_class] >= reach:
            actions = tuple(action for action in actions if action is not Action.WAIT_ALL)
        return pair, actions

    def _place(self, core_class: CoreClass, at: int, reach: int, actions: tuple[Action, ...]) -> Position:
        """In front of the item; a class that only passes on what it knows does so before its next call."""
        place = (at, 0)
        if core_class not in self.items[at].classes and Action.WAIT_BLOCK not in actions:
            calls = self._calls[core_class]
            following = bisect_right(calls, reach)
            if following < len(calls) and calls[following] < at:
                place = (calls[following], 0)
        return max(place, self._floor[core_class])

    def _arrive(self, core_class: CoreClass, reach: int, wait: Position) -> int:
        """Position the arrival for a wait; how far all cores of the class are when they have arrived."""
        while owed := self._owed[core_class]:
            if owed[0] >= reach and self.items[owed[0]].may_arrive_inside:
                return owed.popleft()  # the wait takes it
            self._take_owed(core_class, wait)
        meetings = self._meetings[core_class]
        last = bisect_left(meetings, wait[0] + wait[1]) - 1
        item = max(reach, meetings[last] if last >= 0 else -1)
        place = (item, 1)
        under_way = len(self._waited[core_class]) - bisect_right(self._waited[core_class], place)
        too_late = place < self._arrived[core_class] or place >= wait
        if not self.split or item < 0 or too_late or under_way >= self.limit - 1:
            self._steps(wait).append(Arrive((core_class,), self._last_op(core_class, wait)))
            self._arrived[core_class] = wait
            return wait[0] - 1 + wait[1]
        self._arrived[core_class] = place
        target = self.items[item]
        fresh = core_class not in target.arrives_inside
        if item == reach and target.may_arrive_inside and fresh and core_class in target.classes:
            target.arrives_inside.add(core_class)
        else:
            target.after.append(Arrive((core_class,), target.op, target.reached))
        return item

    def _last_op(self, core_class: CoreClass, place: Position) -> int:
        """The op that the class has just done at a place."""
        calls = self._calls[core_class]
        last = bisect_left(calls, place[0] + place[1]) - 1
        return self.items[calls[last]].op if last >= 0 else -1

    def _steps(self, place: Position) -> list[Step]:
        item = self.items[place[0]]
        return item.after if place[1] else item.before
