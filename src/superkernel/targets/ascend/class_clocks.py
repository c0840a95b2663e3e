"""targets.ascend.knowledge: what the cores of each class are sure of, and the syncs that teach them more.

Items are what a launch does, in one order: calls, polls, notifies. A class knows of another class how far all of its
cores are: the index of an item. Flags are counters without labels: the n-th wait takes the n-th signal, so the flag
actions of a class are only ever placed behind those placed before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from .launch_shape import Launch
from .pairs import PAIRS, Action, Need, Pair, pair_of, pairs_for
from .steps import Arrive, Classes, Inside, Meet, Step
from .types import CUBE, VECTOR, CoreClass, OpClass

Place = tuple[int, int]  # item; 0 in front of it, 1 behind it
Wanted = dict[Need, int]  # class whose progress is needed, class that needs it -> item
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
    inside: dict[CoreClass, Inside] = field(default_factory=dict)
    arrives_inside: set[CoreClass] = field(default_factory=set)
    may_arrive_inside: bool = False


class Knowledge:
    def __init__(self, launch: Launch, flag_limit: int, split: bool) -> None:
        # a flag also has room for what a debug barrier leaves for the next one to take
        self.launch, self.limit = launch, flag_limit - 1
        self.split = split  # arrive as early as possible; else right before the wait
        self.items: list[Item] = []
        self.known = {a: dict.fromkeys(CoreClass, -1) for a in CoreClass}  # by whom -> of whom -> item
        self._floor: dict[CoreClass, Place] = dict.fromkeys(CoreClass, (-1, 1))  # the last flag action of a class
        self._arrived: dict[CoreClass, Place] = dict.fromkeys(CoreClass, (-1, 1))  # the last arrival
        self._waited: dict[CoreClass, list[Place]] = {one: [] for one in CoreClass}  # waits for the own class
        self._taken: dict[CoreClass, list[int]] = {one: [] for one in CoreClass}  # where the other class took a signal
        self._calls: dict[CoreClass, list[int]] = {one: [] for one in CoreClass}
        self._meetings: dict[CoreClass, list[int]] = {one: [] for one in CoreClass}  # calls that use the class flag

    def add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def note_call(self, index: int, uses_flags: bool) -> None:
        """A call; one that uses the flags itself must find none of ours under way."""
        classes = self.items[index].classes
        for one in classes:
            self._calls[one].append(index)
            if uses_flags:
                self._meetings[one].append(index)
                if len(classes) > 1:
                    self._floor[one] = (index, 1)

    def learn(self, one: CoreClass, news: Mapping[CoreClass, int], index: int) -> None:
        """What a core learns at an item other than a sync; it cannot have passed that on earlier."""
        self._join(one, news)
        self._floor[one] = max(self._floor[one], (index, 1))

    def _join(self, one: CoreClass, news: Mapping[CoreClass, int]) -> None:
        known = self.known[one]
        for of, item in news.items():
            known[of] = max(known[of], item)

    def missing(self, needs: Mapping[CoreClass, Mapping[CoreClass, int]]) -> Wanted:
        """Of what each class must know, the part that it does not."""
        pairs = [(of, by, item) for by, wanted in needs.items() for of, item in wanted.items()]
        return {(of, by): item for of, by, item in pairs if item > self.known[by][of]}

    def barrier(self, at: int, op: int, purpose: str) -> tuple[Pair, ...]:
        """Everything launched meets in front of an item."""
        pair = whole_pair(self.launch)
        wanted: Wanted = {(a, b): at - 1 for a in self.launch.classes for b in self.launch.classes}
        return self._meet(at, op, purpose, (pair,), wanted, frozenset(), split=False)

    def sync(self, at: int, op: int, purpose: str, wanted: Wanted, inside: OpClass | None = None) -> tuple[Pair, ...]:
        """Teach the classes what they need in front of an item, or inside its call; the rows that did it."""
        if not wanted:
            return ()
        if inside is not None:  # a pair code teaches every class of the op what any of them needs
            for of in CoreClass:
                reach = max((item for (one, _), item in wanted.items() if one is of), default=-1)
                wanted |= {(of, by): reach for by in inside.classes if reach >= 0}
        self._make_room(wanted)
        if inside is None or any(by not in inside.classes for _, by in wanted):
            return self._meet(at, op, purpose, pairs_for(frozenset(wanted)), wanted, frozenset(), self.split)
        pairs = (pair_of(frozenset(of for of, _ in wanted), inside),)
        return self._meet(at, op, purpose, pairs, wanted, frozenset(inside.classes), self.split)

    def _make_room(self, wanted: Wanted) -> None:
        """A class that would signal too far ahead must learn that earlier signals were taken."""
        for one in self.launch.classes:
            other, taken = _OTHER[one], self._taken[one]
            if (one, other) not in wanted:
                continue
            open_ones = taken[bisect_right(taken, self.known[one][other]) :]
            if len(open_ones) >= self.limit - 1:
                middle = open_ones[len(open_ones) // 2]
                wanted[other, one] = max(middle, wanted.get((other, one), -1))

    def _meet(
        self,
        at: int,
        op: int,
        purpose: str,
        pairs: tuple[Pair, ...],
        wanted: Wanted,
        inside: frozenset[CoreClass],
        split: bool,
    ) -> tuple[Pair, ...]:
        parts = {one: self._part(one, pairs, wanted, one in inside) for one in self.launch.classes}
        told: dict[CoreClass, dict[CoreClass, int]] = {}
        for one, (pair, actions) in parts.items():
            if pair is None or not actions:
                continue
            reach = max((item for (of, _), item in wanted.items() if of is one), default=-1)
            place = (at, 0) if one in inside else self._place(one, at, reach, actions)
            if Action.WAIT_ALL in actions:
                self.known[one][one] = self._arrive(one, reach, place, op, split)
                insort(self._waited[one], place)
            if one in inside:
                self.items[at].inside[one] = Inside(pair, actions, False)
                self._floor[one] = (at, 1)
            else:
                self._steps(place).append(Meet((one,), op, pair, actions, purpose))
                self._floor[one] = max(self._floor[one], place)
            told[one] = dict(self.known[one])
        for one, (_, actions) in parts.items():
            if Action.WAIT_BLOCK in actions:
                self._taken[_OTHER[one]].append(at)
                self._join(one, told[_OTHER[one]])
        return pairs

    def _part(
        self, one: CoreClass, pairs: tuple[Pair, ...], wanted: Wanted, inside: bool
    ) -> tuple[Pair | None, tuple[Action, ...]]:
        """What one class does; it does not wait for its own cores if it knows enough of them already."""
        pair = next((pair for pair in pairs if PAIRS[pair][one]), None)
        if pair is None:
            return None, ()
        actions = PAIRS[pair][one]
        reach = max((item for (of, _), item in wanted.items() if of is one), default=-1)
        if not inside and self.known[one][one] >= reach:
            actions = tuple(action for action in actions if action is not Action.WAIT_ALL)
        return pair, actions

    def _place(self, one: CoreClass, at: int, reach: int, actions: tuple[Action, ...]) -> Place:
        """In front of the item; a class that only passes on what it knows does so before its next call."""
        place = (at, 0)
        if one not in self.items[at].classes and Action.WAIT_BLOCK not in actions:
            calls = self._calls[one]
            following = bisect_right(calls, reach)
            if following < len(calls) and calls[following] < at:
                place = (calls[following], 0)
        return max(place, self._floor[one])

    def _arrive(self, one: CoreClass, reach: int, wait: Place, op: int, split: bool) -> int:
        """Place the arrival for a wait; how far all cores of the class are when they have arrived."""
        meetings = self._meetings[one]
        last = bisect_left(meetings, wait[0] + wait[1]) - 1
        item = max(reach, meetings[last] if last >= 0 else -1)
        place = (item, 1)
        under_way = len(self._waited[one]) - bisect_right(self._waited[one], place)
        if not split or item < 0 or place < self._arrived[one] or place >= wait or under_way >= self.limit - 1:
            self._steps(wait).append(Arrive((one,), self._last_op(one, wait)))
            self._arrived[one] = wait
            return wait[0] - 1 + wait[1]
        self._arrived[one] = place
        target = self.items[item]
        fresh = one not in target.arrives_inside
        if item == reach and target.may_arrive_inside and fresh and one in target.classes:
            target.arrives_inside.add(one)
        else:
            target.after.append(Arrive((one,), target.op, target.reached))
        return item

    def _last_op(self, one: CoreClass, place: Place) -> int:
        """The op that the class has just done at a place."""
        calls = self._calls[one]
        last = bisect_left(calls, place[0] + place[1]) - 1
        return self.items[calls[last]].op if last >= 0 else -1

    def _steps(self, place: Place) -> list[Step]:
        item = self.items[place[0]]
        return item.after if place[1] else item.before


def whole_pair(launch: Launch) -> Pair:
    """The row of a barrier over everything launched."""
    one = OpClass.MIX if launch.mixed else OpClass.AIC if launch.cubes else OpClass.AIV
    return Pair(one, one)
