"""A call: which launches belong to it, its times, and how kinds of calls and scopes compare."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from observe.kernels import buffers, twice
from observe.report.samples import launch

import superkernel as sk
from superkernel.observe.calls import OUTSIDE, CallTimes, call_kinds, scope_times
from superkernel.observe.compare import ProfileComparison
from superkernel.observe.compare_text import comparison_lines, wrapped_name, wrapped_words
from superkernel.observe.profile import MachineLoad, Profile, ProfiledKernel


def unfused(calls: int = 3) -> Profile:
    """Two ops per call, 40 and 20 us, with 10 us of host time between them; the last call takes 100 us more."""
    launches = []
    for number in range(calls):
        begin, late = 1000.0 * number, 100.0 * (number == calls - 1)
        launches.append(launch("first", "Add", begin, 40 + late, kernel=0, scope="s", call=number, wait_ns=5000.0))
        launches.append(launch("second", "Mul", begin + 50 + late, 20, kernel=0, scope="s", call=number))
    return Profile(tuple(launches), (ProfiledKernel("s", fused=False, identity="same"),), {"cores used": 2})


def fused(calls: int = 3) -> Profile:
    launches = tuple(
        launch("s", "SuperKernel", 1000.0 * number, 35, kernel=0, scope="s", call=number) for number in range(calls)
    )
    return Profile(launches, (ProfiledKernel("s", identity="same"),), {"cores used": 2})


def test_a_call_runs_from_its_first_dispatch_to_its_last_completion() -> None:
    (kind,) = call_kinds(unfused())
    assert (kind.name, len(kind.calls), kind.launches) == ("s", 3, 2)
    assert kind.times == CallTimes(median=70, p99=170, slowest=170, fastest=70)
    assert (kind.host_us, kind.before_us) == (10, 5)
    assert [call.duration_us for call in (kind.fastest, kind.middle, kind.slowest)] == [70, 70, 170]
    assert kind.slowest.places == (4, 5)


def test_p99_is_a_time_that_was_measured() -> None:
    assert CallTimes.of(range(1, 201)) == CallTimes(median=100, p99=198, slowest=200, fastest=1)
    assert CallTimes.of([7.0]) == CallTimes(7, 7, 7, 7)


def test_launches_without_a_number_are_calls_by_themselves() -> None:
    profile = Profile((launch("a", "A", 0, 1), launch("b", "B", 5, 2), launch("a", "A", 9, 3)))
    assert [(kind.name, len(kind.calls)) for kind in call_kinds(profile)] == [("a", 2), ("b", 1)]


def test_fused_and_unfused_calls_of_a_graph_are_of_one_kind() -> None:
    (row,) = ProfileComparison(unfused(), fused(), ("x", "y")).calls
    assert row.benefit_percent == 50 and row.to_dict()["after"]["median_us"] == 35
    other = Profile(fused().launches, (ProfiledKernel("s", identity="other"),))
    assert ProfileComparison(unfused(), other, ("x", "y")).calls == []


def test_scopes_are_compared_per_call() -> None:
    outside = launch("cast", "Cast", 5000, 4, call=9)
    before = Profile((*unfused(2).launches, outside), unfused().kernels)
    rows = {row.scope: row for row in ProfileComparison(before, fused(5), ("x", "y")).scopes}
    assert list(rows) == ["s", OUTSIDE]
    assert rows["s"].before is not None and rows["s"].after is not None
    assert (rows["s"].before.launches, rows["s"].before.time_us, rows["s"].after.time_us) == (2, 110, 35)
    assert rows[OUTSIDE].after is None and rows[OUTSIDE].change_percent is None
    assert scope_times(Profile()) == {}


def test_what_is_compared_fits_80_columns() -> None:
    name = "fused_native_layer_norm_native_layer_norm_backward_threshold_backward_add_mul_relu"
    many = tuple(launch(name, name, 40.0 * at, 1234567.89, core_type="vector") for at in range(3))
    wide = Profile((*unfused().launches, *many), unfused().kernels, load=MachineLoad(1.0, 2, 1.9))
    found = ProfileComparison(wide, fused(), ("prof_result/" + "long_" * 12 + "name", "prof_result/sk_model"))
    lines = comparison_lines(found)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for words in ("OP Type", "SuperKernel", "Total", "median 70.0 -> 35.0 us", "slowest", "benefit:", "note:"):
        assert words in text
    assert "threshold_\n" in text  # names are broken behind an underscore
    assert wrapped_name("a_bb_ccc", 5) == ["a_bb_", "ccc"] and wrapped_name("x" * 7, 3) == ["xxx", "xxx", "x"]
    assert wrapped_words("one two three_four", 8) == ["one two", "  three_", "  four"]


def test_a_loaded_machine_is_warned_about_before_the_benefit_is_believed() -> None:
    busy = Profile(fused().launches, fused().kernels, {"cores used": 2}, load=MachineLoad(1.0, 2, 1.5))
    found = ProfileComparison(unfused(), busy, ("x", "y"))
    (warning,) = found.warnings
    assert warning.startswith("y: other programs kept 1.5 of 2 processors busy") and not found.notes
    assert f"warning: {warning}" in found.summary()
    assert found.to_dict()["after"]["load"] == {"seconds": 1.0, "processors": 2, "others": 1.5}


def test_an_empty_run_has_no_benefit() -> None:
    for pair, said in (((unfused(), Profile()), "the second run"), ((Profile(), fused()), "the first run")):
        found = ProfileComparison(*pair, ("x", "y"))
        assert found.benefit_percent is None and found.kernel_drop_percent is None
        assert f"benefit: not known: {said} launched nothing" in found.summary()
    assert "the first and the second run" in "".join(ProfileComparison(Profile(), Profile(), ("x", "y")).summary())


def test_which_launches_of_a_program_are_one_call(tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "p") as p:
        k(buffers())
        k.unfused()(buffers())
        with p.call():
            k(buffers())
            k.unfused()(buffers())
    assert p.result is not None
    assert [launch.call for launch in p.result.launches] == [0, 1, 1, 2, 2, 2]
    assert p.result.load is not None and p.result.load.others >= 0
    with (tmp_path / "p" / "calls.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["Call"], row["Graphs"], row["Launches"]) for row in rows] == [
        ("0", "twice", "1"),
        ("1", "twice", "2"),
        ("2", "twice", "3"),
    ]
    first = rows[0]
    assert float(first["Duration(us)"]) == pytest.approx(float(first["In launches(us)"]), abs=0.002)
