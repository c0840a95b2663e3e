"""plan.simulate.flags: the words that the cores of a simulated launch share: counters, barriers, tiling locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ...model.tiling import Tiling
from ..classes import CoreClasses
from ..plan import Plan
from ..steps import Mark, Select, Signal, Step, Wait

Pair = tuple[int, int, bool]  # signalling class, waiting class; whether only those of the own group are meant


class Flags:
    """A mark that is awaited is a counter per class: a wait is over when all cores it names have arrived.

    Marks rise along the plan, so a core that has signalled one has passed all earlier ones. The k-th wait of a class
    takes the k-th signal of another class that is meant for it; as every core follows its list in order, that is known
    beforehand.
    """

    def __init__(self, plan: Plan, classes: CoreClasses) -> None:
        self.classes = classes
        self._counters: dict[tuple[Mark, int], int] = {}  # (mark, class) -> its place in `arrived`
        self.arrived: list[int] = []
        self.locks: dict[int, Tiling] = {}  # dynamic op -> what the control agent has answered
        self.requests: list[int] = []
        self._awaited = _awaited_marks(plan.steps, classes)  # per class, rising
        self._passed = [0] * plan.cores  # per core: how many of them it has passed
        self._group_of = plan.group_of
        self._present: dict[object, set[int]] = {}  # barrier -> cores that have arrived
        self._inside: dict[tuple[int, int], Mark] = {}  # (class, op) -> the mark that the call itself may signal
        self._given: set[tuple[int, Mark]] = set()  # (core, mark) signalled inside, ahead of their step
        self._selects: Counter[int] = Counter()  # dynamic op -> cores that have yet to see its lock
        for step in plan.steps:
            if isinstance(step, Signal) and step.inside:
                self._inside |= {(core_class, step.mark.op): step.mark for core_class in classes.split(step.cores)}
            elif isinstance(step, Select):
                self._selects[step.op] += len(step.cores)
        self.crossed, self.left_behind = _match(plan.steps, classes)

    def signal(self, core: int, mark: Mark) -> None:
        """The step of a signal; nothing is left to do if the call has given it."""
        if (core, mark) in self._given:
            self._given.remove((core, mark))
        else:
            self._pass(core, mark)

    def signal_inside(self, core: int, op: int) -> None:
        """The call of `op` gives its signal itself, if the plan allows that."""
        mark = self._inside.get((self.classes.of_core[core], op))
        if mark is not None and (core, mark) not in self._given:
            self._given.add((core, mark))
            self._pass(core, mark)

    def _pass(self, core: int, mark: Mark) -> None:
        core_class = self.classes.of_core[core]
        marks = self._awaited[core_class]
        while self._passed[core] < len(marks) and marks[self._passed[core]] <= mark:
            self.arrived[self._counter(marks[self._passed[core]], core_class)] += 1
            self._passed[core] += 1

    def _counter(self, mark: Mark, core_class: int) -> int:
        place = self._counters.setdefault((mark, core_class), len(self.arrived))
        if place == len(self.arrived):
            self.arrived.append(0)
        return place

    def met(self, wait: Wait, core: int) -> Callable[[], bool]:
        arrived = self.arrived
        counts = [
            (self._counter(need.mark, core_class), self.classes.sizes[core_class])
            for need in wait.needs
            for core_class in self.classes.split(need.cores)
            if not need.near
        ]
        near = [
            (other, self._place(need.mark, other))
            for need in wait.needs
            if need.near
            for other in need.cores
            if other != core and self._group_of[other] == self._group_of[core]
        ]
        if near:
            passed = self._passed
            return lambda: (
                all(passed[other] > place for other, place in near)
                and all(arrived[place] >= size for place, size in counts)
            )
        if len(counts) == 1:
            ((place, expected),) = counts
            return lambda: arrived[place] >= expected
        return lambda: all(arrived[place] >= size for place, size in counts)

    def _place(self, mark: Mark, core: int) -> int:
        """The place of a mark among those that a core passes."""
        return self._awaited[self.classes.of_core[core]].index(mark)

    def arrive(self, core: int, team: Iterable[int], barrier: object) -> Callable[[], bool]:
        present = self._present.setdefault(barrier, set())
        present.add(core)
        expected = set(team)
        return lambda: len(present) >= len(expected) and present >= expected

    def select(self, op: int) -> Tiling:
        """What a core reads behind the lock; the last of them resets it."""
        tiling = self.locks[op]
        self._selects[op] -= 1
        if not self._selects[op]:
            del self.locks[op]
        return tiling


def _awaited_marks(steps: tuple[Step, ...], classes: CoreClasses) -> list[list[Mark]]:
    marks: list[set[Mark]] = [set() for _ in range(len(classes))]
    for step in steps:
        for need in step.needs if isinstance(step, Wait) else ():
            for core_class in classes.split(need.cores):
                marks[core_class].add(need.mark)
    return [sorted(found) for found in marks]


def _match(steps: tuple[Step, ...], classes: CoreClasses) -> tuple[set[tuple[int, int]], dict[Pair, int]]:
    """The waits (step, waiting class) that take another signal than the one they name, and signals never taken."""
    # a signal -> the classes that wait for it, and whether in their own group
    meant: dict[tuple[Mark, int], dict[tuple[int, bool], None]] = {}
    waits: dict[Pair, list[tuple[int, Mark]]] = {}
    for at, step in enumerate(steps):
        if isinstance(step, Wait):
            for core_class in classes.split(step.cores):
                for other, mark, near in _awaited(step, core_class, classes):
                    meant.setdefault((mark, other), {})[core_class, near] = None
                    waits.setdefault((other, core_class, near), []).append((at, mark))
    signals: dict[Pair, list[Mark]] = {}
    for step in steps:
        if isinstance(step, Signal):
            for other in classes.split(step.cores):
                for core_class, near in meant.get((step.mark, other), ()):
                    signals.setdefault((other, core_class, near), []).append(step.mark)
    crossed: set[tuple[int, int]] = set()
    left: dict[Pair, int] = {}
    for pair in {*waits, *signals}:
        taken, given = waits.get(pair, []), signals.get(pair, [])
        for k, (at, mark) in enumerate(taken):
            if k >= len(given) or given[k] != mark:
                crossed.add((at, pair[1]))
        if len(given) > len(taken):
            left[pair] = len(given) - len(taken)
    return crossed, left


def _awaited(wait: Wait, core_class: int, classes: CoreClasses) -> Iterator[tuple[int, Mark, bool]]:
    """The classes whose signals a core of a class waits for; a class of one core has no other members."""
    for need in wait.needs:
        for other in classes.split(need.cores):
            if other != core_class or classes.sizes[other] > 1:
                yield other, need.mark, need.near
