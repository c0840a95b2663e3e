"""targets.ascend.walk: the steps of a plan -> what each class is sure of at every call; both classes run side by side.

Knows nothing of how plans are made. A class is followed as one agent: its cores do the same, and what it knows of a
class is how far all cores of that class are. Flags are queues of what was known when they were set. How full they get
is judged by what the setting class knows to be taken, whatever this walk has seen the other one do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from .launch_shape import Launch
from .pairs import PAIRS, Action
from .steps import Arrive, AwaitEvent, Call, DebugBarrier, Meet, Notify, Request, ResetLock, Select, Step
from .types import CUBE, VECTOR, CoreClass

Clock = dict[CoreClass, int]  # per class: how many of its moves all its cores have made
Fault = Callable[[str, str], None]  # property, message
_OTHER = {CUBE: VECTOR, VECTOR: CUBE}


@dataclass(frozen=True)
class SignalState:
    """What a signal says: what its class knew, where its sender was; and whether it is a debug barrier's own."""

    known: Clock
    position: int
    own: bool = False


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


Move = tuple[FlagAction, Step]
_OF_ACTION = {
    Action.WAIT_ALL: FlagAction.WAIT_ALL,
    Action.SIGNAL: FlagAction.SIGNAL,
    Action.WAIT_BLOCK: FlagAction.WAIT_BLOCK,
}
_OWN_ACTION = {
    Action.WAIT_ALL: FlagAction.MARKED_WAIT_ALL,
    Action.SIGNAL: FlagAction.MARKED_SIGNAL,
    Action.WAIT_BLOCK: FlagAction.MARKED_WAIT_BLOCK,
}
_PLANNED = (FlagAction.WAIT_ALL, FlagAction.WAIT_BLOCK)
_OWN = (FlagAction.MARKED_WAIT_ALL, FlagAction.MARKED_WAIT_BLOCK)


@dataclass
class Walked:
    """Positions count the moves of a class from 1."""

    begins: dict[tuple[int, CoreClass], Clock] = field(default_factory=dict)  # known when a call begins
    bodies: dict[tuple[int, CoreClass], Clock] = field(default_factory=dict)  # known past its wait point
    ends: dict[tuple[int, CoreClass], int] = field(default_factory=dict)  # where its call ends
    notifies: list[tuple[Notify, Clock]] = field(default_factory=list)
    requests: dict[int, tuple[CoreClass, int, Clock]] = field(default_factory=dict)
    polls: dict[str, tuple[CoreClass, int]] = field(default_factory=dict)
    locks_seen: dict[tuple[int, CoreClass], int] = field(default_factory=dict)  # dynamic op -> where it was selected
    lock_resets: dict[int, Clock] = field(default_factory=dict)
    most_pending: int = 0


def walk(steps: tuple[Step, ...], launch: Launch, fault: Fault) -> Walked:
    return _Walker(steps, launch, fault).run()


