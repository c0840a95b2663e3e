"""observe.reportable: what a report shows of a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from superkernel.observe import store
from superkernel.observe.facts import KernelFact, LaunchFact, OpFact, Profile, SpanFact
from superkernel.observe.machine import machine_facts
from superkernel.observe.reportable import run_of
from superkernel.observe.shell import _with_rate, compared

LATE_US = 77_558_000.0  # as after a long compilation


def recorded() -> Profile:
    ops = tuple(OpFact(name, "Add", 1, 0, 4, 4, f"model.py:{line}") for name, line in (("first", 3), ("second", 4)))
    kernel = KernelFact("0", "k", "s", "", 1, True, 2, "ended with the scope", (), ops, (), "", "")
    starts = (LATE_US, LATE_US + 100)
    launches = tuple(LaunchFact("k", "SuperKernel", "any", 1, start, 40.0, 0.0, 0, 0, "s", 0) for start in starts)
    spans = tuple(SpanFact(at, 0, "op", "first", start + 1, start + 9) for at, start in enumerate(starts))
    return Profile("1", 0, True, {"cores used": 1}, launches, (kernel,), spans)


def test_the_timeline_begins_with_the_first_launch() -> None:
    run = run_of(recorded(), "r")
    assert [launch.start_us for launch in run.launches] == [0, 100]
    assert [(span.begin_us, span.end_us) for span in run.spans] == [(1, 9), (101, 109)]
    assert run_of(replace(recorded(), launches=(), spans=(), kernels=()), "r").launches == ()


def test_what_is_left_out_is_said_only_where_something_is() -> None:
    many = replace(recorded(), launches=recorded().launches[:1] * 3000)
    cut = [SpanFact(launch, 0, "op", "first", LATE_US + 1, LATE_US + 2) for launch in (0, 2999)]
    assert any("the first 2000 launches" in note for note in run_of(replace(many, spans=tuple(cut)), "r").notes)
    (note,) = run_of(replace(many, spans=()), "r").notes
    assert "recorded without detail" in note


def test_a_part_is_shown_with_the_line_that_it_ended_at() -> None:
    (split,) = run_of(recorded(), "r").splits
    assert (split.scope, split.fused, split.origin) == ("s", True, "model.py:4")


@pytest.mark.parametrize(("cores", "rate"), [("two", None), (0, None), (None, None), (2, 2e9)])
def test_the_bandwidth_is_measured_for_cores_that_are_known(cores: object, rate: float | None) -> None:
    machine = {**machine_facts([]), "cores used": cores}
    found = _with_rate(replace(recorded(), machine=machine), lambda cores: cores * 1e9)
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

    compared(tmp_path / "before", tmp_path / "after", tmp_path / "page.html", measured)
    assert asked == [1]
