"""Which calls a report shows side by side, and in which words, units and colours."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

from observe.report import samples
from observe.report.samples import launch

from superkernel.observe.profile import SUPER_KERNEL, Clock, MachineLoad, Profile, ProfiledKernel, ProfiledLaunch
from superkernel.observe.report import ReportData, ReportedRun
from superkernel.observe.report.markup import Cell, Column, breakable, table, with_units
from superkernel.observe.report.page import page
from superkernel.observe.report.shown_calls import Which, choices, kind_pairs
from superkernel.observe.report.units import time_text
from superkernel.observe.report.verdict import verdict
from superkernel.observe.report.view import view

DURATIONS = (50.0, 20.0, 30.0, 90.0, 40.0)


def run(title: str, durations: tuple[float, ...], identity: str = "g", begin: float = 0) -> ReportedRun:
    """Calls of one launch each, one every millisecond."""
    launches = tuple(
        launch("k", SUPER_KERNEL, begin + 1000.0 * number, us, kernel=0, scope="s", call=number)
        for number, us in enumerate(durations)
    )
    return ReportedRun(title, Profile(launches, (ProfiledKernel("k", identity=identity),), {"cores used": 2}))


def two(second: ReportedRun | None = None) -> ReportData:
    return ReportData("t", (run("before", DURATIONS), second or run("after", (10.0, 11.0, 12.0), begin=77_000.0)))


def test_the_same_call_of_both_runs_is_shown_from_its_first_launch_on() -> None:
    shown = choices(two())
    assert [choice.label for choice in shown] == ["s: median", "s: fastest", "s: slowest", "all calls"]
    times = [[call.duration_us for calls in choice.calls for call in calls] for choice in shown[:3]]
    assert times == [[40, 11], [20, 10], [90, 12]]
    data = view(two())
    assert data["choices"] == [choice.label for choice in shown]
    for timeline, longest in zip(data["timelines"], (90, 12), strict=True):
        slowest = timeline["choices"][2]
        assert [entry[:2] for entry in slowest["launches"]] == [(0, longest)]


def test_all_calls_are_as_many_of_each_run() -> None:
    every = choices(two())[-1]
    assert every.which is Which.ALL and [len(calls) for calls in every.calls] == [3, 3]


def test_a_single_call_leaves_nothing_to_choose() -> None:
    (choice,) = choices(samples.both())
    assert [len(calls) for calls in choice.calls] == [1, 1]
    assert choices(ReportData.on_one(Profile(), "t")) == []


def test_kinds_that_only_one_run_has_are_paired_in_order() -> None:
    (pair,) = kind_pairs(two(run("after", (1.0,), identity="other")))
    assert pair.kinds[0] is not None and pair.kinds[1] is not None
    assert "no call in common" in verdict(two(run("after", (1.0,), identity="other")))
    assert [pair.kinds[0] is None for pair in kind_pairs(two(run("after", ())))] == [False]


def test_the_first_screen_is_the_verdict_and_the_machine_comes_last() -> None:
    assert (
        verdict(two())
        == "A call of s takes 72.5 % less time: 40.0 µs before, 11.0 µs after (medians of 5 and 3 calls)."
    )
    slower = ReportData("t", (run("a", (10.0,) * 3), run("b", (18.4,) * 3)))
    assert "takes 84.0 % more time" in verdict(slower) and "medians of 3 calls each" in verdict(slower)
    alone = ReportData("t", (run("a", DURATIONS),))
    assert verdict(alone) == (
        "A call of s, 1 launch, takes 40.0 µs (median of 5 calls; 99 % within 90.0 µs, slowest 90.0 µs)."
    )
    assert verdict(two(run("after", ()))) == "after: nothing was launched, so there is nothing to compare."
    text = page(two())
    assert text.index('class="verdict"') < text.index('id="calls"') < text.index('id="machine"')
    assert text.rindex("<section") == text.index('<section id="machine"')


def test_a_loaded_machine_is_on_the_first_screen() -> None:
    loaded = run("after", (10.0,))
    loaded = replace(loaded, profile=replace(loaded.profile, load=MachineLoad(1.0, 2, 1.7)))
    text = page(two(loaded))
    warning = text.index("Warning: after: other programs kept 1.7 of 2 processors busy")
    assert warning < text.index('class="cards"')
    assert "1.70 of 2 processors" in text and "Warning:" not in page(two())


def test_emulated_times_are_ticks_everywhere() -> None:
    spans = (samples.span(0, "op", samples.SpanKind.OP, 0, 2),)
    whole = ProfiledLaunch("k", SUPER_KERNEL, 0, 1_234_000, kernel=0, spans=spans)
    profile = Profile((whole,), (ProfiledKernel("k", ops=(samples.ProfiledOp("op"),)),), clock=Clock.TICKS)
    data = ReportData.on_one(profile, "emulated")
    assert verdict(data) == "One call of k, 1 launch, took 1,234,000 ticks."
    shown = view(data)
    assert shown["unit"] == "ticks" and shown["timelines"][0]["choices"][0]["launches"][0][:2] == (0, 1_234_000)
    assert shown["bars"][0]["time"] == [1_234_000]
    tables = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page(data), flags=re.DOTALL)
    assert "2,000 ticks" in tables and not re.search(r"\d\s(µs|ms|ns)\b", tables)
    assert time_text(0.001, Clock.TICKS) == "1 tick"


def test_a_colour_means_one_thing() -> None:
    assets = resources.files("superkernel.observe.report").joinpath("assets")
    script, style = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("common.js", "style.css"))
    palette = re.findall(r"#[0-9a-f]{6}", script.partition("const PALETTE")[2].partition("];")[0])
    other = re.findall(r'OTHER_COLOUR = "(#\w{6})"', script)
    runs = re.findall(r"--(?:before|after): (#\w{6})", style)
    waits = re.findall(r"--(?:wait|barrier|rank-wait|notify|kernel): (#\w{6})", style)
    assert len(palette) == 15 == len(set(palette)) and len(other) == 1
    assert not set(palette) & {*other, *runs, *waits} and not set(runs) & {*other, *waits}


def test_names_are_broken_between_words_only() -> None:
    assert breakable("a/long/fused_kernel.py:9 a_b 3.5") == "a/<wbr>long/<wbr>fused_<wbr>kernel.<wbr>py:<wbr>9 a_b 3.5"
    assert with_units("11.7 % between ops, 3 µs") == "11.7&nbsp;% between ops, 3&nbsp;µs"
    style = resources.files("superkernel.observe.report").joinpath("assets/style.css").read_text(encoding="utf-8")
    assert "anywhere" not in style and "break-all" not in style


def test_every_column_can_be_sorted_by_its_numbers() -> None:
    html = table((Column("a"), Column("b", True)), [("x", Cell("2 ms", 2000.0)), ("y", Cell("?", None))], "t")
    assert html.count('<button type="button" class="sort">') == 2
    assert '<td class="number" data-value="2000">2 ms</td>' in html and '<td class="number">?</td>' in html
