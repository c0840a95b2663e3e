"""Which size of clusters is kept: by measured syncs, by the estimate, and what the plan says of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from superkernel.targets.cuda.cluster_choice import (
    ClusterEstimate,
    SyncTime,
    SyncTimes,
    choose_cluster,
    sync_times_from_json,
    worth_timing,
)

ESTIMATES = [ClusterEstimate(1, 5000, 1000), ClusterEstimate(2, 4800, 1000), ClusterEstimate(8, 4000, 1000)]


def measured(**ns: float) -> SyncTimes:
    return SyncTimes(tuple(SyncTime(int(size[2:]), time, 10) for size, time in ns.items()))


def test_the_fastest_measured_size_is_kept() -> None:
    size, note = choose_cluster(ESTIMATES, measured(of1=3000, of2=1500, of8=2000))
    assert (size, note) == (
        2, "clusters of 2 SMs: syncs measured 1.50 us, 3.00 us without, 2.00 us in clusters of 8 SMs",
    )  # fmt: skip


def test_of_equals_within_the_spread_the_smallest_is_kept() -> None:
    assert choose_cluster(ESTIMATES, measured(of1=2005, of2=2500, of8=2000))[0] == 1
    assert choose_cluster(ESTIMATES, measured(of1=2500, of2=2010, of8=2000))[0] == 2
    assert choose_cluster(ESTIMATES, measured(of1=2500, of2=2011, of8=2000))[0] == 8


def test_work_counts_where_it_differs() -> None:
    slower = [*ESTIMATES[:2], ClusterEstimate(8, 4000, 3000)]
    size, note = choose_cluster(slower, measured(of1=2500, of2=2900, of8=2000))
    assert size == 1 and note.startswith("no clusters: syncs measured 2.50 us, ")


def test_a_size_that_did_not_fit_is_not_kept() -> None:
    assert choose_cluster(ESTIMATES, measured(of1=3000, of2=2000))[0] == 2


@pytest.mark.parametrize("nothing", [None, SyncTimes(), measured(of2=5, of8=6), measured(of1=5)])
def test_without_a_measurement_the_estimate_decides(nothing: SyncTimes | None) -> None:
    assert choose_cluster(ESTIMATES, nothing) == (8, "clusters of 8 SMs: estimated 4.0 us, 5.0 us without")
    assert choose_cluster(ESTIMATES[:1], nothing) == (1, "")


def test_the_plan_says_why_nothing_was_measured() -> None:
    failed = SyncTimes(why_not="no memory")
    assert choose_cluster(ESTIMATES, failed)[1].endswith("5.0 us without; not measured: no memory")
    assert choose_cluster(ESTIMATES[:1], failed) == (1, "no clusters: estimated 5.0 us; not measured: no memory")


def test_hopeless_sizes_are_not_measured() -> None:
    assert worth_timing(ESTIMATES) == (1, 2, 8)
    assert worth_timing([ClusterEstimate(1, 9000), ClusterEstimate(4, 4000), ClusterEstimate(8, 6001)]) == (1, 4)
    assert worth_timing([ClusterEstimate(1, 1000), ClusterEstimate(2, 1501)]) == ()


def test_times_are_kept_as_json() -> None:
    times = SyncTimes((SyncTime(1, 3.5, 0.5), SyncTime(16, 2.0)), "", "digest")
    assert sync_times_from_json(json.loads(json.dumps(asdict(times)))) == times


@pytest.mark.parametrize(
    "fields", [7, {"times": 3}, {"times": [{"cluster": 2}]}, {"times": [{"cluster": 2, "ns": "x"}]},
               {"times": [{"cluster": 2, "ns": -1}]}, {"why_not": 3}, {"colour": "red"}],
)  # fmt: skip
def test_other_fields_are_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        sync_times_from_json(fields)