class _Walker:
    def __init__(self, steps: tuple[Step, ...], launch: Launch, fault: Fault) -> None:
        self.launch, self.fault, self.walked = launch, fault, Walked()
        self.moves = {one: list(_moves(steps, one)) for one in launch.classes}
        self.at = dict.fromkeys(launch.classes, 0)
        self.known: dict[CoreClass, Clock] = {a: dict.fromkeys(launch.classes, 0) for a in launch.classes}
        self.arrivals: dict[CoreClass, deque[SignalState]] = {one: deque() for one in CoreClass}
        self.signals: dict[CoreClass, deque[SignalState]] = {one: deque() for one in CoreClass}
        self.arrived: dict[CoreClass, list[SignalState]] = {one: [] for one in CoreClass}  # all that the plan ever set
        self.signalled: dict[CoreClass, list[SignalState]] = {one: [] for one in CoreClass}
        self.given = dict.fromkeys(CoreClass, 0)  # signals
        self.taken: dict[CoreClass, list[int]] = {one: [] for one in CoreClass}  # where the other class took them
        self.beside = dict.fromkeys(CoreClass, 0)  # how far the other class is in the own block

    def run(self) -> Walked:
        moved = True
        while moved:
            moved = False
            for one in self.launch.classes:
                while self.at[one] < len(self.moves[one]) and self._can(one):
                    self._do(one, *self.moves[one][self.at[one]])
                    moved = True
        for one in self.launch.classes:
            if self.at[one] < len(self.moves[one]):
                flag_action, step = self.moves[one][self.at[one]]
                self.fault("P4", f"{one.value} cores would wait for ever: {flag_action.value}, op {step.op}")
        for one in CoreClass:
            if self.arrivals[one] or self.signals[one]:
                left = len(self.arrivals[one]), len(self.signals[one])
                self.fault("P4", f"{left[0]} arrivals and {left[1]} signals of {one.value} cores are never waited for")
        return self.walked

    def _can(self, one: CoreClass) -> bool:
        flag_action, step = self.moves[one][self.at[one]]
        if flag_action in (FlagAction.WAIT_ALL, FlagAction.DRAIN_ALL, FlagAction.MARKED_WAIT_ALL):
            return bool(self.arrivals[one])
        if flag_action in (FlagAction.WAIT_BLOCK, FlagAction.DRAIN_BLOCK, FlagAction.MARKED_WAIT_BLOCK):
            return bool(self.signals[_OTHER[one]])
        if isinstance(step, Select):
            return step.op in self.walked.requests
        return True

    def _do(self, one: CoreClass, flag_action: FlagAction, step: Step) -> None:
        self.at[one] += 1
        position, known = self.at[one], self.known[one]
        match flag_action:
            case FlagAction.ARRIVE:
                self._arrive(one, SignalState({**known, one: position}, position))
            case FlagAction.SIGNAL:
                self._signal(one, SignalState(dict(known), position))
            case FlagAction.MARKED_ARRIVE:
                self._arrive(one, SignalState({**known, one: position}, position, own=True))
            case FlagAction.MARKED_SIGNAL:
                self._signal(one, SignalState(dict(known), position, own=True))
            case FlagAction.WAIT_ALL | FlagAction.DRAIN_ALL | FlagAction.MARKED_WAIT_ALL:
                self._learn(one, flag_action, step, self.arrivals[one].popleft())
            case FlagAction.WAIT_BLOCK | FlagAction.DRAIN_BLOCK | FlagAction.MARKED_WAIT_BLOCK:
                news = self.signals[_OTHER[one]].popleft()
                self.beside[one] = max(self.beside[one], news.position)
                self.taken[_OTHER[one]].append(position)
                self._learn(one, flag_action, step, news)
            case FlagAction.REFILL:
                self._refill(one, step)
            case FlagAction.BEGIN:
                self._begin(one, step)
            case FlagAction.WAIT_POINT:
                self.walked.bodies[step.op, one] = dict(known)
            case FlagAction.END:
                if (step.op, one) in self.walked.ends:
                    self.fault("P1", f"op {step.op} is called twice on {one.value} cores")
                self.walked.ends[step.op, one] = position
            case FlagAction.OTHER:
                self._other(one, step, position)

    def _begin(self, one: CoreClass, step: Step) -> None:
        assert isinstance(step, Call)
        self.walked.begins[step.op, one] = dict(self.known[one])

    def _arrive(self, one: CoreClass, news: SignalState) -> None:
        """A flag of the class: no core is further ahead than its own waits let it be."""
        self.arrivals[one].append(news)
        if not news.own:
            self.arrived[one].append(news)
        self.walked.most_pending = max(self.walked.most_pending, len(self.arrivals[one]))

    def _signal(self, one: CoreClass, news: SignalState) -> None:
        """A flag in the block: only what is known to be taken has made room."""
        self.signals[one].append(news)
        if not news.own:
            self.signalled[one].append(news)
        self.given[one] += 1
        seen = max(self.beside[one], self.known[one].get(_OTHER[one], 0))
        pending = self.given[one] - bisect_right(self.taken[one], seen)
        self.walked.most_pending = max(self.walked.most_pending, pending)

    def _learn(self, one: CoreClass, flag_action: FlagAction, step: Step, news: SignalState) -> None:
        """A wait of the plan takes a signal of the plan; a debug barrier takes those under way, then its own."""
        if flag_action in _PLANNED and news.own:
            self.fault("P5", f"{one.value} cores take a signal of a debug barrier for one of the plan")
        if flag_action not in _PLANNED and news.own != (flag_action in _OWN):
            self.fault("P12", f"{one.value} cores: the debug barrier after op {step.op} miscounts what is under way")
        self._join(one, news.known)

    def _join(self, one: CoreClass, other: Clock) -> None:
        known = self.known[one]
        for of, position in other.items():
            known[of] = max(known[of], position)

    def _refill(self, one: CoreClass, step: Step) -> None:
        assert isinstance(step, DebugBarrier)
        for give, history, pending in (
            (self._arrive, self.arrived[one], dict(step.pending_arrivals)[one]),
            (self._signal, self.signalled[one], dict(step.pending_signals)[one]),
        ):
            for news in history[len(history) - pending :]:
                give(one, replace(news, position=self.at[one]))

    def _other(self, one: CoreClass, step: Step, position: int) -> None:
        known = self.known[one]
        if isinstance(step, AwaitEvent):
            self.walked.polls[step.event] = one, position
        elif isinstance(step, Notify):
            self.walked.notifies.append((step, dict(known)))
        elif isinstance(step, Request):
            if step.op in self.walked.requests:
                self.fault("P16", f"the tiling of op {step.op} is requested twice")
            self.walked.requests[step.op] = one, position, dict(known)
        elif isinstance(step, ResetLock):
            self.walked.lock_resets[step.op] = dict(known)
        elif isinstance(step, Select):
            self.walked.locks_seen[step.op, one] = position
            self._join(one, self.walked.requests[step.op][2])


def _moves(steps: tuple[Step, ...], one: CoreClass) -> Iterator[Move]:
    for step in steps:
        if one not in step.classes:
            continue
        if isinstance(step, Arrive):
            yield FlagAction.ARRIVE, step
        elif isinstance(step, Meet):
            yield from ((_OF_ACTION[action], step) for action in step.actions)
        elif isinstance(step, Call):
            inside = step.inside[step.classes.index(one)] if step.inside else None
            yield FlagAction.BEGIN, step
            if inside is not None:
                yield from ((_OF_ACTION[action], step) for action in inside.actions)
            yield FlagAction.WAIT_POINT, step
            yield FlagAction.END, step
            if inside is not None and inside.arrives:
                yield FlagAction.ARRIVE, step
        elif isinstance(step, DebugBarrier):
            yield from _debug_moves(step, one)
        else:
            yield FlagAction.OTHER, step


def _debug_moves(step: DebugBarrier, one: CoreClass) -> Iterator[Move]:
    yield from [(FlagAction.DRAIN_ALL, step)] * dict(step.pending_arrivals)[one]
    yield from [(FlagAction.DRAIN_BLOCK, step)] * dict(step.pending_signals).get(_OTHER[one], 0)
    yield FlagAction.MARKED_ARRIVE, step
    yield from ((_OWN_ACTION[action], step) for action in PAIRS[step.pair][one])
    yield FlagAction.REFILL, step
