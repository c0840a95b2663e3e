"""frontend.collective_match: calls of collectives -> their ops if the ranks share a machine, or why torch runs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import UnsupportedError
from ..model.ranks import RankGroup
from ..targets.collectives import CollectiveOps, CollectiveSupport, CollectiveTerms
from .capture.fusibility import Cause, Unfusible
from .collective_calls import WAIT, CollectiveCall, collectives_of
from .lowering.program_trace import LibraryCall, Storage, kernel_argument
from .machine_groups import machine_group, machines_of
from .process_groups import ACROSS_MACHINES, ProcessGroupRanks, find_process_group, share_machine


@dataclass(frozen=True)
class FusedCollective:
    """A collective that is part of a segment."""

    name: str
    call: LibraryCall
    terms: CollectiveTerms
    process_group: ProcessGroupRanks
    ops: CollectiveOps
    nbytes: int  # of this rank's tensor

    @property
    def group(self) -> RankGroup:
        return self.process_group.group


StartedCollectives = tuple[FusedCollective, ...]  # by one call; empty: a wait for a collective that is fused


@dataclass
class CollectiveMatcher:
    """Matches the collectives of one program, in order."""

    support: CollectiveSupport | None  # None: the target has no collectives
    cores: int
    _count: int = 0
    _results: set[Storage] = field(default_factory=set)  # of collectives that are fused

    def match(self, call: LibraryCall) -> StartedCollectives | Unfusible:
        name = call.op._schema.name
        if name == WAIT:
            return self._match_wait(call)
        try:
            if self.support is None:
                raise UnsupportedError("collective")
            matched = self._match_all(call, self.support)
        except UnsupportedError as reason:
            self._results -= {view.storage for view in (*call.results, *call.given) if view is not None}
            return Unfusible(name, str(reason), call.origins, Cause.COLLECTIVE)
        self._results |= {collective.result.storage for collective, _ in matched}
        call.allocate_results()
        return tuple(fused for _, fused in matched)

    def _match_wait(self, call: LibraryCall) -> StartedCollectives | Unfusible:
        """Ops that need the result of a fused collective wait for it; what torch started, torch awaits."""
        (awaited,) = call.given
        if awaited.storage in self._results:
            return ()
        return Unfusible(WAIT, "collective", call.origins, Cause.COLLECTIVE)

    def _match_all(self, call: LibraryCall, support: CollectiveSupport) -> list[tuple[CollectiveCall, FusedCollective]]:
        """All collectives of a call, or none of them."""
        matched = []
        for collective in collectives_of(call):
            process_group = _taking_part(collective, support)
            if not share_machine(process_group, support):
                raise UnsupportedError(ACROSS_MACHINES)
            source, result = kernel_argument(collective.source), kernel_argument(collective.result)
            name = f"{collective.terms.kind}_{self._count}"
            ops = support.ops(collective.terms, source, result, process_group.group, name, self.cores)
            nbytes = source.numel * source.itemsize
            matched.append((collective, FusedCollective(name, call, collective.terms, process_group, ops, nbytes)))
            self._count += 1
        return matched


def _taking_part(collective: CollectiveCall, support: CollectiveSupport) -> ProcessGroupRanks:
    """The group, or of a collective that was divided among machines the ranks on this one."""
    found = find_process_group(collective.group_name)
    if collective.ranks in (None, found.group.size):
        return found
    return machine_group(found, machines_of(found, support))


def is_inside_machine(call: LibraryCall) -> bool:
    """Whether torch knows no group for the collective: it was divided among machines, and this part is inside one."""
    try:
        return any(
            collective.ranks not in (None, find_process_group(collective.group_name).group.size)
            for collective in collectives_of(call)
        )
    except UnsupportedError:
        return False
