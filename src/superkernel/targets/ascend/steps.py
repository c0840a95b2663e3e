"""targets.ascend.steps: what Ascend adds to the steps of a plan: arrivals and meetings at flags, words of the chip.

The agents of these steps are classes of cores: flags cannot tell the cores of a class apart. Steps that belong to one
core (events, requests, resets) are done by block 0 of their class.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plan.steps import Barrier, Call, Fence, FenceWhen, Names, OpStep, Preload, Record, Step
from .core_types import CoreClass
from .pairs import Action, Pair, barrier_of

Classes = tuple[CoreClass, ...]
AT_ENTRY = -1  # in place of an op: before the first
_ACTION_WORDS = dict(zip(Action, ("wait for their class", "signal", "wait in the block", "arrive"), strict=True))


@dataclass(frozen=True)
class PreloadEntry(Preload):
    """Pull as much code as one request can towards the core, from the entry on."""

    ops: tuple[int, ...] = ()

    def text(self, names: Names) -> str:
        return "preload the beginning of the kernel"


@dataclass(frozen=True)
class Arrive(OpStep):
    """Each core of the class says that it has come this far, and done all before."""

    reached: str = "done with"

    def text(self, names: Names) -> str:
        place = f"{self.reached} {names[self.op]}" if self.op != AT_ENTRY else "at the beginning"
        return f"arrive: {_spelled(self.cores)} {place}"


@dataclass(frozen=True)
class Meet(OpStep):
    """The part of one class in the sync of a pair: what its cores do, in order."""

    pair: Pair
    actions: tuple[Action, ...]
    purpose: str  # before, notify after, ...

    def text(self, names: Names) -> str:
        actions = ", ".join(_ACTION_WORDS[action] for action in self.actions)
        return f"sync {self.purpose} {names[self.op]}: {self.pair}, {_spelled(self.cores)} {actions}"


@dataclass(frozen=True)
class WholeBarrier(OpStep):
    """All cores of the launch meet."""

    words = "barrier over all cores before {op}"

    def actions(self, core_class: CoreClass) -> tuple[Action, ...]:
        return barrier_of(self.cores)[core_class]


class Drain(Step):
    """The transfers of each core have landed, and its buffers are free for the next op. What arrives at a flag, or
    signals, does so behind the stores of its core, and needs none."""

    words = "drain the pipes"


class ResetLock(OpStep):
    """Block 0 sets the lock of a dynamic op back to 0: every core has seen it."""

    words = "reset the lock of {op}"


class PrefetchGo(OpStep):
    """Block 0 tells the copy engine to bring the weights of `op` closer. No core waits for it."""

    words = "ask for the weights of {op}"


@dataclass(frozen=True)
class InsideSync:
    """The sync that a sub-kernel with an early-start pair makes itself, for one class."""

    pair: Pair | None  # the sync that its wait point makes; None: nothing is left to wait for
    actions: tuple[Action, ...]  # the same for cores without a block, which make it in the entry
    arrives: bool  # it arrives at its class flag itself; cores without a block do so in the entry


NOTHING_INSIDE = InsideSync(None, (), False)


@dataclass(frozen=True)
class ClassCall(Call):
    """The op, on the cores of its classes that have a block of it."""

    inside: tuple[InsideSync, ...] = ()  # per class of the call; empty: it has no early-start pair
    fed: Classes = ()  # cores of these classes without a block join its barriers

    def inside_of(self, core_class: CoreClass) -> InsideSync:
        """What the call itself does on a class."""
        return self.inside[self.cores.index(core_class)] if self.inside else NOTHING_INSIDE

    def text(self, names: Names) -> str:
        fed = f", its barriers joined by idle {_spelled(self.fed)}" if self.fed else ""
        return f"call {names[self.op]} on {_spelled(self.cores)}{fed}"


@dataclass(frozen=True)
class CacheFence(Fence):
    """Write back and invalidate the whole data cache."""

    def text(self, names: Names) -> str:
        place = "before" if self.when is FenceWhen.BEFORE else "after"
        return f"data cache out {place} {names[self.op]}{' (debug)' if self.debug else ''}"


@dataclass(frozen=True)
class DebugBarrier(Barrier):
    """All cores of the launch meet. Signals under way at this point are taken, and given again behind it."""

    debug: bool = True
    pending_arrivals: tuple[tuple[CoreClass, int], ...] = ()  # class -> arrivals that no core has waited for
    pending_signals: tuple[tuple[CoreClass, int], ...] = ()  # class that signalled -> the same inside blocks

    def actions(self, core_class: CoreClass) -> tuple[Action, ...]:
        return barrier_of(self.cores)[core_class]

    def text(self, names: Names) -> str:
        return f"barrier over all cores after {names[self.op]} (debug)"


class LeaderRecord(Record):
    """A time stamp that block 0 alone takes, which does what is marked."""


class ClearFeed(Step):
    """The control words of feed-sync-all are cleared by the cores of each class, which then meet."""

    words = "clear the control words of sync_all"


class InitDump(Step):
    """Each core prepares its part of the dump area."""

    words = "prepare the dump area"


def _spelled(classes: Classes) -> str:
    return " and ".join(core_class.value for core_class in classes) + " cores"
