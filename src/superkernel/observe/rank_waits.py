"""observe.rank_waits: the profiles of the ranks of one run -> which rank each wait for other ranks waited for.

The rank that arrived last ended a wait. Ranks of one machine have one clock; only then are their times compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..plan.spans import Span
from ..plan.steps import SpanKind
from .profile import Profile, ProfiledCollective, ProfiledLaunch

_SLACK_NS = 1000.0  # each process calibrates its time stamps; the same collective comes again much later than this


@dataclass(frozen=True)
class Arrival:
    """A rank has stored what others read."""

    ns: float  # on the clock of the machine
    rank: int
    op: str
    core: int  # that was done last
    thread: int


@dataclass(frozen=True)
class RankWait:
    """A core of a rank waited before an op for other ranks."""

    rank: int
    launch: int  # index in its profile
    span: Span
    last: Arrival | None  # None: all had arrived before, or the profiles do not tell
    thread: int

    @property
    def us(self) -> float:
        return (self.span.end_ns - self.span.begin_ns) / 1000


Arrivals = Mapping[tuple[int, str], Sequence[Arrival]]  # by rank and collective, in the order of time


def rank_waits(profiles: Mapping[int, Profile]) -> list[RankWait]:
    """By rank; each with the rank that ended it."""
    arrivals = _arrivals(profiles)
    return [wait for rank, profile in sorted(profiles.items()) for wait in _waits(rank, profile, arrivals)]


def zero_ns(profile: Profile) -> float:
    """The beginning of a profile on the clock of its machine."""
    return 0.0 if profile.rank is None else profile.rank.monotonic_ns


def _arrivals(profiles: Mapping[int, Profile]) -> Arrivals:
    found: dict[tuple[int, str], list[Arrival]] = defaultdict(list)
    for rank, profile in profiles.items():
        zero = zero_ns(profile)
        for launch in profile.launches:
            ends: dict[str | None, Span] = {}
            for span in launch.spans:
                if span.what is SpanKind.OP and (span.op not in ends or span.end_ns > ends[span.op].end_ns):
                    ends[span.op] = span
            for collective in _collectives(profile, launch):
                if (sent := ends.get(collective.sender)) is not None:
                    arrival = Arrival(zero + sent.end_ns, rank, collective.sender, sent.core, launch.thread)
                    found[rank, collective.name].append(arrival)
    return {key: sorted(times, key=lambda arrival: arrival.ns) for key, times in found.items()}


def _waits(rank: int, profile: Profile, arrivals: Arrivals) -> Iterator[RankWait]:
    zero = zero_ns(profile)
    for number, launch in enumerate(profile.launches):
        awaited: dict[str, list[ProfiledCollective]] = defaultdict(list)
        for collective in _collectives(profile, launch):
            for receiver in collective.receivers:
                awaited[receiver].append(collective)
        for span in launch.spans:
            if span.what is SpanKind.RANKS and span.op is not None:
                last = _last(rank, awaited.get(span.op, ()), zero + span.end_ns, arrivals)
                blocked = last is not None and last.ns > zero + span.begin_ns
                yield RankWait(rank, number, span, last if blocked else None, launch.thread)


def _last(rank: int, awaited: Sequence[ProfiledCollective], end_ns: float, arrivals: Arrivals) -> Arrival | None:
    """The last arrival of another rank before the end of a wait."""
    found = []
    for collective in awaited:
        for other in collective.ranks:
            times = arrivals.get((other, collective.name), ()) if other != rank else ()
            place = bisect_right(times, end_ns + _SLACK_NS, key=lambda arrival: arrival.ns)
            if place:
                found.append(times[place - 1])
    return max(found, key=lambda arrival: arrival.ns, default=None)


def _collectives(profile: Profile, launch: ProfiledLaunch) -> Sequence[ProfiledCollective]:
    return () if launch.kernel is None else profile.kernels[launch.kernel].collectives
