"""targets.ascend.walk: the steps of a plan -> what each class is sure of at every call; both classes run side by side.

Knows nothing of how plans are made. A class is followed as one agent: its cores do the same, and what it knows of a
class is how far all cores of that class are. Flags are queues of what was known when they were set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from .launch import Launch
from .pairs import PAIRS, Action
from .steps import Arrive, AwaitEvent, Call, DebugBarrier, Meet, Notify, Request, ResetLock, Select, Step
from .types import CUBE, VECTOR, CoreClass

Clock = dict[CoreClass, int]  # per class: how many of its moves all its cores have made
Fault = Callable[[str, str], None]  # property, message
_OTHER = {CUBE: VECTOR, VECTOR: CUBE}


class Deed(Enum):
    ARRIVE = "arrive"
    WAIT_ALL = "wait for the class"
    SIGNAL = "signal in the block"
    WAIT_BLOCK = "wait in the block"
    MARKED_ARRIVE = "arrive at a debug barrier"
    DRAIN_ALL = "wait for the class at a debug barrier"
    DRAIN_BLOCK = "wait in the block at a debug barrier"
    MARKED_SIGNAL = "signal at a debug barrier"
    REFILL = "give signals again behind a debug barrier"
    BEGIN = "begin a call"
    WAIT_POINT = "pass a wait point"
    END = "end a call"
    OTHER = "anything else"


Move = tuple[Deed, Step]
_OF_ACTION = {
    Action.WAIT_ALL: Deed.WAIT_ALL,
    Action.SIGNAL: Deed.SIGNAL,
    Action.WAIT_BLOCK: Deed.WAIT_BLOCK,
}


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
        self.arrivals: dict[CoreClass, deque[Clock | None]] = {one: deque() for one in CoreClass}
        self.signals: dict[CoreClass, deque[Clock | None]] = {one: deque() for one in CoreClass}
        self.arrived: dict[CoreClass, list[Clock]] = {one: [] for one in CoreClass}  # all that was ever set
        self.signalled: dict[CoreClass, list[Clock]] = {one: [] for one in CoreClass}
        self.to_drain: dict[tuple[CoreClass, Deed], int] = {}

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
                deed, step = self.moves[one][self.at[one]]
                self.fault("P4", f"{one.value} cores would wait for ever: {deed.value}, op {step.op}")
        for one in CoreClass:
            if self.arrivals[one] or self.signals[one]:
                left = len(self.arrivals[one]), len(self.signals[one])
                self.fault("P4", f"{left[0]} arrivals and {left[1]} signals of {one.value} cores are never waited for")
        return self.walked

    def _can(self, one: CoreClass) -> bool:
        deed, step = self.moves[one][self.at[one]]
        if deed in (Deed.WAIT_ALL, Deed.DRAIN_ALL):
            return bool(self.arrivals[one])
        if deed in (Deed.WAIT_BLOCK, Deed.DRAIN_BLOCK):
            return bool(self.signals[_OTHER[one]])
        if isinstance(step, Select):
            return step.op in self.walked.requests
        return True

    def _do(self, one: CoreClass, deed: Deed, step: Step) -> None:
        self.at[one] += 1
        position, known = self.at[one], self.known[one]
        match deed:
            case Deed.ARRIVE:
                self._set(self.arrivals[one], self.arrived[one], {**known, one: position})
            case Deed.SIGNAL:
                self._set(self.signals[one], self.signalled[one], dict(known))
            case Deed.MARKED_ARRIVE:
                self.arrivals[one].append(None)
            case Deed.MARKED_SIGNAL:
                self.signals[one].append(None)
            case Deed.WAIT_ALL:
                self._learn(one, self.arrivals[one].popleft())
            case Deed.WAIT_BLOCK:
                self._learn(one, self.signals[_OTHER[one]].popleft())
            case Deed.DRAIN_ALL:
                self._drain(one, deed, step, self.arrivals[one])
            case Deed.DRAIN_BLOCK:
                self._drain(one, deed, step, self.signals[_OTHER[one]])
            case Deed.REFILL:
                self._refill(one, step)
            case Deed.BEGIN:
                self._begin(one, step)
            case Deed.WAIT_POINT:
                self.walked.bodies[step.op, one] = dict(known)
            case Deed.END:
                if (step.op, one) in self.walked.ends:
                    self.fault("P1", f"op {step.op} is called twice on {one.value} cores")
                self.walked.ends[step.op, one] = position
            case Deed.OTHER:
                self._other(one, step, position)
        pending = [len(self.arrivals[one]), len(self.signals[one])]
        self.walked.most_pending = max(self.walked.most_pending, *pending)

    def _begin(self, one: CoreClass, step: Step) -> None:
        assert isinstance(step, Call)
        self.walked.begins[step.op, one] = dict(self.known[one])

    def _learn(self, one: CoreClass, news: Clock | None) -> None:
        if news is None:
            self.fault("P5", f"{one.value} cores take a signal of a debug barrier for one of the plan")
            return
        known = self.known[one]
        for of, position in news.items():
            known[of] = max(known[of], position)

    def _set(self, queue: deque[Clock | None], history: list[Clock], known: Clock) -> None:
        queue.append(known)
        history.append(known)

    def _drain(self, one: CoreClass, deed: Deed, step: Step, queue: deque[Clock | None]) -> None:
        """The last of what a debug barrier takes is its own signal: only then it is a barrier."""
        assert isinstance(step, DebugBarrier)
        pending = (
            dict(step.pending_arrivals)[one] if deed is Deed.DRAIN_ALL else dict(step.pending_signals)[_OTHER[one]]
        )
        left = self.to_drain.pop((one, deed), 1 + pending) - 1
        own = queue.popleft() is None
        if own != (left == 0):
            self.fault("P12", f"{one.value} cores: the debug barrier after op {step.op} miscounts what is under way")
        if left:
            self.to_drain[one, deed] = left

    def _refill(self, one: CoreClass, step: Step) -> None:
        assert isinstance(step, DebugBarrier)
        arrivals, signals = dict(step.pending_arrivals)[one], dict(step.pending_signals)[one]
        for queue, history, count in (
            (self.arrivals[one], self.arrived[one], arrivals),
            (self.signals[one], self.signalled[one], signals),
        ):
            for known in history[len(history) - count :]:
                self._set(queue, history, known)

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
            self._learn(one, self.walked.requests[step.op][2])


def _moves(steps: tuple[Step, ...], one: CoreClass) -> Iterator[Move]:
    for step in steps:
        if one not in step.classes:
            continue
        if isinstance(step, Arrive):
            yield Deed.ARRIVE, step
        elif isinstance(step, Meet):
            yield from ((_OF_ACTION[action], step) for action in step.actions)
        elif isinstance(step, Call):
            inside = step.inside[step.classes.index(one)] if step.inside else None
            yield Deed.BEGIN, step
            if inside is not None:
                yield from ((_OF_ACTION[action], step) for action in inside.actions)
            yield Deed.WAIT_POINT, step
            yield Deed.END, step
            if inside is not None and inside.arrives:
                yield Deed.ARRIVE, step
        elif isinstance(step, DebugBarrier):
            yield from _debug_moves(step, one)
        else:
            yield Deed.OTHER, step


def _debug_moves(step: DebugBarrier, one: CoreClass) -> Iterator[Move]:
    arrivals, signals = dict(step.pending_arrivals), dict(step.pending_signals)
    yield Deed.MARKED_ARRIVE, step
    for action in PAIRS[step.pair][one]:
        if action is Action.WAIT_ALL:
            yield from [(Deed.DRAIN_ALL, step)] * (1 + arrivals[one])
        elif action is Action.SIGNAL:
            yield Deed.MARKED_SIGNAL, step
        else:
            yield from [(Deed.DRAIN_BLOCK, step)] * (1 + signals[_OTHER[one]])
    yield Deed.REFILL, step
