"""observe.calls: the launches of a profile -> calls, in kinds that ran the same graphs; each with its times.

A call is one run of a compiled graph, of a super kernel, or of `profile.call()`. Its time runs from the dispatch of its
first launch to the completion of its last; what lies between its launches is the host's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, median_low

from .core_time import covered_ns
from .profile import Profile, ProfiledLaunch

OUTSIDE = "outside of scopes"
_NAMED = 2  # scopes that the name of a kind of calls lists
Signature = frozenset[str]


@dataclass(frozen=True)
class ProfiledCall:
    """Launches that belong together."""

    launches: tuple[ProfiledLaunch, ...]  # in the order of dispatch
    places: tuple[int, ...]  # where they stand in the profile

    @property
    def begin_ns(self) -> float:
        return self.launches[0].begin_ns

    @cached_property
    def end_ns(self) -> float:
        return max(launch.end_ns for launch in self.launches)

    @property
    def duration_us(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000

    @cached_property
    def in_launches_us(self) -> float:
        return covered_ns((launch.begin_ns, launch.end_ns) for launch in self.launches) / 1000

    @property
    def host_us(self) -> float:
        """Between its launches."""
        return max(0.0, self.duration_us - self.in_launches_us)

    @property
    def before_us(self) -> float:
        """Since the previous launch of its thread completed."""
        return self.launches[0].wait_ns / 1000


@dataclass(frozen=True)
class CallTimes:
    """The times of some calls, in microseconds. Each is a time that was measured: that of one of the calls."""

    median: float
    p99: float
    slowest: float
    fastest: float

    @classmethod
    def of(cls, times: Sequence[float]) -> CallTimes:
        ordered = sorted(times)
        return cls(median_low(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1], ordered[0])


@dataclass(frozen=True)
class CallKind:
    """Calls that ran the same graphs, fused or not."""

    name: str
    signature: Signature  # the same for the same graphs and the same types of what torch launched
    calls: tuple[ProfiledCall, ...]  # in the order of their begin

    @cached_property
    def times(self) -> CallTimes:
        return CallTimes.of([call.duration_us for call in self.calls])

    @property
    def total_us(self) -> float:
        return math.fsum(call.duration_us for call in self.calls)

    @cached_property
    def by_time(self) -> tuple[ProfiledCall, ...]:
        return tuple(sorted(self.calls, key=lambda call: call.duration_us))

    @property
    def fastest(self) -> ProfiledCall:
        return self.by_time[0]

    @property
    def middle(self) -> ProfiledCall:
        """The call of median time; of an even number the faster of the two."""
        return self.by_time[(len(self.by_time) - 1) // 2]

    @property
    def slowest(self) -> ProfiledCall:
        return self.by_time[-1]

    @cached_property
    def launches(self) -> float:
        """Per call, the median."""
        return median(len(call.launches) for call in self.calls)

    @cached_property
    def host_us(self) -> float:
        """Between the launches of a call, the median."""
        return median(call.host_us for call in self.calls)

    @cached_property
    def before_us(self) -> float:
        """Between a call and the launch before it, the median; the first call of a profile has none before it."""
        return median([call.before_us for call in self.calls[1:]] or [0.0])


@dataclass(frozen=True)
class ScopeTime:
    """The launches of one scope, per call."""

    scope: str  # OUTSIDE: of no scope
    launches: float
    time_us: float


def call_kinds(profile: Profile) -> tuple[CallKind, ...]:
    """The kind that took most time first."""
    groups: dict[int | tuple[int], list[int]] = {}
    for place, launch in enumerate(profile.launches):
        groups.setdefault((place,) if launch.call is None else launch.call, []).append(place)
    kinds: dict[Signature, list[ProfiledCall]] = {}
    for places in groups.values():
        call = ProfiledCall(tuple(profile.launches[place] for place in places), tuple(places))
        kinds.setdefault(_signature(profile, call.launches), []).append(call)
    found = [CallKind(_name(calls[0]), signature, tuple(calls)) for signature, calls in kinds.items()]
    return tuple(sorted(found, key=lambda kind: -kind.total_us))


def _signature(profile: Profile, launches: Sequence[ProfiledLaunch]) -> Signature:
    parts = set()
    for launch in launches:
        if launch.kernel is None:
            parts.add(f"torch {launch.type}")
        else:
            kernel = profile.kernels[launch.kernel]
            parts.add(f"graph {kernel.identity or kernel.name}")
    return frozenset(parts)


def _name(call: ProfiledCall) -> str:
    """After its scopes, or after what it launched."""
    names = list(dict.fromkeys(launch.scope for launch in call.launches if launch.scope))
    names = names or list(dict.fromkeys(launch.name for launch in call.launches))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def scope_times(profile: Profile) -> dict[str, ScopeTime]:
    """Scope -> its launches per call; scopes in the order of their first launch. A scope counts the calls it is in."""
    calls: dict[str, set[int | tuple[int]]] = {}
    launches: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    for place, launch in enumerate(profile.launches):
        scope = launch.scope or OUTSIDE
        calls.setdefault(scope, set()).add((place,) if launch.call is None else launch.call)
        launches[scope] = launches.get(scope, 0) + 1
        times.setdefault(scope, []).append(launch.duration_us)
    return {
        scope: ScopeTime(scope, launches[scope] / len(found), math.fsum(times[scope]) / len(found))
        for scope, found in calls.items()
    }
