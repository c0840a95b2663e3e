"""targets.cuda.planned_actions: a numbered plan -> the actions that each core must take, in order.

This is what the task table is compared with: it follows the steps of the plan, and knows nothing of tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...model.window_layout import WindowLayout
from ...plan import steps
from ...plan.steps import Call, Wait
from .numbering import CounterKey, CudaNumbering
from .task_layout import NO_FLAGS, TaskFlag

Action = tuple[object, ...]
_EVENTS = {steps.AwaitEvent: "await", steps.Notify: "notify", steps.ResetEvent: "reset"}


@dataclass(frozen=True)
class AwaitedCounter:
    """A counter as waits see it."""

    key: CounterKey
    where: int
    waiters: Counter[int]  # by SM


@dataclass(frozen=True)
class SignalledCounter:
    """A counter as its cores arrive there."""

    members: frozenset[int]
    near: bool
    ranks: int  # of the SMs of a cluster that are told, as bits; 0: it is not a counter of a cluster
    counter: int
    word: int | None  # where the cores of an SM arrive together
    shares: Counter[int]  # by SM


class PlannedActions:
    """What is known of a step is computed once for all cores."""

    def __init__(self, numbers: CudaNumbering) -> None:
        self.numbers, self.plan = numbers, numbers.plan
        self.needs: dict[int, list[AwaitedCounter]] = {}  # by step: what it waits for
        self.signals: dict[int, list[SignalledCounter]] = {}  # by step: what it signals

    def of_core(self, core: int) -> Iterator[Action]:
        numbers, stamps = self.numbers, 0
        inside: list[Action] = []
        for number in numbers.programs[core]:
            step = self.plan.steps[number]
            if isinstance(step, Wait) and step.inside:
                waits: list[Action] = [("wait inside", *need) for need in self._needs_of(number, core)]
                if self.plan.options.profiling:
                    waits, stamps = [("stamp", stamps), *waits, ("stamp", stamps + 1)], stamps + 2
                inside += waits
            elif isinstance(step, Wait):
                yield from (("wait", *need) for need in self._needs_of(number, core))
            elif isinstance(step, steps.Barrier):
                yield from self._signals_of(number, core)
                yield from (("wait", *need) for need in self._needs_of(number, core))
            elif isinstance(step, steps.Signal):
                yield from self._signals_of(number, core)
            elif isinstance(step, Call):
                yield from inside
                inside = []
                yield "call", step
            elif isinstance(step, steps.Record):
                yield "stamp", stamps
                stamps += 1
            elif isinstance(step, steps.Fence):
                yield ("fence",)
            elif isinstance(step, steps.AwaitEvent | steps.Notify | steps.ResetEvent):
                place = len(self.plan.graph.buffers) + [e.label for e in self.plan.graph.events].index(step.event)
                yield _EVENTS[type(step)], ((8 * place, 0, 0),)
            elif isinstance(step, steps.AwaitRanks | steps.NotifyRanks):
                yield self._rank_sync(step)
        yield ("end",)

    def _rank_sync(self, step: steps.AwaitRanks | steps.NotifyRanks) -> Action:
        """A wait begins at the line of the first rank, and looks at as many lines as there are ranks."""
        (window,) = (each.window for each in self.plan.graph.collectives if each.name == step.collective)
        place = list(self.plan.graph.buffers).index(window)
        if isinstance(step, steps.AwaitRanks):
            return "await ranks", len(step.group.ranks), ((8 * place, 0, 0),)
        return "notify ranks", ((8 * place, 0, WindowLayout(step.group.size, 0).line(step.group.rank)),)

    def _needs_of(self, number: int, core: int) -> Iterator[tuple[int, int, int]]:
        """What a core waits for at a wait or barrier."""
        numbers, step = self.numbers, self.plan.steps[number]
        if number not in self.needs:
            barrier: list[CounterKey] = [(number, step.cores, False)]
            keys = [(need.mark, need.cores, need.near) for need in step.needs] if isinstance(step, Wait) else barrier
            self.needs[number] = [
                AwaitedCounter(
                    key,
                    numbers.counters[key] if key in numbers.counters else numbers.shared_words[key],
                    numbers.waiters_by_sm[key],
                )
                for key in keys
            ]
        sm = numbers.shape.sm(core)
        for awaited in self.needs[number]:
            _, cores, in_sm = awaited.key
            arrivals = sum(numbers.shape.sm(other) == sm for other in cores) if in_sm else len(cores)
            several = awaited.waiters[sm] > 1 and numbers.shares_polls
            if awaited.key not in numbers.counters:
                yield awaited.where, arrivals, 1 if self._in_one_sm(awaited) else 3
            else:
                yield awaited.where, arrivals, 2 if several else 0

    def _in_one_sm(self, awaited: AwaitedCounter) -> bool:
        """Whether cores wait for those of their own SM alone."""
        _, cores, in_sm = awaited.key
        return in_sm or len({*awaited.waiters, *map(self.numbers.shape.sm, cores)}) == 1

    def _told_ranks(self, key: CounterKey) -> int:
        """The SMs that a counter of a cluster tells, by the cores that wait for it; 0: it is another counter."""
        numbers = self.numbers
        if key in numbers.counters or numbers.is_near(key):
            return 0
        ranks = {core % numbers.shape.sms % numbers.shape.cluster for core in numbers.waiters[key]}
        return sum(1 << rank for rank in ranks)

    def _signals_of(self, number: int, core: int) -> Iterator[Action]:
        """Where a core arrives at a signal or barrier."""
        numbers, step = self.numbers, self.plan.steps[number]
        if number not in self.signals:
            barrier: list[CounterKey] = [(number, step.cores, False)]
            keys = numbers.keys_of_mark.get(step.mark, []) if isinstance(step, steps.Signal) else barrier
            self.signals[number] = [
                SignalledCounter(
                    numbers.members[key[1]],
                    numbers.is_near(key),
                    self._told_ranks(key),
                    numbers.counters.get(key, 0),
                    numbers.shared_words.get(key),
                    numbers.shares[key[1]],
                )
                for key in keys
            ]
        for signalled in self.signals[number]:
            if core not in signalled.members:
                continue
            share = signalled.shares[numbers.shape.sm(core)]
            whole = share == numbers.shape.cores_of(numbers.shape.sm(core))
            if signalled.near:
                yield "signal", TaskFlag.NEAR_SIGNAL, 0, 0, signalled.word
            elif signalled.ranks:
                yield "signal", TaskFlag.CLUSTER_SIGNAL, 0, signalled.ranks, signalled.word
            elif whole and signalled.word is not None:
                yield "signal", TaskFlag.SHARED_SIGNAL, signalled.counter, 0, signalled.word
            elif share > 1 and signalled.word is not None:
                yield "signal", TaskFlag.SHARED_SIGNAL, signalled.counter, share, signalled.word
            else:
                yield "signal", NO_FLAGS, signalled.counter, 1, 0
