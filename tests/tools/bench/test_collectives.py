"""The suite collectives: how cores are divided, what its figures mean, and that a rank that fails ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from superkernel.errors import BuildError  # noqa: E402
from superkernel.targets.collectives import CollectiveKind  # noqa: E402
from superkernel.tools.bench import collectives, rank_launch  # noqa: E402
from superkernel.tools.bench.measure import Result  # noqa: E402
from superkernel.tools.bench.rank_cases import CollectiveTask, size_name  # noqa: E402
from superkernel.tools.bench.rank_chain import collective, reference  # noqa: E402
from superkernel.tools.bench.rank_launch import RankShape, rank_shape, run_ranks  # noqa: E402


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(1, 2, 1), (2, 2, 1), (4, 2, 2), (8, 2, 4), (16, 4, 4), (64, 8, 8), (96, 8, 12)]
)
def test_cores_are_divided_between_ranks(cores: int, ranks: int, threads: int) -> None:
    assert rank_shape(cores) == RankShape(ranks, threads)


def test_sizes_reach_from_64_bytes_to_64_megabytes_and_include_those_of_the_figures() -> None:
    assert (collectives.SIZES[0], collectives.SIZES[-1]) == (64, 64 << 20)
    assert collectives.SMALL == 4 << 10 and collectives.LARGE == 16 << 20
    for sizes in (collectives.SIZES, collectives.QUICK_SIZES):
        assert collectives.SMALL in sizes
    assert [size_name(size) for size in (64, 4 << 10, 16 << 20)] == ["64 B", "4 KB", "16 MB"]


def test_the_bytes_of_an_all_reduce_are_those_of_its_loads_and_stores() -> None:
    # two ranks: half is copied in (2 x 1/2), half is loaded twice and stored twice, half is copied out
    assert collectives.bytes_moved(16 << 20, 2) == 4 * (16 << 20)
    assert collectives.bytes_moved(1 << 20, 4) == (2 * 3 + 4 + 2 + 2 * 3) * (1 << 20) // 4


def test_figures_are_ratios_of_the_same_round() -> None:
    share = "all_reduce of 16 MB, beside copying and adding"
    times: dict[str, dict[str, list[float]]] = {
        "all_reduce of 4 KB": {"superkernel": [2.0, 4.0, 2.0], "gloo": [60.0, 120.0, 70.0], "inductor + gloo": [80.0]},
        share: {"superkernel": [100.0] * 3, "copy_add": [90.0] * 3, "copy_add_past_caches": [75.0] * 3},
        "boundary": {"ranks": [0.6, 0.9, 0.6], "cores": [0.2, 0.3, 0.2]},
        "tensor-parallel decode step, hidden 512, 6 layers": {
            "superkernel": [1000.0] * 3, "inductor + gloo": [2500.0] * 3, "gloo": [9000.0] * 3,
        },
    }  # fmt: skip
    result = Result("collectives", {"cores_used": 2})
    measured: dict[str, Any] = {"checks": {"right": True}, "times": times, "notes": ["measured"]}
    collectives.report(result, measured, RankShape(2, 1))
    assert [(round(f.value, 6), f.limit, f.at_least, f.met) for f in result.figures] == [
        (30.0, 20, True, True),
        (75.0, 60, True, True),
        (3.0, 4, False, True),
        (2.5, 2, True, True),
    ]
    assert any("loads and stores 64 MB" in note and "copy_add_past_caches does" in note for note in result.notes)
    assert [row.name for row in result.comparisons] == ["all_reduce of 4 KB", list(times)[-1]]
    assert result.comparisons[0].best.name == "gloo"


def test_the_reference_is_that_of_each_kind() -> None:
    inputs = [np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)]
    found = {kind: [list(each) for each in collective(kind, inputs)] for kind in CollectiveKind}
    assert found[CollectiveKind.ALL_REDUCE] == [[11, 22, 33, 44]] * 2
    assert found[CollectiveKind.ALL_GATHER] == [[1, 2, 3, 4, 10, 20, 30, 40]] * 2
    assert found[CollectiveKind.REDUCE_SCATTER] == [[11, 22], [33, 44]]
    assert found[CollectiveKind.ALL_TO_ALL] == [[1, 2, 10, 20], [3, 4, 30, 40]]
    assert found[CollectiveKind.BROADCAST] == [[1, 2, 3, 4]] * 2
    twice = reference(CollectiveKind.ALL_REDUCE, 2, 4, 4, 2)[0]
    once = reference(CollectiveKind.ALL_REDUCE, 2, 4, 4, 1)[0]
    assert list(twice) == list(2 * once)


def test_a_rank_that_fails_ends_the_measurement_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(BuildError, match=r"(?s)rank 1 of the measurement ended with status 1.*this rank cannot go on"):
        run_ranks("failing_rank", RankShape(2, 1), CollectiveTask([], 1, 0, 0, 0))


@pytest.mark.conformance  # it waits for most of a minute
def test_ranks_that_take_too_long_are_ended_and_what_they_measured_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(rank_launch, "_GRACE_S", 20.0)  # for their start
    found = run_ranks("slow_rank", RankShape(2, 1), CollectiveTask([], 1, 0, 0, 0), seconds=0.5)
    assert found["notes"] == ["begun", "the ranks were ended 20 s after their 0.5 s; the rest is missing"]
    assert capsys.readouterr().err == "first: 0.1 s, 0 s in all\n"


def test_what_was_not_measured_has_no_figure() -> None:
    result = Result("collectives", {"cores_used": 2})
    collectives.report(result, {"checks": {}, "times": {}, "notes": ["the time was over"]}, RankShape(2, 1))
    assert result.figures == result.comparisons == [] and result.notes == ["the time was over"]


@pytest.mark.conformance
@pytest.mark.timeout(900)
def test_all_that_the_suite_times_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "SIZES", (64, 4 << 10, 256 << 10))
    monkeypatch.setattr(collectives, "LARGE", 1 << 20)
    found = collectives.run(quick=False, cores=2)
    assert found.ok, [name for name, right in found.checks.items() if not right]
    assert len(found.figures) == 4 and len(found.comparisons) == 5 * 3 + 1
