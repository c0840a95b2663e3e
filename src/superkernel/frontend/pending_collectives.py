"""frontend.pending_collectives: where the finish of each collective stands: before the first op that depends on it.

A collective is asynchronous from its call to the first op that uses its result, or writes what it reads: that op is
behind its `wait_tensor` in every correct program. Ops in between run while other ranks arrive. All ranks have the same
program, and so the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..model.op import Op, Place, place_of
from .collective_match import FusedCollective


@dataclass(frozen=True)
class _Accesses:
    """The buffers that ops read and write."""

    read: frozenset[str]
    written: frozenset[str]

    def conflicts(self, later: _Accesses) -> bool:
        return bool(self.written & (later.read | later.written) or self.read & later.written)


def _accesses(ops: Iterable[Op]) -> _Accesses:
    read: set[str] = set()
    written: set[str] = set()
    for op in ops:
        for param, argument in zip(op.kernel.params, op.args, strict=True):
            if not isinstance(argument, str | Place):
                continue
            name = place_of(argument).name
            if param.kind.reads:
                read.add(name)
            if param.kind.writes:
                written.add(name)
    return _Accesses(frozenset(read), frozenset(written))


@dataclass
class PendingCollectives:
    """The collectives of a segment that have been started and not finished."""

    _pending: list[tuple[FusedCollective, _Accesses]] = field(default_factory=list)

    def start(self, collective: FusedCollective) -> None:
        self._pending.append((collective, _accesses(collective.ops.finish)))

    def needed_by(self, ops: Iterable[Op]) -> list[FusedCollective]:
        """Those that must be finished before the ops run, in the order of their starts; no longer pending."""
        later = _accesses(ops)
        needed = [collective for collective, finish in self._pending if finish.conflicts(later)]
        self._pending = [entry for entry in self._pending if entry[0] not in needed]
        return needed

    def rest(self) -> list[FusedCollective]:
        """Those that nothing in the segment needs; no longer pending."""
        collectives = [collective for collective, _ in self._pending]
        self._pending = []
        return collectives
