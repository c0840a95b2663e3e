"""plan.steps: the vocabulary of a plan. A plan is one sequence of steps; every core follows its part of it, in order.

The vocabulary serves every target. A step names the agents that take it: cores, or classes of cores on a target whose
sync addresses whole classes.

The sequence itself is a legal serial execution: a wait only ever names signals that stand before it. That is why no
interleaving of the cores can deadlock, and why one core alone can run the whole plan from top to bottom.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar

from ..model.ranks import RankGroup

Agent = Hashable  # a core, or a class of cores
Cores = tuple[int, ...]
Names = Sequence[str]  # the ops' names, by index


def spell(cores: Cores) -> str:
    """(0, 1, 2, 5) -> '0-2,5'."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


class Point(Enum):
    """What a core has reached when it signals."""

    GATE = 0  # it has seen the external events of the op
    DONE = 1  # it has finished its blocks of the op


@dataclass(frozen=True, order=True)
class Mark:
    """A point in the life of an op. Signals and waits are labelled with marks."""

    rank: int  # the op's place in the serial order
    point: int  # Point.value; an int so that marks order by (rank, point)
    op: int  # the op's index in the graph

    def text(self, names: Names) -> str:
        return f"{names[self.op]} {'done' if self.point == Point.DONE.value else 'through its gate'}"


@dataclass(frozen=True)
class Need:
    """What a wait waits for: every core of `cores`, but the waiting one itself, has signalled `mark`.

    near: every waiting core waits for those of `cores` alone that are in its own group.
    """

    mark: Mark
    cores: Cores
    near: bool = False

    def text(self, names: Names) -> str:
        where = f"{spell(self.cores)}, each in its group" if self.near else spell(self.cores)
        return f"{self.mark.text(names)} on {where}"


@dataclass(frozen=True)
class Step:
    """Something the cores in `cores` do, in the order of the plan; other cores skip it."""

    words: ClassVar[str]  # what happens; {step} and {op}, the name of its op, are filled in
    cores: tuple[Any, ...]  # the agents: numbers of cores, or classes of cores

    def text(self, names: Names) -> str:
        """One line that says what happens, with the user's names."""
        return self.words.format(step=self)


@dataclass(frozen=True)
class OpStep(Step):
    """A step that belongs to one op."""

    op: int

    def text(self, names: Names) -> str:
        return self.words.format(step=self, op=names[self.op])


@dataclass(frozen=True)
class Preload(Step):
    """Pull the code of `ops` towards the cores."""

    ops: tuple[int, ...]

    def text(self, names: Names) -> str:
        return f"preload the code of {', '.join(names[op] for op in self.ops)}"


@dataclass(frozen=True)
class PrefetchWeights(OpStep):
    """Pull up to `budget` bytes per core of an op's constant inputs towards the cache.

    With `part`, a range of bytes: that range of the only input, shared out among the cores, towards a cache of all.
    """

    names: tuple[str, ...]
    budget: int
    part: tuple[int, int] | None = None

    def text(self, names: Names) -> str:
        where = "" if self.part is None else f", bytes {self.part[0]} to {self.part[1]}"
        return f"prefetch weights of {names[self.op]}: {', '.join(self.names)}{where}"


@dataclass(frozen=True)
class StageWeights(OpStep):
    """Every core copies its chunks of an op's constant input into its ring, behind those of the steps before.

    From here on it does so beside its other steps, as the ring has room; its call takes them out.
    """

    name: str

    def text(self, names: Names) -> str:
        return f"stage weights of {names[self.op]}: {self.name}"


@dataclass(frozen=True)
class AwaitEvent(OpStep):
    """One core polls an external word until it is 1."""

    words = "wait for event {step.event} before {op}"
    event: str


@dataclass(frozen=True)
class Notify(OpStep):
    """One core sets an external word to 1."""

    words = "notify event {step.event} after {op}"
    event: str


@dataclass(frozen=True)
class ResetEvent(Step):
    """One core sets the word of a received event back to 0."""

    words = "reset event {step.event}"
    event: str


@dataclass(frozen=True)
class NotifyRanks(OpStep):
    """One core publishes to the ranks of a group that this rank has arrived at a collective: the op is done."""

    words = "notify ranks of {step.group} after {op}: collective {step.collective}"
    collective: str
    group: RankGroup


