"""frontend.collective_report: a fused collective -> what reports say of it: group, bytes, transport, estimated cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..plan.machine import Costs
from .collective_match import FusedCollective

SHARED_MEMORY = "shared memory"
NOT_MEASURED = "always fused: ranks that measured alternatives could decide differently"


@dataclass(frozen=True)
class CollectiveReport:
    """A collective inside a super kernel."""

    name: str
    kind: str
    reduction: str  # empty: it reduces nothing
    group: str
    ranks: tuple[int, ...]  # global
    nbytes: int  # of this rank's tensor
    transport: str
    syncs: int  # across ranks
    estimated_us: float

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields, "ranks": list(self.ranks), "bytes": fields.pop("nbytes")}

    @property
    def text(self) -> str:
        """Without its name: equal for those that a report prints once."""
        kind = f"{self.kind} ({self.reduction})" if self.reduction else self.kind
        ranks = f"group {self.group} (ranks {','.join(map(str, self.ranks))})"
        syncs = f"{self.syncs} sync{'' if self.syncs == 1 else 's'} across ranks"
        return f"{kind} of {self.nbytes} B, {ranks}, {self.transport}, {syncs}, about {self.estimated_us:.1f} us"


def report_collective(collective: FusedCollective, costs: Costs) -> CollectiveReport:
    """The estimate: every rank stores its slots, learns of the others' arrival, and reads their slots."""
    group, terms, windows = collective.group, collective.terms, collective.ops.windows
    syncs = len(windows) if group.size > 1 else 0
    moved = 2 * collective.nbytes + sum(slot * group.size for slot in windows.values())
    estimated_ns = syncs * 2 * costs.sync_ns + moved / costs.bytes_per_ns
    return CollectiveReport(
        collective.name,
        str(terms.kind),
        terms.reduction if terms.kind.reduces else "",
        group.name,
        group.ranks,
        collective.nbytes,
        SHARED_MEMORY if group.size > 1 else "none: one rank",
        syncs,
        estimated_ns / 1000,
    )


def collective_lines(collectives: Sequence[CollectiveReport]) -> Iterator[str]:
    """One line for those that are alike, and why they are not measured."""
    for text, count in Counter(collective.text for collective in collectives).items():
        yield f"collective{f's, {count}' if count > 1 else ''}: {text} (estimated)"
    if collectives:
        yield f"profit gate: {NOT_MEASURED}"
