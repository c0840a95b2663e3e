"""targets.ascend.flag_counts: a walk along steps -> the signals under way at each of them."""

from __future__ import annotations

from dataclasses import replace

from ...plan.steps import Step
from .core_types import CUBE, VECTOR, CoreClass
from .pairs import Action
from .steps import Arrive, ClassCall, DebugBarrier, Meet, WholeBarrier


class FlagCounts:
    """Signals under way, as a walk along the steps finds them."""

    def __init__(self) -> None:
        self.arrivals = dict.fromkeys(CoreClass, 0)
        self.signals = dict.fromkeys(CoreClass, 0)

    def take(self, step: Step) -> None:
        if isinstance(step, Arrive):
            self.arrivals[step.cores[0]] += 1
        elif isinstance(step, Meet):
            self._act(step.cores[0], step.actions)
        elif isinstance(step, WholeBarrier):
            for core_class in step.cores:
                self._act(core_class, step.actions(core_class))
        elif isinstance(step, ClassCall):
            for core_class, inside in zip(step.cores, step.inside, strict=False):
                self._act(core_class, inside.actions)
                self.arrivals[core_class] += inside.arrives

    def _act(self, core_class: CoreClass, actions: tuple[Action, ...]) -> None:
        other = VECTOR if core_class is CUBE else CUBE
        for action in actions:
            if action is Action.WAIT_ALL:
                self.arrivals[core_class] -= 1
            elif action is Action.SIGNAL:
                self.signals[core_class] += 1
            elif action is Action.ARRIVE:
                self.arrivals[core_class] += 1
            else:
                self.signals[other] -= 1

    def seen_by(self, barrier: DebugBarrier) -> DebugBarrier:
        return replace(
            barrier,
            pending_arrivals=tuple((core_class, self.arrivals[core_class]) for core_class in barrier.cores),
            pending_signals=tuple((core_class, self.signals[core_class]) for core_class in barrier.cores),
        )