@dataclass(frozen=True)
class AwaitRanks(OpStep):
    """Each core blocks until every rank of a group, this one as well, has arrived at a collective in this round."""

    words = "wait for ranks of {step.group} before {op}: collective {step.collective}"
    collective: str
    group: RankGroup


class Request(OpStep):
    """One core asks the control agent for the tiling of a dynamic op, once all that the op reads is there."""

    words = "request the tiling of {op}"


class ComputeTiling(Request):
    """One core calls the C function that chooses the tiling of a dynamic op, once all that the op reads is there."""

    words = "compute the tiling of {op}"


class Select(OpStep):
    """Each core polls the lock word of a dynamic op, then knows its variant and block count. Ordered after Request."""

    words = "select the variant of {op}"


@dataclass(frozen=True)
class Wait(OpStep):
    """Each core blocks until all `needs` are met. inside: at the wait point of the call that follows.

    A core that turns out to have no block of that call still makes its wait before it goes on.
    """

    needs: tuple[Need, ...]
    inside: bool = False
    behind: bool = False  # after the op, before its notify

    def text(self, names: Names) -> str:
        where = "at the wait point of" if self.inside else "after" if self.behind else "before"
        return f"wait {where} {names[self.op]}: {'; '.join(need.text(names) for need in self.needs)}"


@dataclass(frozen=True)
class Barrier(OpStep):
    """Every core of `cores` waits until all of them have arrived."""

    debug: bool = False

    def text(self, names: Names) -> str:
        return f"barrier {'after' if self.debug else 'before'} {names[self.op]}{' (debug)' if self.debug else ''}"


@dataclass(frozen=True)
class Call(OpStep):
    """Block b of `blocks` runs on cores[b % len(cores)], blocks of one core in rising order.

    The cores of a replicated op stand copy by copy: each of `copies` equal runs of them computes all blocks.
    """

    blocks: int
    team: Cores = ()  # sync_all only: the cores that join its barriers (the callers and the feeders)
    copies: int = 1

    @property
    def width(self) -> int:
        """The cores of one copy."""
        return len(self.cores) // self.copies

    def text(self, names: Names) -> str:
        team = f", sync_all joined by {spell(self.team)}" if self.team else ""
        copies = f", {self.copies} copies" if self.copies > 1 else ""
        return f"call {names[self.op]}: {self.blocks} block{'s' if self.blocks > 1 else ''}{copies}{team}"


@dataclass(frozen=True)
class Feed(OpStep):
    """Cores without a block of a sync_all op join each of its barriers until it ends. Concurrent with its Call."""

    words = "feed the barriers of {op}"
    team: Cores


@dataclass(frozen=True)
class Signal(Step):
    """Each core publishes that it has reached `mark`. inside: the preceding call may, after its last buffer access.

    The mark is published at this step at the latest.
    """

    mark: Mark
    inside: bool = False

    def text(self, names: Names) -> str:
        return f"signal {self.mark.text(names)}{', early if it can' if self.inside else ''}"


class FenceWhen(Enum):
    BEFORE = "before"
    AFTER = "after"
    DEBUG = "debug"


@dataclass(frozen=True)
class Fence(OpStep):
    """Data cache maintenance around an op."""

    when: FenceWhen

    def text(self, names: Names) -> str:
        when = "after" if self.debug else self.when.value
        return f"fence {when} {names[self.op]}{' (debug)' if self.debug else ''}"

    @property
    def debug(self) -> bool:
        return self.when is FenceWhen.DEBUG


class SpanKind(StrEnum):
    """What a core does between two time stamps."""

    KERNEL = "kernel"  # the whole launch, around all other spans
    OP = "op"
    WAIT = "wait"
    BARRIER = "barrier"  # a wait of all cores for all cores; a plan records it as a wait
    NOTIFY = "notify"
    RANKS = "wait for ranks"  # other processes


@dataclass(frozen=True)
class Record(Step):
    """Take a time stamp."""

    what: SpanKind
    begin: bool
    op: int | None = None

    def text(self, names: Names) -> str:
        whom = "" if self.op is None else f" {names[self.op]}"
        return f"record the {'begin' if self.begin else 'end'} of {self.what.value}{whom}"
