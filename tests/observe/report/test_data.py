"""What a report shows of a profile: titles, notes, and where the timeline begins."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from observe.report import samples

from superkernel.errors import BuildError
from superkernel.observe import store
from superkernel.observe.compare import ProfileComparison
from superkernel.observe.machine import machine_facts
from superkernel.observe.profile import Profile, ProfiledKernel
from superkernel.observe.report import ReportData, ReportedRun
from superkernel.observe.report.view import view
from superkernel.observe.shell import _with_bandwidth, compare_directories
from superkernel.plan.steps import SpanKind

LATE_US = 77_558_000.0  # as after a long compilation


def recorded() -> Profile:
    launches = tuple(
        samples.launch(
            "k",
            "SuperKernel",
            start,
            40,
            kernel=0,
            spans=(samples.span(0, "first", SpanKind.OP, start + 1, start + 9),),
        )
        for start in (LATE_US, LATE_US + 100)
    )
    return Profile(launches, (ProfiledKernel("k"),), {"cores used": 1}, began_ns=10**18)


def test_the_timeline_begins_with_the_first_launch() -> None:
    (timeline,) = view(ReportData.on_one(recorded(), "r"))["timelines"]
    median, *_, every = timeline["choices"]
    assert [launch[:2] for launch in median["launches"]] == [(0, 40)]
    assert [launch[:2] for launch in every["launches"]] == [(0, 40), (100, 140)]
    assert [span[1:3] for span in every["spans"]] == [(1, 9), (101, 109)]


def test_notes_say_what_is_left_out_only_where_something_is() -> None:
    without = replace(recorded().launches[0], spans=())
    assert not list(ReportedRun("r", recorded()).notes)
    (note,) = ReportedRun("r", replace(recorded(), launches=(without,))).notes
    assert "recorded without detail" in note


def test_kernels_of_the_same_name_have_numbers() -> None:
    kernels = tuple(map(ProfiledKernel, ("a", "b", "a", "a")))
    assert ReportedRun("r", Profile(kernels=kernels)).kernel_titles == ("a", "b", "a (2)", "a (3)")


def test_two_runs_are_called_by_their_directories() -> None:
    data = ReportData.on_two(ProfileComparison(Profile(), recorded(), ("out/before", "out/after/")))
    assert data.title == "before and after" and [run.title for run in data.runs] == ["before", "after"]
    assert any("has no launches" in note for note in data.notes)
    assert data.created.startswith(time.strftime("%Y-%m-%d", time.localtime(10**9)))
    assert ReportData.on_one(Profile(), "t").created == ""
    with pytest.raises(BuildError, match="one run, or two"):
        ReportData("t", (ReportedRun("r", Profile()),) * 3)


@pytest.mark.parametrize(("cores", "rate"), [("two", None), (0, None), (2, 2e9)])
def test_the_bandwidth_is_measured_for_cores_that_are_known(cores: str | int, rate: float | None) -> None:
    machine = {**machine_facts([]), "cores used": cores}
    found = _with_bandwidth(replace(recorded(), machine=machine), lambda cores: cores * 1e9)
    assert found.read_bytes_per_s == rate


def test_two_runs_on_one_machine_have_one_bandwidth(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        store.write(tmp_path / name, replace(recorded(), machine={**machine_facts([]), "cores used": 1}))
    rates = iter((1e9, 2e9))
    asked: list[int] = []

    def measured(cores: int) -> float:
        asked.append(cores)
        return next(rates)

    compare_directories(tmp_path / "before", tmp_path / "after", tmp_path / "page.html", measured)
    assert asked == [1]
