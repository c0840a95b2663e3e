"""What a benchmark result says of its own numbers, in text and as data."""

from __future__ import annotations

import json

import pytest

from superkernel.errors import OptionError
from superkernel.tools import bench
from superkernel.tools.bench.measure import Comparison, Figure, Result, Timing, measure, ratio_by_round, times_by_round


def timing(name: str, median: float) -> Timing:
    return Timing(name, median, median, median)


def comparison(ours: float, *peers: float, floor: float | None = None, unit: str = "us") -> Comparison:
    timed = tuple(timing(f"peer {i}", median) for i, median in enumerate(peers))
    return Comparison("work", timing("ours", ours), timed, timing("floor", floor) if floor else None, unit)


def test_the_ratio_is_to_the_best_peer() -> None:
    found = comparison(10, 50, 30, 40)
    assert (found.best.name, found.ratio) == ("peer 1", 3)


def test_a_loss_is_a_ratio_below_one() -> None:
    assert comparison(10, 5).ratio == 0.5


def test_the_share_is_of_our_time() -> None:
    assert comparison(10, 50, floor=4).share == 0.4
    assert comparison(10, 50).share is None


def test_seconds_are_shown_as_seconds() -> None:
    found = comparison(2_500_000, 5_000_000, unit="s")
    assert found.shown(found.ours) == 2.5


def test_comparisons_with_the_same_peers_share_a_table() -> None:
    result = Result("suite", {}, comparisons=[comparison(10, 20), comparison(30, 40), comparison(1e6, 2e6, unit="s")])
    heads = [line.split() for line in str(result).splitlines() if "best/ours" in line]
    assert heads == [["median,", unit, "ours", "peer", "0", "best/ours"] for unit in ("us", "s")]


def test_a_result_is_plain_data() -> None:
    result = Result("suite", {}, {"right": True}, [timing("a", 1)], [comparison(10, 20, floor=5)], [])
    found = json.loads(json.dumps(result.to_dict()))["comparisons"][0]
    assert (found["ours"]["median"], found["best"], found["ratio"], found["share"]) == (10, "peer 0", 2, 0.5)


def test_a_wrong_result_fails_the_run_and_a_missed_figure_does_not() -> None:
    missed = Figure("ratio", 1, 2, True)
    assert not missed.met
    assert Result("suite", {}, {"a": True}, figures=[missed]).ok
    assert not Result("suite", {}, {"a": True, "b": False}).ok


def test_every_case_is_timed_in_every_round() -> None:
    calls: list[str] = []
    cases = {name: lambda name=name: calls.append(name) for name in ("first", "second")}
    found = measure(cases, rounds=4, budget_s=0)
    assert list(found) == ["first", "second"]
    timed = calls[8:]  # four calls of each find how often to repeat
    assert timed == ["first", "second", "second", "first", "first", "second", "second", "first"]


def test_a_suite_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'torch'"):
        bench.run("torhc")


def test_cores_that_are_not_there_are_refused() -> None:
    with pytest.raises(OptionError, match="cores=4096 is not possible here"):
        bench.run("boundary", cores=4096)


@pytest.mark.parametrize(
    ("median", "quartiles", "met"),
    [(99.0, (99.0, 99.0), True), (97.0, (97.0, 97.0), False), (97.0, (92.0, 102.0), True), (90.0, (88.0, 92.0), False)],
)
def test_fusion_may_cost_two_percent_or_the_spread(median: float, quartiles: tuple[float, float], met: bool) -> None:
    ours = Timing("superkernel", 100.0, 100.0, 100.0)
    found = Comparison("a model", ours, (ours,), unfused=Timing("fuse=off", median, *quartiles))
    assert found.fusion.met is met


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is three times slower in one round changes medians, but no ratio of a round."""
    assert ratio_by_round([2.0, 6.0, 2.2], [1.0, 3.0, 1.1]) == pytest.approx(2.0)
    taken = times_by_round({"one": lambda: None, "two": lambda: None}, rounds=3, budget_s=1e-4)
    assert {name: len(times) for name, times in taken.items()} == {"one": 3, "two": 3}
