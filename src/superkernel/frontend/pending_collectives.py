"""frontend.pending_collectives: where the finish of each collective stands: before the first op that depends on it.

A collective is asynchronous from its call to the first op that uses its result, or writes what it reads: that op is
behind its `wait_tensor` in every correct program. Ops in between run while other ranks arrive.

Ranks may have different ops between the same collectives, and must notify each other in one order all the same. So a
finish that notifies, which a large all_reduce has, stands before all that is notified for later collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..model.op import Op, Place, place_of
from .collective_match import FusedCollective


@dataclass(frozen=True)
class _Accesses:
    """The buffers that ops read and write, and whether they notify other ranks."""

    read: frozenset[str]
    written: frozenset[str]
    notifies: bool

    def precedes(self, later: _Accesses) -> bool:
        """Whether the order of the two matters."""
        conflicts = self.written & (later.read | later.written) or self.read & later.written
        return bool(conflicts) or (self.notifies and later.notifies)


def _accesses(ops: Iterable[Op]) -> _Accesses:
    read: set[str] = set()
    written: set[str] = set()
    notifies = False
    for op in ops:
        notifies = notifies or any(sync.sends for sync in op.ranks)
        for param, argument in zip(op.kernel.params, op.args, strict=True):
            if not isinstance(argument, str | Place):
                continue
            name = place_of(argument).name
            if param.kind.reads:
                read.add(name)
            if param.kind.writes:
                written.add(name)
    return _Accesses(frozenset(read), frozenset(written), notifies)


@dataclass
class PendingCollectives:
    """The collectives of a segment that have been started and not finished."""

    _pending: list[tuple[FusedCollective, _Accesses]] = field(default_factory=list)

    def start(self, collective: FusedCollective) -> None:
        self._pending.append((collective, _accesses(collective.ops.finish)))

    def needed_by(self, ops: Iterable[Op]) -> list[FusedCollective]:
        """Those that must be finished before the ops run, in the order of their starts; no longer pending.

        One that is needed may itself need an earlier one: in a group of one rank, a finish reads what others have left.
        """
        later = [_accesses(ops)]
        needed: list[FusedCollective] = []
        waiting: list[tuple[FusedCollective, _Accesses]] = []
        for collective, finish in reversed(self._pending):
            if any(map(finish.precedes, later)):
                needed.insert(0, collective)
                later.append(finish)
            else:
                waiting.insert(0, (collective, finish))
        self._pending = waiting
        return needed

    def rest(self) -> list[FusedCollective]:
        """Those that nothing in the segment needs; no longer pending."""
        collectives = [collective for collective, _ in self._pending]
        self._pending = []
        return collectives
