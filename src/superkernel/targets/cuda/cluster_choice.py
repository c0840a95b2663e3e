"""targets.cuda.cluster_choice: the same ops in clusters of each size, estimated or measured -> the size that is kept.

Clusters change what the syncs of a launch take, and little else: that is measured by launches whose ops do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

HOPELESS = 1.5  # times the best estimate: not worth a measurement
WITHOUT = 1  # the size of a cluster where there are none


@dataclass(frozen=True)
class ClusterEstimate:
    """What is expected of a launch in clusters of one size."""

    cluster: int  # SMs
    ns: float  # until the last op ends
    work_ns: float = 0.0  # the same if syncs took no time


@dataclass(frozen=True)
class SyncTime:
    """What a launch takes whose ops do nothing."""

    cluster: int
    ns: float  # the median
    spread_ns: float = 0.0  # between the quartiles


@dataclass(frozen=True)
class SyncTimes:
    """What was measured of a plan on a GPU. Nothing: the estimate decides."""

    times: tuple[SyncTime, ...] = ()
    why_not: str = ""  # why nothing was measured, where there is more to say than that there is no GPU
    plan: str = ""  # the digest of the plan without clusters

    def of(self, cluster: int) -> SyncTime | None:
        return next((time for time in self.times if time.cluster == cluster), None)


def sync_times_to_json(times: SyncTimes) -> dict[str, Any]:
    return asdict(times)


def sync_times_from_json(fields: object) -> SyncTimes:
    """A ValueError where these are no fields of SyncTimes."""
    if not isinstance(fields, Mapping):
        raise ValueError("it maps times, why_not and plan to what was measured")
    try:
        times = tuple(SyncTime(**time) for time in fields.get("times", ()))
        found = SyncTimes(**{**fields, "times": times})
    except TypeError as reason:
        raise ValueError(str(reason)) from reason
    numbers = [number for time in times for number in (time.cluster, time.ns, time.spread_ns)]
    if not all(_is_number(number) for number in numbers):
        raise ValueError("times are numbers of SMs and nanoseconds")
    if not isinstance(found.why_not, str) or not isinstance(found.plan, str):
        raise ValueError("why_not and plan are texts")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and isfinite(value)


def worth_timing(estimates: Sequence[ClusterEstimate]) -> tuple[int, ...]:
    """The sizes to measure: those that are not hopeless, and no clusters; empty where these are all that is left."""
    limit = HOPELESS * min(estimate.ns for estimate in estimates)
    found = tuple(e.cluster for e in estimates if e.cluster == WITHOUT or e.ns <= limit)
    return () if found == (WITHOUT,) else found


def choose_cluster(estimates: Sequence[ClusterEstimate], measured: SyncTimes | None) -> tuple[int, str]:
    """The size of the fastest; of equals the smallest. And what the plan says of it; "": nothing."""
    if measured is not None and measured.of(WITHOUT) is not None and len(measured.times) > 1:
        return _fastest_measured(estimates, measured)
    plain = next(estimate for estimate in estimates if estimate.cluster == WITHOUT)
    best = min(estimates, key=lambda estimate: (estimate.ns, estimate.cluster))
    why_not = f"; not measured: {measured.why_not}" if measured is not None and measured.why_not else ""
    if best.cluster != WITHOUT:
        told = f"estimated {best.ns / 1e3:.1f} us, {plain.ns / 1e3:.1f} us without{why_not}"
        return best.cluster, f"{_named(best.cluster)}: {told}"
    return WITHOUT, f"{_named(WITHOUT)}: estimated {plain.ns / 1e3:.1f} us{why_not}" if why_not else ""


def _fastest_measured(estimates: Sequence[ClusterEstimate], measured: SyncTimes) -> tuple[int, str]:
    """By measured syncs and estimated work, which differs where ops run on fewer cores of a cluster."""
    works = {estimate.cluster: estimate.work_ns for estimate in estimates}
    times = sorted((time for time in measured.times if time.cluster in works), key=lambda time: time.cluster)
    best = min(times, key=lambda time: time.ns + works[time.cluster])
    least_ns = best.ns + works[best.cluster]
    chosen = next(
        time for time in times if time.ns + works[time.cluster] - least_ns <= max(time.spread_ns, best.spread_ns)
    )
    others = ", ".join(
        f"{time.ns / 1e3:.2f} us {'without' if time.cluster == WITHOUT else f'in {_named(time.cluster)}'}"
        for time in times
        if time is not chosen
    )
    return chosen.cluster, f"{_named(chosen.cluster)}: syncs measured {chosen.ns / 1e3:.2f} us, {others}"


def _named(cluster: int) -> str:
    return f"clusters of {cluster} SMs" if cluster != WITHOUT else "no clusters"
