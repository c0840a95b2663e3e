"""targets.ascend.steps: the vocabulary of an Ascend plan; the cores of a class follow their part of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan.steps import FenceWhen, Names, SpanKind
from .pairs import Action, Pair
from .types import CoreClass

Classes = tuple[CoreClass, ...]


@dataclass(frozen=True)
class Step:
    """Something that all cores of `classes` do; steps that belong to block 0 say so."""

    classes: Classes
    op: int  # the op it belongs to; -1: the kernel

    def text(self, names: Names) -> str:
        raise AssertionError(f"{type(self).__name__} says nothing of itself")


@dataclass(frozen=True)
class Preload(Step):
    """Pull the code of `op` towards the core; -1: as much as one request can, from the entry on."""

    def text(self, names: Names) -> str:
        return "preload the beginning of the kernel" if self.op < 0 else f"preload the code of {names[self.op]}"


@dataclass(frozen=True)
class Arrive(Step):
    """Each core of the class says that it has come this far, and done all before."""

    reached: str = "done with"

    def text(self, names: Names) -> str:
        place = f"{self.reached} {names[self.op]}" if self.op >= 0 else "at the beginning"
        return f"arrive: {_who(self.classes)} {place}"


@dataclass(frozen=True)
class Meet(Step):
    """The part of one class in the sync of a pair: what its cores do, in order."""

    pair: Pair
    actions: tuple[Action, ...]
    purpose: str  # before, notify after, ...

    def text(self, names: Names) -> str:
        return f"sync {self.purpose} {names[self.op]}: {self.pair}, {_who(self.classes)} {_spelled(self.actions)}"


@dataclass(frozen=True)
class AwaitEvent(Step):
    """Block 0 polls an external word until it is 1."""

    event: str

    def text(self, names: Names) -> str:
        return f"wait for event {self.event} before {names[self.op]}"


@dataclass(frozen=True)
class Notify(Step):
    """Block 0 sets an external word to 1."""

    event: str

    def text(self, names: Names) -> str:
        return f"notify event {self.event} after {names[self.op]}"


@dataclass(frozen=True)
class ResetEvent(Step):
    """Block 0 sets a received word back to 0."""

    event: str

    def text(self, names: Names) -> str:
        return f"reset event {self.event}"


@dataclass(frozen=True)
class Request(Step):
    """Block 0 asks the control agent for the tiling of a dynamic op: all that the op reads is there."""

    def text(self, names: Names) -> str:
        return f"request the tiling of {names[self.op]}"


@dataclass(frozen=True)
class Select(Step):
    """Each core polls the lock of a dynamic op, then reads tiling key and block count."""

    def text(self, names: Names) -> str:
        return f"select the variant of {names[self.op]}"


@dataclass(frozen=True)
class ResetLock(Step):
    """Block 0 sets the lock back to 0: every core has seen it."""

    def text(self, names: Names) -> str:
        return f"reset the lock of {names[self.op]}"


@dataclass(frozen=True)
class PrefetchGo(Step):
    """Block 0 tells the copy engine to bring the constant inputs of `op` closer."""

    def text(self, names: Names) -> str:
        return f"ask for the weights of {names[self.op]}"


@dataclass(frozen=True)
class PrefetchDone(Step):
    """Block 0 sees that the copy engine has come so far; the others do not wait."""

    def text(self, names: Names) -> str:
        return f"see the weights of {names[self.op]} come"


@dataclass(frozen=True)
class Inside:
    """The sync that a sub-kernel with an early-start pair makes itself, for one class."""

    pair: Pair | None  # the sync that its wait point makes; None: nothing is left to wait for
    actions: tuple[Action, ...]  # the same for cores without a block, which make it in the entry
    arrives: bool  # it arrives at its class flag itself; cores without a block do so in the entry


@dataclass(frozen=True)
class Call(Step):
    """The op, on the cores of `classes` that have a block of it."""

    inside: tuple[Inside, ...] = ()  # as `classes`; empty: it has no early-start pair
    fed: Classes = ()  # cores of these classes without a block join its barriers

    def text(self, names: Names) -> str:
        fed = f", its barriers joined by idle {_who(self.fed)}" if self.fed else ""
        return f"call {names[self.op]} on {_who(self.classes)}{fed}"


@dataclass(frozen=True)
class Fence(Step):
    """Write back and invalidate the whole data cache."""

    when: FenceWhen

    def text(self, names: Names) -> str:
        place = "before" if self.when is FenceWhen.BEFORE else "after"
        return f"data cache out {place} {names[self.op]}{' (debug)' if self.when is FenceWhen.DEBUG else ''}"


@dataclass(frozen=True)
class DebugBarrier(Step):
    """All cores of the launch meet. Signals under way at this point are taken, and given again behind it."""

    pair: Pair
    pending_arrivals: tuple[tuple[CoreClass, int], ...] = ()  # class -> arrivals that no core has waited for
    pending_signals: tuple[tuple[CoreClass, int], ...] = ()  # class that signalled -> the same inside blocks

    def text(self, names: Names) -> str:
        return f"barrier over all cores after {names[self.op]} (debug)"


@dataclass(frozen=True)
class Record(Step):
    """Take a time stamp; marks of an op are taken by the cores that have a block of it."""

    what: SpanKind
    begin: bool
    first_only: bool = False  # by block 0 alone, which does what is marked

    def text(self, names: Names) -> str:
        whom = "" if self.op < 0 else f" {names[self.op]}"
        return f"record the {'begin' if self.begin else 'end'} of {self.what.value}{whom}"


@dataclass(frozen=True)
class ClearFeed(Step):
    """The control words of feed-sync-all are cleared by the cores of each class, which then meet."""

    def text(self, names: Names) -> str:
        return "clear the control words of sync_all"


@dataclass(frozen=True)
class InitDump(Step):
    """Each core prepares its part of the dump area."""

    def text(self, names: Names) -> str:
        return "prepare the dump area"


def _who(classes: Classes) -> str:
    return " and ".join(core_class.value for core_class in classes) + " cores"


def _spelled(actions: tuple[Action, ...]) -> str:
    words = {Action.WAIT_ALL: "wait for their class", Action.SIGNAL: "signal", Action.WAIT_BLOCK: "wait in the block"}
    return ", ".join(words[action] for action in actions)
