"""Report data: its JSON form gives it back, and what is wrong is refused with its place."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe.report import samples

import superkernel.plan.plan as planning
from superkernel.errors import BuildError
from superkernel.observe.report import Benefit, Edge, Kernel, Launch, Op, ReportData, Run, Span, SpanKind, Sync
from superkernel.plan.steps import What


@pytest.mark.parametrize("make", [samples.both, samples.hostile, samples.many_spans])
def test_json_gives_the_same_data_back(make: Any) -> None:
    data = make()
    assert ReportData.from_json(data.to_json()) == data


@given(st.text(), st.floats(0, 1e9), st.integers(1, 10**9), st.sampled_from(SpanKind))
def test_any_name_and_number_survives_json(name: str, time: float, count: int, kind: SpanKind) -> None:
    run = Run(
        name, launches=(Launch(name, name, time, time, name, count),), spans=(Span(0, name, kind, 0, time, name),)
    )
    data = ReportData(name, (run,))
    assert ReportData.from_json(data.to_json()) == data


def test_it_speaks_the_planners_words() -> None:
    assert {sync.value for sync in Sync} == {kind.value for kind in planning.SyncKind}
    assert {what.value for what in What} <= {kind.value for kind in SpanKind}


def test_fields_with_a_default_may_be_left_out() -> None:
    text = '{"format": "superkernel report", "version": 1, "title": "t", "runs": [{"title": "r"}]}'
    assert ReportData.from_json(text) == ReportData("t", (Run("r"),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not report data"),
        ('{"version": 1}', "not report data"),
        ('{"format": "superkernel report"}', "version None"),
        ('{"format": "superkernel report", "version": 2, "title": "t", "runs": []}', "version 2"),
    ],
)
def test_what_is_no_report_data_of_this_version_is_refused(text: str, said: str) -> None:
    with pytest.raises(BuildError, match=said) as caught:
        ReportData.from_json(text, "run.json")
    assert str(caught.value).startswith("run.json: ")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("runs", 0, "launches", 1, "count"), "two", r"runs\[0\]\.launches\[1\]\.count: expected a whole number"),
        (("runs", 0, "launches", 1, "count"), True, "expected a whole number, not True"),
        (("runs", 0, "launches", 0, "start_us"), None, "expected a number"),
        (("runs", 0, "launches", 0, "durations_us"), 1, "no field 'durations_us' .did you mean 'duration_us'"),
        (("runs", 0, "launches"), {}, r"runs\[0\]\.launches: expected a list"),
        (("runs", 0, "launches", 0), 7, "expected an object with the fields of Launch"),
        (("runs", 1, "spans", 0, "kind"), "ops", "'ops' .did you mean 'op'.*; known are kernel, op, wait"),
        (("runs", 1, "kernels", 0, "edges", 0, "sync"), ["local"], "known are none, local"),
        (("runs", 1, "kernels", 0, "edges", 0, "producer"), "nobody", "names 'nobody', which is none of its ops"),
        (("runs", 1, "spans", 2, "end_us"), -1, "before it begins"),
        (("runs",), [], "one run, or two"),
        (("title",), 3, "title: expected a text"),
    ],
)
def test_a_mistake_is_named_by_its_place(path: tuple[str | int, ...], value: object, said: str) -> None:
    content: Any = json.loads(samples.both().to_json())
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(BuildError, match=said):
        ReportData.from_dict(content)


def test_a_missing_field_is_named() -> None:
    content: Any = json.loads(samples.both().to_json())
    del content["runs"][0]["launches"][0]["type"]
    with pytest.raises(BuildError, match=r"runs\[0\]\.launches\[0\]: the field 'type' is missing"):
        ReportData.from_dict(content)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(number: float) -> None:
    """NaN would make a page whose data no browser can read."""
    for make in (
        lambda: Launch("l", "t", number, 1),
        lambda: Launch("l", "t", 0, number),
        lambda: Span(0, "o", SpanKind.OP, number, 1),
        lambda: Span(0, "o", SpanKind.OP, 0, number),
        lambda: Op("o", duration_us=number),
        lambda: Run("r", read_bytes_per_s=number),
        lambda: Benefit(number, 1, 1, 1),
    ):
        with pytest.raises(BuildError, match="no finite number"):
            make()


def test_contradictions_are_refused() -> None:
    for make, said in (
        (lambda: Launch("l", "t", 0, -1), "less than nothing"),
        (lambda: Launch("l", "t", 0, 1, count=0), "at least once"),
        (lambda: Span(-1, "o", SpanKind.OP, 0, 1), "count from 0"),
        (lambda: Op("o", bytes_read=-1), "less than nothing"),
        (lambda: Run("r", read_bytes_per_s=0), "leave it out"),
        (lambda: Kernel("k", ops=(Op("o"), Op("o"))), "same name"),
        (lambda: Kernel("k", ops=(Op("o"),), edges=(Edge("o", "p", Sync.FLAG),)), "'p'"),
        (lambda: ReportData("t", (Run("r"),) * 3), "not 3"),
        (lambda: ReportData("t", (Run("r"),), Benefit(2, 1, 2, 1)), "two runs"),
    ):
        with pytest.raises(BuildError, match=said):
            make()


def test_the_benefit_comes_from_the_launches_unless_it_is_given() -> None:
    data = samples.both()
    found = data.shown_benefit
    assert found == Benefit(120, 92, 4, 2)
    assert found.time_percent == pytest.approx(100 * 28 / 120)
    assert found.launch_percent == 50
    given_one = Benefit(10, 20, 1, 1)
    assert replace(data, benefit=given_one).shown_benefit == given_one
    assert given_one.time_percent == -100
    assert ReportData("t", (Run("r"),)).shown_benefit is None
    assert Benefit(0, 0, 0, 0).time_percent is None
