"""plan.flags: the words that the cores of a simulated launch share: marks, counters, barriers and tiling locks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from ...model.op import Tiling
from ..plan import Plan
from ..steps import Mark, Select, Signal, Wait


class Flags:
    """Marks are kept twice: labelled, as a progress word per core, and unlabelled, as a counter per pair of cores."""

    def __init__(self, plan: Plan) -> None:
        self.progress: list[Mark | None] = [None] * plan.cores
        self.counters: dict[tuple[int, int], deque[Mark]] = {}  # (signalling core, waiting core)
        self.locks: dict[int, Tiling] = {}  # dynamic op -> what the control agent has answered
        self.requests: list[int] = []
        self._present: dict[object, set[int]] = {}  # barrier -> cores that have arrived
        self._meant: dict[tuple[int, Mark], dict[int, None]] = {}  # the cores that will wait for a signal
        self._inside: dict[tuple[int, int], Mark] = {}  # (core, op) -> the mark that the call itself may signal
        self._given: list[set[Mark]] = [set() for _ in range(plan.cores)]  # signalled inside, ahead of their step
        self._selects: Counter[int] = Counter()  # dynamic op -> cores that have yet to see its lock
        for step in plan.steps:
            if isinstance(step, Wait):
                for core in step.cores:
                    for d, mark in _needs(core, step):
                        self._meant.setdefault((d, mark), {})[core] = None
            elif isinstance(step, Signal) and step.inside:
                self._inside |= {(core, step.mark.op): step.mark for core in step.cores}
            elif isinstance(step, Select):
                self._selects[step.op] += len(step.cores)

    def signal(self, core: int, mark: Mark) -> None:
        """The step of a signal; nothing is left to do if the call has given it."""
        if mark in self._given[core]:
            self._given[core].remove(mark)
        else:
            self._publish(core, mark)

    def signal_inside(self, core: int, op: int) -> None:
        """The call of `op` gives its signal itself, if the plan allows that."""
        mark = self._inside.get((core, op))
        if mark is not None and mark not in self._given[core]:
            self._given[core].add(mark)
            self._publish(core, mark)

    def _publish(self, core: int, mark: Mark) -> None:
        reached = self.progress[core]
        self.progress[core] = mark if reached is None else max(reached, mark)
        for waiter in self._meant.get((core, mark), ()):
            self.counters.setdefault((core, waiter), deque()).append(mark)

    def met(self, core: int, wait: Wait) -> Callable[[], bool]:
        needs = _needs(core, wait)
        return lambda: all((reached := self.progress[d]) is not None and reached >= mark for d, mark in needs)

    def take(self, core: int, wait: Wait) -> Iterable[tuple[int, Mark]]:
        """Count the signals of a wait that is over as used; those that were meant for another wait."""
        for d, mark in _needs(core, wait):
            counter = self.counters.setdefault((d, core), deque())
            if not counter or counter.popleft() != mark:
                yield d, mark

    def arrive(self, core: int, team: Iterable[int], barrier: object) -> Callable[[], bool]:
        present, expected = self._present.setdefault(barrier, set()), set(team)
        present.add(core)
        return lambda: present >= expected

    def select(self, op: int) -> Tiling:
        """What a core reads behind the lock; the last of them resets it."""
        tiling = self.locks[op]
        self._selects[op] -= 1
        if not self._selects[op]:
            del self.locks[op]
        return tiling


def _needs(core: int, wait: Wait) -> list[tuple[int, Mark]]:
    """The signals that one core waits for."""
    return [(d, need.mark) for need in wait.needs for d in need.cores if d != core]
