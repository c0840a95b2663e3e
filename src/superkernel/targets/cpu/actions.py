"""targets.cpu.actions: one step of a plan -> what a core does, as words with operands: the vocabulary of emitted code.

The words are those of `Core` in core.h. They are printed as lines of C++ (emit_lines) or as rows of a table
(emit_table, table.h); read_back reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ...model.argument_layout import Role, Slot
from ...model.params import Kind, Param
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import Plan, steps
from ...plan.steps import Call, Cores, Need, Signal, Step, Wait
from .numbering import CopyArea, Numbering, ranges

ALONE = (0,)  # the cores of a launch that one core runs


class Word(StrEnum):
    """What a core can do."""

    PRELOAD = "preload"
    PREFETCH = "prefetch"
    AWAIT_EVENT = "await_event"
    NOTIFY = "notify"
    RESET_EVENT = "reset_event"
    NOTIFY_RANKS = "notify_ranks"
    AWAIT_RANKS = "await_ranks"
    REQUEST = "request"
    COMPUTE_TILING = "compute_tiling"
    SELECT = "select"
    WAIT = "wait"
    WAIT_ALL = "wait_all"
    WAIT_INSIDE = "wait_inside"
    WAIT_INSIDE_ALL = "wait_inside_all"
    BARRIER = "barrier"
    SIGNAL = "signal"
    SIGNAL_EARLY = "signal_early"
    MEET_IN = "meet_in"
    CALL = "call"
    FEED_IDLE = "feed_idle"
    MEETING_OVER = "meeting_over"
    END_CALL = "end_call"
    FEED = "feed"
    FENCE = "fence"
    RECORD = "record"


@dataclass(frozen=True)
class Value:
    """The value of an argument slot."""

    slot: Slot


@dataclass(frozen=True)
class Rank:
    """The place of the running core among `cores`; modulo `width` where several copies of an op are computed."""

    cores: Cores
    width: int = 0


@dataclass(frozen=True)
class Code:
    """The function of a sub-kernel: its variant by number."""

    kernel: SubKernel
    variant: int


@dataclass(frozen=True)
class Choice:
    """What the tiling of a dynamic op chose."""

    op: int


@dataclass(frozen=True)
class Meeting:
    """The rendezvous of a sync_all op, by number."""

    index: int


@dataclass(frozen=True)
class TilingFunction:
    """The C function that chooses the tiling of an op."""

    op: int


Operand = int | bool | None | Value | Rank | Code | Choice | Meeting | TilingFunction


@dataclass(frozen=True)
class Action:
    """One word with its operands, in the order of the member function; None: an operand that is left out."""

    word: Word
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class CallAction(Action):
    """All blocks of an op that one core runs."""

    word: Word = Word.CALL
    step: int = 0
    op: int = 0
    rank: Rank = Rank(ALONE)
    width: int = 1
    blocks: int = 0


@dataclass(frozen=True)
class LinkedKernel:
    """The symbols of a sub-kernel in the merged object: per tiling key, one per copy."""

    variants: tuple[tuple[int, tuple[str, ...]], ...]
    code_bytes: int


@dataclass(frozen=True)
class Argument:
    """One argument of a call: a slot; of a scalar its type, of a replicated buffer where its copies lie."""

    param: Param
    slot: Slot
    scalar: str | None
    area: CopyArea | None


_ON_ONE_CORE = (
    *(steps.AwaitEvent, steps.Notify, steps.ResetEvent, steps.NotifyRanks, steps.AwaitRanks),
    *(steps.Request, steps.Select, steps.Record),
)


@dataclass(frozen=True)
class Actions:
    """The actions of every step of a plan."""

    plan: Plan
    numbers: Numbering
    linked: Mapping[SubKernel, LinkedKernel]
    tilings: Mapping[CompiledTiling, str]  # -> symbol in the merged object

    def of_step(self, i: int, step: Step) -> Iterator[Action]:
        """What a core of the step does at step `i` of the plan."""
        match step:
            case steps.Preload():
                for kernel in [self.plan.graph.nodes[op].kernel for op in step.ops]:
                    for variant in range(len(self.linked[kernel].variants)):
                        yield Action(Word.PRELOAD, (Code(kernel, variant),))
            case steps.PrefetchWeights():
                for name in step.names:
                    slot = next(s for s in self.slots_of(step.op) if s.source == name and s.role is Role.PARAM)
                    yield Action(Word.PREFETCH, (Value(slot), Rank(step.cores), len(step.cores), step.budget))
            case steps.AwaitEvent():
                yield Action(Word.AWAIT_EVENT, (i, self._event(step.op, step.event, Role.RECV)))
            case steps.Notify():
                yield Action(Word.NOTIFY, (self._event(step.op, step.event, Role.SEND),))
            case steps.ResetEvent():
                yield Action(Word.RESET_EVENT, (Value(self._received[step.event]),))
            case steps.NotifyRanks():
                yield Action(Word.NOTIFY_RANKS, (self._window(step), step.group.rank))
            case steps.AwaitRanks():
                yield Action(Word.AWAIT_RANKS, (i, self._window(step), step.group.rank, step.group.size))
            case steps.ComputeTiling():
                most = self.plan.graph.nodes[step.op].blocks
                operands = (i, self.numbers.tilings[step.op], TilingFunction(step.op), most)
                yield Action(Word.COMPUTE_TILING, operands)
            case steps.Request():
                yield Action(Word.REQUEST, (self.numbers.tilings[step.op],))
            case steps.Select():
                node = self.plan.graph.nodes[step.op]
                tiling = self.numbers.tilings[step.op]
                yield Action(Word.SELECT, (i, tiling, Choice(step.op), Code(node.kernel, 0), node.blocks))
            case steps.Wait():
                for need in step.needs:
                    yield from self._wait(i, need, step.inside)
            case steps.Barrier():
                stamp = self.numbers.barriers[i]
                for index, (first, last) in enumerate(ranges(step.cores)):
                    yield Action(Word.WAIT if index else Word.BARRIER, (i, stamp, first, last))
            case steps.Call():
                yield from self._call(i, step)
            case steps.Feed():
                yield Action(Word.FEED, (i, Meeting(self.numbers.rendezvous[step.op]), len(step.team)))
            case steps.Signal():
                yield Action(Word.SIGNAL, self._published(step))
            case steps.Fence():
                yield Action(Word.FENCE)
            case steps.Record():
                yield Action(Word.RECORD, (i,))
            case _:
                raise AssertionError(f"a step that the cpu target does not have: {step}")

    def of_step_alone(self, i: int, step: Step) -> Iterator[Action]:
        """What is left of a step for a core that is alone: no waits, no signals, all blocks."""
        if isinstance(step, Call):
            yield CallAction(step=i, op=step.op, blocks=step.blocks)
        elif isinstance(step, _ON_ONE_CORE):
            yield from self.of_step(i, step)

    def arguments(self, op: int) -> list[Argument]:
        kernel = self.plan.graph.nodes[op].kernel
        slots = [slot for slot in self.slots_of(op) if slot.role is Role.PARAM]
        return [
            Argument(param, slot, param.dtype or "int64", None)
            if param.kind is Kind.SCALAR
            else Argument(param, slot, None, self.numbers.copies.get(slot.source or ""))
            for param, slot in zip(kernel.params, slots, strict=True)
        ]

    def tiling_symbol(self, op: int) -> str:
        tiling = self.plan.graph.nodes[op].compiled_tiling
        assert tiling is not None
        return self.tilings[tiling]

    def copy_index(self, op: int) -> tuple[int, ...] | None:
        """Per core, which copy of the outputs of a replicated op it uses; None: core `c` uses copy `c`."""
        copies = self.plan.copies[op]
        if [copy.readers for copy in copies] == [(core,) for core in range(len(copies))]:
            return None
        copy_of = {core: number for number, copy in enumerate(copies) for core in copy.readers}
        return tuple(copy_of.get(core, 0) for core in range(self.plan.cores))

    def slots_of(self, op: int) -> tuple[Slot, ...]:
        return self.numbers.layout.of_op.get(self.plan.graph.nodes[op].name, ())

    def _call(self, i: int, step: Call) -> Iterator[Action]:
        node = self.plan.graph.nodes[step.op]
        rank = Rank(step.cores, step.width if step.copies > 1 else 0)
        early = self._early_signal(step)
        if early:
            yield Action(Word.SIGNAL_EARLY, self._published(early))
        if step.team:
            meeting, members = Meeting(self.numbers.rendezvous[step.op]), len(step.team)
            yield Action(Word.MEET_IN, (meeting, members, members > step.width or node.dynamic))
        yield CallAction(step=i, op=step.op, rank=rank, width=step.width, blocks=step.blocks)
        if step.team and node.dynamic:
            yield Action(Word.FEED_IDLE, (i, meeting, members, rank, Choice(step.op)))
        if step.team:
            yield Action(Word.MEETING_OVER, (rank,))
        if early or step.team or step.op in self._waiting_inside:
            yield Action(Word.END_CALL)

    def _early_signal(self, step: Call) -> Signal | None:
        """The signal that a call may give by itself. A counter must not be raised by cores that do not count there."""
        early = self._early_signals.get(step.op)
        if early is not None and (early.mark, early.cores) in self.numbers.counters:
            return early if set(early.cores) == set(step.cores) else None
        return early

    def _wait(self, i: int, need: Need, inside: bool) -> Iterator[Action]:
        counter = self.numbers.counter_of(need)
        if counter is not None:
            word = Word.WAIT_INSIDE_ALL if inside else Word.WAIT_ALL
            yield Action(word, (i, counter, len(need.cores)))
            return
        word = Word.WAIT_INSIDE if inside else Word.WAIT
        for first, last in ranges(need.cores):
            yield Action(word, (i, self.numbers.stamps[need.mark], first, last))

    def _published(self, signal: Signal) -> tuple[Operand, ...]:
        """The stamp of a signal, and its counter if it has one."""
        return self.numbers.stamps[signal.mark], self.numbers.counters.get((signal.mark, signal.cores))

    def _event(self, op: int, event: str, role: Role) -> Value:
        return Value(next(slot for slot in self.slots_of(op) if slot.role is role and slot.source == event))

    def _window(self, step: steps.NotifyRanks | steps.AwaitRanks) -> Value:
        """The slot of the op that holds the address of the window."""
        sends = isinstance(step, steps.NotifyRanks)
        syncs = self.plan.graph.nodes[step.op].ranks
        window = next(sync.window for sync in syncs if (sync.collective, sync.sends) == (step.collective, sends))
        return Value(next(s for s in self.slots_of(step.op) if s.role is Role.PARAM and s.source == window))

    @cached_property
    def _received(self) -> dict[str | None, Slot]:
        """Event -> the first slot that receives it."""
        return {slot.source: slot for slot in reversed(self.numbers.layout.slots) if slot.role is Role.RECV}

    @cached_property
    def _early_signals(self) -> dict[int, Signal]:
        """Op -> the signal that its call may give by itself."""
        return {s.mark.op: s for s in self.plan.steps if isinstance(s, Signal) and s.inside}

    @cached_property
    def _waiting_inside(self) -> frozenset[int]:
        """Ops that wait at a point of their own."""
        return frozenset(s.op for s in self.plan.steps if isinstance(s, Wait) and s.inside)
