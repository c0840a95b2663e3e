"""targets.ascend.happens_before: the steps of a plan -> the vector clock of each class at every call.

Independent of the planner. A class is one agent: its cores do the same, and its clock holds, per class, how far all
cores of that class are known to be. A flag is a queue of the clocks with which it was set. How full a flag may get
follows from the takes that the setting class knows of, not from those that this walk has seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ...plan.steps import AwaitEvent, Notify, Request, Select, Step
from ...plan.verify.agents import Clocks, Fault
from .core_types import CUBE, VECTOR, CoreClass
from .launch_shape import LaunchShape
from .pairs import Action
from .steps import Arrive, ClassCall, DebugBarrier, Meet, ResetLock, WholeBarrier

ClassClock = dict[Hashable, int]  # per class: how many of its moves all its cores, and its block 0, have made
# Block 0 of a class polls events and requests tilings: others may know how far it is without knowing of its class.
_BLOCK_0 = {CUBE: "block 0 of the cube cores", VECTOR: "block 0 of the vector cores"}
_OTHER = {CUBE: VECTOR, VECTOR: CUBE}


@dataclass(frozen=True)
class SignalState:
    """What a signal carries: the clock and position of its class, and whether a debug barrier gave it."""

    known: ClassClock
    position: int
    debug: bool = False


class FlagAction(Enum):
    ARRIVE = "arrive"
    WAIT_ALL = "wait for the class"
    SIGNAL = "signal in the block"
    WAIT_BLOCK = "wait in the block"
    DRAIN_ALL = "take what the class has under way at a debug barrier"
    DRAIN_BLOCK = "take what the block has under way at a debug barrier"
    MARKED_ARRIVE = "arrive at a debug barrier"
    MARKED_WAIT_ALL = "wait for the class at a debug barrier"
    MARKED_SIGNAL = "signal at a debug barrier"
    MARKED_WAIT_BLOCK = "wait in the block at a debug barrier"
    REFILL = "give signals again behind a debug barrier"
    BEGIN = "begin a call"
    WAIT_POINT = "pass a wait point"
    END = "end a call"
    OTHER = "anything else"


Move = tuple[FlagAction, Any]  # a step
_OF_ACTION = {action: FlagAction[action.name] for action in Action}
_DEBUG_ACTION = {action: FlagAction[f"MARKED_{action.name}"] for action in Action}
_PLAN_WAITS = (FlagAction.WAIT_ALL, FlagAction.WAIT_BLOCK)
_DEBUG_WAITS = (FlagAction.MARKED_WAIT_ALL, FlagAction.MARKED_WAIT_BLOCK)


@dataclass
class FlagClocks(Clocks):
    """What only plans with flags and locks have. Positions count the moves of a class from 1."""

    locks_seen: dict[tuple[int, CoreClass], int] = field(default_factory=dict)  # dynamic op -> where it was selected
    lock_resets: dict[int, ClassClock] = field(default_factory=dict)
    most_pending: int = 0  # signals in one flag


def walk(steps: tuple[Step, ...], launch: LaunchShape, fault: Fault) -> FlagClocks:
    return _ClassWalker(steps, launch, fault).run()


class _ClassWalker:
    def __init__(self, steps: tuple[Step, ...], launch: LaunchShape, fault: Fault) -> None:
        self.launch, self.fault, self.clocks = launch, fault, FlagClocks()
        self.moves = {core_class: list(_moves(steps, core_class)) for core_class in launch.classes}
        self.at = dict.fromkeys(launch.classes, 0)
        agents: tuple[Hashable, ...] = (*launch.classes, *(_BLOCK_0[core_class] for core_class in launch.classes))
        self.known: dict[CoreClass, ClassClock] = {c: dict.fromkeys(agents, 0) for c in launch.classes}
        self.arrivals: dict[CoreClass, deque[SignalState]] = defaultdict(deque)
        self.signals: dict[CoreClass, deque[SignalState]] = defaultdict(deque)
        self.arrived: dict[CoreClass, list[SignalState]] = defaultdict(list)  # all that the plan ever set
        self.signalled: dict[CoreClass, list[SignalState]] = defaultdict(list)
        self.given = dict.fromkeys(CoreClass, 0)  # signals
        self.taken: dict[CoreClass, list[int]] = defaultdict(list)  # where the other class took them
        self.beside = dict.fromkeys(CoreClass, 0)  # how far the other class is in the same block

    def run(self) -> FlagClocks:
        moved = True
        while moved:
            moved = False
            for core_class in self.launch.classes:
                while self.at[core_class] < len(self.moves[core_class]) and self._can(core_class):
                    self._do(core_class, *self.moves[core_class][self.at[core_class]])
                    moved = True
        for core_class in self.launch.classes:
            if self.at[core_class] < len(self.moves[core_class]):
                flag_action, step = self.moves[core_class][self.at[core_class]]
                self.fault("P4", f"{core_class.value} cores would wait for ever: {flag_action.value}, op {step.op}")
        for core_class in CoreClass:
            if self.arrivals[core_class] or self.signals[core_class]:
                left = len(self.arrivals[core_class]), len(self.signals[core_class])
                what = f"{left[0]} arrivals and {left[1]} signals of {core_class.value} cores"
                self.fault("P4", f"{what} are never waited for")
        return self.clocks

    def _can(self, core_class: CoreClass) -> bool:
        flag_action, step = self.moves[core_class][self.at[core_class]]
        if flag_action in (FlagAction.WAIT_ALL, FlagAction.DRAIN_ALL, FlagAction.MARKED_WAIT_ALL):
            return bool(self.arrivals[core_class])
        if flag_action in (FlagAction.WAIT_BLOCK, FlagAction.DRAIN_BLOCK, FlagAction.MARKED_WAIT_BLOCK):
            return bool(self.signals[_OTHER[core_class]])
        if isinstance(step, Select):
            return step.op in self.clocks.requests
        return True

    def _do(self, core_class: CoreClass, flag_action: FlagAction, step: Any) -> None:
        self.at[core_class] += 1
        position, known = self.at[core_class], self.known[core_class]
        match flag_action:
            case FlagAction.ARRIVE | FlagAction.MARKED_ARRIVE:
                # each core has also seen how far the cores of the other class in its block are: together, all of them
                other, beside = _OTHER[core_class], self.beside[core_class]
                arrived = {**known, core_class: position, _BLOCK_0[core_class]: position}
                for agent in (other, _BLOCK_0[other]):
                    if agent in arrived:
                        arrived[agent] = max(arrived[agent], beside)
                self._arrive(core_class, SignalState(arrived, position, flag_action is FlagAction.MARKED_ARRIVE))
            case FlagAction.SIGNAL | FlagAction.MARKED_SIGNAL:
                self._signal(core_class, SignalState(dict(known), position, flag_action is FlagAction.MARKED_SIGNAL))
            case FlagAction.WAIT_ALL | FlagAction.DRAIN_ALL | FlagAction.MARKED_WAIT_ALL:
                self._learn(core_class, flag_action, step, self.arrivals[core_class].popleft())
            case FlagAction.WAIT_BLOCK | FlagAction.DRAIN_BLOCK | FlagAction.MARKED_WAIT_BLOCK:
                signal = self.signals[_OTHER[core_class]].popleft()
                self.beside[core_class] = max(self.beside[core_class], signal.position)
                self.taken[_OTHER[core_class]].append(position)
                self._learn(core_class, flag_action, step, signal)
            case FlagAction.REFILL:
                self._refill(core_class, step)
            case FlagAction.BEGIN:
                self.clocks.begins[step.op, core_class] = dict(known)
                self.clocks.called_at[step.op, core_class] = position
            case FlagAction.WAIT_POINT:
                self.clocks.bodies[step.op, core_class] = dict(known)
            case FlagAction.END:
                if (step.op, core_class) in self.clocks.ends:
                    self.fault("P1", f"op {step.op} is called twice on {core_class.value} cores")
                self.clocks.ends[step.op, core_class] = position
            case FlagAction.OTHER:
                self._other(core_class, step, position)

    def _arrive(self, core_class: CoreClass, signal: SignalState) -> None:
        """A flag of the class: its waits limit how far a core is ahead."""
        self.arrivals[core_class].append(signal)
        if not signal.debug:
            self.arrived[core_class].append(signal)
        self.clocks.most_pending = max(self.clocks.most_pending, len(self.arrivals[core_class]))

    def _signal(self, core_class: CoreClass, signal: SignalState) -> None:
        """A flag in the block: only signals known to be taken make room."""
        self.signals[core_class].append(signal)
        if not signal.debug:
            self.signalled[core_class].append(signal)
        self.given[core_class] += 1
        seen = max(self.beside[core_class], self.known[core_class].get(_OTHER[core_class], 0))
        pending = self.given[core_class] - bisect_right(self.taken[core_class], seen)
        self.clocks.most_pending = max(self.clocks.most_pending, pending)

    def _learn(self, core_class: CoreClass, flag_action: FlagAction, step: Any, signal: SignalState) -> None:
        """A wait of the plan takes a signal of the plan; a debug barrier takes those under way, then those it gave."""
        if flag_action in _PLAN_WAITS and signal.debug:
            self.fault("P5", f"{core_class.value} cores take a signal of a debug barrier for one of the plan")
        if flag_action not in _PLAN_WAITS and signal.debug != (flag_action in _DEBUG_WAITS):
            where = f"{core_class.value} cores: the debug barrier after op {step.op}"
            self.fault("P12", f"{where} miscounts what is under way")
        self._join(core_class, signal.known)

    def _join(self, core_class: CoreClass, other: ClassClock) -> None:
        known = self.known[core_class]
        for of, position in other.items():
            known[of] = max(known[of], position)

    def _refill(self, core_class: CoreClass, step: Step) -> None:
        assert isinstance(step, DebugBarrier)
        for give, history, pending in (
            (self._arrive, self.arrived[core_class], dict(step.pending_arrivals)[core_class]),
            (self._signal, self.signalled[core_class], dict(step.pending_signals)[core_class]),
        ):
            for signal in history[len(history) - pending :]:
                give(core_class, replace(signal, position=self.at[core_class]))

    def _other(self, core_class: CoreClass, step: Step, position: int) -> None:
        known = self.known[core_class]
        if isinstance(step, AwaitEvent):
            self.clocks.polls.setdefault(step.event, []).append((_BLOCK_0[core_class], position))
        elif isinstance(step, Notify):
            self.clocks.notifies.append((step, dict(known)))
        elif isinstance(step, Request):
            self.clocks.requests[step.op] = {**known, _BLOCK_0[core_class]: position}
        elif isinstance(step, ResetLock):
            self.clocks.lock_resets[step.op] = dict(known)
        elif isinstance(step, Select):
            self.clocks.locks_seen[step.op, core_class] = position
            self._join(core_class, self.clocks.requests[step.op])


def _moves(steps: tuple[Step, ...], core_class: CoreClass) -> Iterator[Move]:
    for step in steps:
        if core_class not in step.cores:
            continue
        if isinstance(step, Arrive):
            yield FlagAction.ARRIVE, step
        elif isinstance(step, WholeBarrier):
            yield from ((_OF_ACTION[action], step) for action in step.actions(core_class))
        elif isinstance(step, Meet):
            yield from ((_OF_ACTION[action], step) for action in step.actions)
        elif isinstance(step, ClassCall):
            inside = step.inside_of(core_class)
            yield FlagAction.BEGIN, step
            yield from ((_OF_ACTION[action], step) for action in inside.actions)
            yield FlagAction.WAIT_POINT, step
            yield FlagAction.END, step
            if inside.arrives:
                yield FlagAction.ARRIVE, step
        elif isinstance(step, DebugBarrier):
            yield from _debug_moves(step, core_class)
        else:
            yield FlagAction.OTHER, step


def _debug_moves(step: DebugBarrier, core_class: CoreClass) -> Iterator[Move]:
    yield from [(FlagAction.DRAIN_ALL, step)] * dict(step.pending_arrivals)[core_class]
    yield from [(FlagAction.DRAIN_BLOCK, step)] * dict(step.pending_signals).get(_OTHER[core_class], 0)
    yield from ((_DEBUG_ACTION[action], step) for action in step.actions(core_class))
    yield FlagAction.REFILL, step
