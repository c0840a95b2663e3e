"""plan.simulate.launch: a plan, its memory and a source of randomness -> the moves of one launch, checked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ...model.tiling import Tiling
from ..classes import CoreClasses
from ..plan import Plan
from ..steps import (
    AwaitEvent,
    AwaitRanks,
    Barrier,
    Call,
    Cores,
    Feed,
    Notify,
    NotifyRanks,
    Request,
    ResetEvent,
    Select,
    Signal,
    Step,
    Wait,
)
from ..verify.validate import Finding
from .actors import Actor, Blocked, Moves, interleave
from .flags import Flags
from .memory import Memory, Piece, Rows, copy_name, digest, scratch_value

UNKNOWN_KEY = -7
DELAYS = (0, 3, 30, 300)
NO_BARRIERS: list[list[int]] = [[], [], [], []]


@dataclass
class Launch:
    """One launch of a plan on its state: `rows` is memory, `words` are the external events."""

    plan: Plan
    classes: CoreClasses
    rng: random.Random
    model: Memory
    rows: Rows
    words: dict[str, int]
    number: int
    answering: bool = False
    unknown_key: int | None = None

    def __post_init__(self) -> None:
        plan, classes, rng, words = self.plan, self.classes, self.rng, self.words
        self.salt = self.number  # of what ops compute: values of two launches differ
        nodes = plan.graph.nodes
        self.errors: list[Finding] = []
        self.deadlock: tuple[str, ...] = ()
        self.trapped: tuple[int, int] | None = None
        self.traces: list[list[Step]] = [[] for _ in range(plan.cores)]
        # what the outside decides in this launch
        self.answers = {node.index: self._tiling(node.index) for node in nodes if node.dynamic}
        self.barrier_counts = {node.index: rng.randint(0, 3) for node in nodes if node.kernel.sync_all}
        self.outside = {event: hash((self.number, i)) for i, event in enumerate(words)}  # data that comes with an event
        self.arrived: dict[str, int] = dict.fromkeys(words, -1)
        self.flags = Flags(plan, classes)
        self.lists = _lists(plan, classes)
        self.pending: dict[int, list[tuple[int, Wait]]] = {}  # core -> waits that its next call makes
        self.joins: Counter[tuple[int, int]] = Counter()  # (core, op)
        self.stored: dict[int, set[int]] = {}  # op -> cores that have stored all of its blocks
        self.digests: dict[tuple[int, int], set[int]] = {}  # (op, block): of every copy
        self.runs: dict[int, Counter[int]] = {}  # op -> block
        self.chosen: dict[tuple[int, int], Tiling] = {}  # (core, op)
        self.notified: set[str] = set()  # collectives at which this rank has arrived

    def run(self) -> None:
        expected = {name: self.rows[name].copy() for name in self.model.lengths}
        digests = self.model.serial(expected, self.answers, self.outside, self.salt)
        waiting = interleave([self.actors()], self.rng, lambda: self.trapped is not None)
        if self.trapped:
            return
        if waiting:
            self.deadlock = tuple(map(self.waits_of, waiting))
            self.fault("P4", "deadlock: " + "; ".join(self.deadlock))
        self.check(expected, digests)

    def actors(self) -> list[Actor]:
        cores = [Actor(f"core {core}", self.core_moves(core)) for core in range(self.plan.cores)]
        agent = Actor("the control agent", self.control_moves(), serves=True)
        return [*cores, agent, Actor("the outside", self.outside_moves())]

    def waits_of(self, actor: Actor) -> str:
        """What a blocked actor waits for."""
        assert actor.blocked is not None
        why = actor.blocked.why
        return f"{actor.name} waits: {self.plan.describe(why) if isinstance(why, Step) else why}"

    def fault(self, which: str, message: str) -> None:
        self.errors.append(Finding(which, message))

    def _name(self, op: int) -> str:
        return f"op {self.plan.op_names[op]!r}"

    # what the cores do

    def core_moves(self, core: int) -> Moves:
        for at, step in self.lists[self.classes.of_core[core]]:
            yield None
            match step:
                case Wait(inside=True):
                    self.pending.setdefault(core, []).append((at, step))
                case Wait():
                    yield from self._wait(core, at, step)
                case Barrier():
                    yield Blocked(self.flags.arrive(core, step.cores, at), step)
                case Call():
                    yield from self._call(core, step)
                case Feed():
                    yield from self._feed(core, step)
                case Signal():
                    self.flags.signal(core, step.mark)
                case Select():
                    yield from self._select(core, step.op)
                case Request():
                    self.flags.requests.append(step.op)
                case AwaitEvent(event=event):
                    yield Blocked(lambda event=event: self.words[event] == 1, f"event {event}")  # type: ignore[misc]
                case Notify():
                    self._notify(step)
                case ResetEvent():
                    self.words[step.event] = 0
                case NotifyRanks():
                    self.notify_ranks(step)
                case AwaitRanks():
                    yield Blocked(self.ranks_arrived(step), step)
                case _:
                    pass
            self.traces[core].append(step)

    def _wait(self, core: int, at: int, wait: Wait) -> Moves:
        yield Blocked(self.flags.met(wait, core), wait)
        if (at, self.classes.of_core[core]) in self.flags.crossed:
            self.fault("P5", f"core {core} takes another signal than it should: {self.plan.describe(wait)}")

    def _call(self, core: int, call: Call) -> Moves:
        tiling = self.chosen.get((core, call.op), Tiling(0, call.blocks))
        if (core, call.op) not in self.chosen and self.plan.graph.nodes[call.op].dynamic:
            self.fault("P16", f"core {core} calls {self._name(call.op)} before it has selected a variant")
        first = call.cores.index(core) % call.width
        blocks = range(first, tiling.blocks, call.width)
        for block in blocks:
            yield from self._block(core, call, block, tiling)
        for at, wait in self.pending.pop(core, ()):  # a core without a block still waits
            yield from self._wait(core, at, wait)
        if not blocks:
            yield from self._join_all(core, call.op, call.team)
        self.stored.setdefault(call.op, set()).add(core)
        if self.rng.random() < 0.7:
            self.flags.signal_inside(core, call.op)
        for _ in range(self.rng.randrange(3)):  # the end of a kernel, after its last store
            yield None

    def _block(self, core: int, call: Call, block: int, tiling: Tiling) -> Moves:
        """The block's moves: prologue, wait point, loads, stores; its sync_all barriers anywhere between them."""
        op, rng = call.op, self.rng
        touched = self.model.accesses(op, block, tiling.blocks)
        self.runs.setdefault(op, Counter())[block] += 1
        read = [self.salt, *(self.arrived[event] for event in self.plan.graph.nodes[op].awaits)]
        barriers = self._barrier_places(op) if op in self.barrier_counts else NO_BARRIERS
        for piece in touched.early:
            read.append(self.read(piece, core, op))
            yield None
        for stage in range(4):
            for number in barriers[stage]:
                yield from self._join_one(core, op, call.team, number)
            if stage == 0:
                for at, wait in self.pending.pop(core, ()):
                    yield from self._wait(core, at, wait)
                for piece in touched.scratch:
                    self.write(piece, core, scratch_value(op, block), op)
                    yield None
            elif stage == 1:
                for piece in touched.reads:
                    read.append(self.read(piece, core, op))
                    if rng.random() < 0.7:
                        yield None
            elif stage == 2:
                for piece in touched.scratch:
                    read.append(self.read(piece, core, op))
                    yield None
                value = digest(op, block, tiling, read)
                self.digests.setdefault((op, block), set()).add(value)
                for piece in touched.writes:
                    yield None
                    self.write(piece, core, value, op)

    def read(self, piece: Piece, core: int, op: int) -> int:
        return self.rows[self.model.stored_at(piece.buffer, core)].read(piece)

    def write(self, piece: Piece, core: int, value: int, op: int) -> None:
        row = self.model.stored_at(piece.buffer, core)
        self.rows[row].write(piece, value)
        if row == piece.buffer:
            for other in self.model.overwritten(piece):
                self.rows[other.buffer].write(other, ~value)

    def _barrier_places(self, op: int) -> list[list[int]]:
        """Stage of a block -> the sync_all barriers that it meets there, in order."""
        count = self.barrier_counts.get(op, 0)
        stages = sorted(self.rng.randrange(4) for _ in range(count))
        return [[number for number, s in enumerate(stages) if s == stage] for stage in range(4)]

    def _feed(self, core: int, feed: Feed) -> Moves:
        yield from self._join_all(core, feed.op, feed.team)
        callers = next((s.cores for s in self.plan.steps if isinstance(s, Call) and s.op == feed.op), ())
        stored = self.stored.setdefault(feed.op, set())
        yield Blocked(lambda: stored.issuperset(callers), feed)

    def _join_all(self, core: int, op: int, team: Cores) -> Moves:
        for number in range(self.barrier_counts.get(op, 0)):
            yield from self._join_one(core, op, team, number)

    def _join_one(self, core: int, op: int, team: Cores, number: int) -> Moves:
        self.joins[core, op] += 1
        if core not in team:
            self.fault("P14", f"core {core} joins a barrier of {self._name(op)}, whose team is {team}")
        yield Blocked(self.flags.arrive(core, team, (op, number)), f"barrier {number} of {self._name(op)}")

    def _select(self, core: int, op: int) -> Moves:
        yield Blocked(lambda: op in self.flags.locks, f"the tiling of {self._name(op)}")
        tiling = self.chosen[core, op] = self.flags.select(op)
        if tiling.key not in dict(self.plan.graph.nodes[op].kernel.tiling_variants):
            self.trapped = op, tiling.key

    def _notify(self, step: Notify) -> None:
        stream, order = self.plan.graph.nodes[step.op].stream, self.plan.graph.order
        for op in order[: order.index(step.op) + 1]:
            missing = set(self.plan.placements[op]) - self.stored.get(op, set())
            if self.plan.graph.nodes[op].stream == stream and missing:
                where = f"{self._name(op)} runs on cores {sorted(missing)}"
                self.fault("P6", f"event {step.event} is notified while {where}")
        if self.words[step.event]:
            self.fault("P7", f"event {step.event} is notified twice")
        self.words[step.event] = 1

    # other ranks: here they arrive when this one does

    def notify_ranks(self, step: NotifyRanks) -> None:
        missing = set(self.plan.placements[step.op]) - self.stored.get(step.op, set())
        if missing:
            where = f"{self._name(step.op)} runs on cores {sorted(missing)}"
            self.fault("P23", f"collective {step.collective!r} is notified while {where}")
        if step.collective in self.notified:
            self.fault("P23", f"collective {step.collective!r} is notified twice")
        self.notified.add(step.collective)

    def ranks_arrived(self, step: AwaitRanks) -> Callable[[], bool]:
        return lambda: step.collective in self.notified

    # what the outside does

    def _tiling(self, op: int) -> Tiling:
        kernel = self.plan.graph.nodes[op].kernel
        keys = [key for key, _ in kernel.tiling_variants]
        blocks = self.rng.choice((0, kernel.block_dim, self.rng.randint(0, kernel.block_dim)))
        return Tiling(UNKNOWN_KEY if op == self.unknown_key else self.rng.choice(keys), blocks)

    def control_moves(self) -> Moves:
        """The agent that answers requests: it reads the inputs of the op, then sets its lock."""
        while True:
            yield Blocked(lambda: bool(self.flags.requests), "no request")
            op = self.flags.requests.pop(self.rng.randrange(len(self.flags.requests)))
            for _ in range(self.rng.choice(DELAYS)):
                yield None
            read = [self.salt, *(self.arrived[event] for event in self.plan.graph.nodes[op].awaits)]
            for piece in self.model.inputs(op):
                read.append(self.rows[piece.buffer].read(piece))
                yield None
            self.digests[op, -1] = {digest(op, -1, self.answers[op], read)}
            self.flags.locks[op] = self.answers[op]

    def outside_moves(self) -> Moves:
        """The sender of the received events: data first, then the word."""
        nodes, order = self.plan.graph.nodes, self.plan.graph.order
        events = list(dict.fromkeys(event for op in order for event in nodes[op].awaits))
        if not self.answering:
            self.rng.shuffle(events)
        for event in events:
            if self.answering:
                first = next(at for at, op in enumerate(order) if event in nodes[op].awaits)
                before = [e for op in order[:first] for e in nodes[op].notifies]
                yield Blocked(lambda b=before: all(self.words[e] for e in b), f"{event} follows {before}")  # type: ignore[misc]
            for _ in range(self.rng.choice(DELAYS)):
                yield None
            self.arrived[event] = self.outside[event]
            yield None
            self.words[event] = 1

    # what must be true at the end

    def check(self, expected: Rows, digests: dict[tuple[int, int], int]) -> None:
        for node in self.plan.graph.nodes:
            blocks = self.answers[node.index].blocks if node.dynamic else node.blocks
            runs, copies = self.runs.get(node.index, Counter[int]()), len(self.plan.copies.get(node.index, (0,)))
            if not self.deadlock and runs != dict.fromkeys(range(blocks), copies):
                self.fault("P1", f"{self._name(node.index)} has {blocks} blocks, but ran {dict(runs)}")
        for (op, block), values in sorted(self.digests.items()):
            if values != {digests.get((op, block))}:
                what = "the tiling request" if block < 0 else f"block {block}"
                self.fault("P2", f"{what} of {self._name(op)} read other values than in a serial run")
        if self.deadlock:
            return
        for name, row in expected.items():
            copies_of = self.model.copied.get(name, {})
            for number in sorted({0, *copies_of.values()}):
                if number == 0 and name in self.model.sharing:
                    continue  # its bytes may belong to another buffer by now
                if row.cells != self.rows[copy_name(name, number)].cells:
                    which = "P19" if number else "P2"
                    self.fault(which, f"{copy_name(name, number)!r} ends with other values than in a serial run")
        for (other, core_class, _), count in self.flags.left_behind.items():
            pair = self.classes.members[core_class], self.classes.members[other]
            self.fault("P4", f"cores {pair[0]} leave {count} signals of cores {pair[1]} behind")
        for op in self.flags.locks:
            self.fault("P4", f"the lock of {self._name(op)} is still set")
        for op, count in self.barrier_counts.items():
            team = {core for s in self.plan.steps if isinstance(s, Call | Feed) and s.op == op for core in s.team}
            odd = {core: self.joins[core, op] for core in team if self.joins[core, op] != count}
            if odd:
                self.fault("P14", f"{self._name(op)} has {count} barriers, but cores joined {odd}")
        self._check_words()
        for collective in self.plan.graph.collectives:
            if collective.group.size > 1 and collective.name not in self.notified:
                self.fault("P23", f"collective {collective.name!r} was not notified")

    def _check_words(self) -> None:
        for node in self.plan.graph.nodes:
            for event in node.awaits:
                if self.words[event]:
                    self.fault("P7", f"the word of the received event {event} is not reset")
            for event in node.notifies:
                if not self.words[event]:
                    self.fault("P7", f"event {event} of {self._name(node.index)} was not notified")


def _lists(plan: Plan, classes: CoreClasses) -> list[list[tuple[int, Step]]]:
    """Per class: the steps that its cores follow, with their place in the plan."""
    lists: list[list[tuple[int, Step]]] = [[] for _ in range(len(classes))]
    for at, step in enumerate(plan.steps):
        for core_class in classes.split(step.cores):
            lists[core_class].append((at, step))
    return lists
