"""observe.waits: the spans of a profile -> what cores waited for, the longest first."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.steps import SpanKind
from .core_time import WAITS
from .profile import Profile

NOT_KNOWN = ""  # as what was waited for: the signals were there already, or the record does not tell


@dataclass(frozen=True)
class WaitRow:
    """All waits of one op of one kernel for one signal."""

    kernel: int
    op: str
    where: str  # before the op, at its wait point, in sync_all, ...
    waited_for: str  # an op, an event, ranks, or NOT_KNOWN
    count: int
    total_us: float  # added over cores
    longest_us: float


def ranked_waits(profile: Profile) -> list[WaitRow]:
    """One row per kernel, op, place and signal."""
    groups: dict[tuple[int, str, str, str], list[float]] = {}
    for launch in profile.launches:
        if launch.kernel is None:
            continue
        for span in launch.spans:
            if span.what in WAITS and span.op is not None:
                key = launch.kernel, span.op, where_of(span.what, span.inside), span.waited_for or NOT_KNOWN
                groups.setdefault(key, []).append(span.end_ns - span.begin_ns)
    rows = [
        WaitRow(*key, len(times), sum(times) / 1000, max(times) / 1000) for key, times in groups.items() if any(times)
    ]
    return sorted(rows, key=lambda row: (-row.total_us, row.kernel, row.op, row.where, row.waited_for))


def where_of(what: SpanKind, inside: bool) -> str:
    """Where a core waits, in words."""
    if what is SpanKind.RANKS:
        return "for other ranks before it"
    if inside:
        return "in sync_all" if what is SpanKind.BARRIER else "at its wait point"
    return "at a barrier before it" if what is SpanKind.BARRIER else "before it"
