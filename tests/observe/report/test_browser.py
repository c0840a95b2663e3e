"""Reports in a real browser: they open without a complaint and load nothing; zoom and hover work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from observe.report import samples
from observe.report.browser import FLAGS, Opened, find_browser

from superkernel.observe.profile import Profile, ProfiledEdge, ProfiledKernel, ProfiledOp
from superkernel.observe.report import ReportData, ReportedRun, write_report
from superkernel.plan.plan import SyncKind
from superkernel.plan.steps import SpanKind

driver = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser: pip install playwright")

Open = Callable[..., Opened]
EMPTY = ReportData.on_one(Profile(), "Empty")
ONE_OP = ReportData("One op", (samples.kernel_run([samples.span(3, "a", SpanKind.OP, 1, 1)], [ProfiledOp("a")]),))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, or set SUPERKERNEL_BROWSER to its path")
    with driver.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        except driver.Error as reason:
            if "SUPERKERNEL_BROWSER" in os.environ:
                raise
            pytest.skip(f"{path} does not start: {str(reason).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a report from disk. Afterwards, no page may have complained, or asked for anything but itself."""
    pages: list[Opened] = []

    def open_report(data: ReportData, width: int = 1200, theme: str = "light", **settings: Any) -> Opened:
        path = write_report(tmp_path / f"{len(pages)}.html", data)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme, **settings)
        page.set_default_timeout(600_000)
        pages.append(Opened(page))
        page.goto(path.as_uri())
        return pages[-1]

    yield open_report
    for number, report in enumerate(pages):
        assert report.complaints == []
        assert report.requests == [(tmp_path / f"{number}.html").as_uri()]
        report.page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "data",
    [samples.both(), samples.hostile(), samples.many_spans(), EMPTY, ONE_OP],
    ids=["both", "hostile", "many", "empty", "one op"],
)
def test_it_opens_without_a_complaint_and_draws_every_chart(opened: Open, data: ReportData, theme: str) -> None:
    report = opened(data, theme=theme)
    blank = report.run(
        """() => [...document.querySelectorAll("[data-chart]")].filter((element) => {
            const canvas = element.querySelector("canvas");
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return pixels.every((value) => value === pixels[0]);
        }).map((element) => element.id)"""
    )
    assert blank == []
    drawn, places = report.run(
        "() => [Object.keys(superkernelReport.charts).length, document.querySelectorAll('[data-chart]').length]"
    )
    assert drawn == places
    assert (places == 0) == (data is EMPTY)


def test_the_wheel_zooms_around_the_pointer(opened: Open) -> None:
    report = opened(ReportData("t", (samples.after(),)))
    assert report.shown_range() == (0, 100)
    report.page.mouse.move(*report.at("timeline-0", 25, 1))
    report.page.mouse.wheel(0, -300)
    report.page.wait_for_function("() => !document.querySelector('#timeline-0-range').textContent.includes('100')")
    begin, end = report.shown_range()
    assert 0 < begin < 25 < end < 100


def test_a_drag_moves_what_is_shown(opened: Open) -> None:
    report = opened(ReportData("t", (samples.after(),)))
    report.page.click('[data-do="in"]')
    assert report.shown_range() == (25, 75)
    report.page.mouse.move(*report.at("timeline-0", 60, 1))
    report.page.mouse.down()
    report.page.mouse.move(*report.at("timeline-0", 50, 1), steps=5)
    report.page.mouse.up()
    begin, end = report.shown_range()
    assert begin == pytest.approx(35, abs=1) and end == pytest.approx(85, abs=1)


@pytest.mark.parametrize("way", ["buttons", "keys"])
def test_buttons_and_keys_zoom_and_move(opened: Open, way: str) -> None:
    report = opened(ReportData("t", (samples.after(),)))
    keys = {"in": "+", "out": "-", "left": "ArrowLeft", "right": "ArrowRight", "all": "0"}
    report.page.focus("#timeline-0")

    def do(what: str) -> tuple[float, float]:
        if way == "keys":
            report.page.keyboard.press(keys[what])
        else:
            report.page.click(f'button[data-timeline="0"][data-do="{what}"]')
        return report.shown_range()

    assert do("in") == (25, 75)
    assert report.page.inner_text("#timeline-0-range") == "Shown: 25 to 75 µs"
    assert do("right") == (37.5, 87.5)
    assert do("left") == (25, 75)
    assert do("in") == (37.5, 62.5)
    assert do("out") == (25, 75)
    assert do("all") == (0, 100)
    assert do("out") == (0, 100)  # there is no more to see
    assert do("right") == (0, 100)
    for _ in range(30):
        begin, end = do("in")
    assert 0 < end - begin < 0.1  # and zooming in ends somewhere


def test_one_scale_survives_zooming_and_separate_scales_are_separate(opened: Open) -> None:
    report = opened(samples.both())
    report.page.click('button[data-timeline="1"][data-do="in"]')
    assert (report.shown_range(0), report.shown_range(1)) == ((37.5, 112.5), (37.5, 112.5))
    report.page.click('button[data-timeline="0"][data-do="all"]')
    assert (report.shown_range(0), report.shown_range(1)) == ((0, 150), (0, 150))
    report.page.uncheck("#timeline-shared")
    report.page.click('button[data-timeline="1"][data-do="in"]')
    assert (report.shown_range(0), report.shown_range(1)) == ((0, 150), (25, 75))


def test_two_runs_share_a_scale_until_asked_not_to_or_too_different(opened: Open) -> None:
    report = opened(samples.both())
    assert (report.shown_range(0), report.shown_range(1)) == ((0, 150), (0, 150))
    report.page.uncheck("#timeline-shared")
    assert (report.shown_range(0), report.shown_range(1)) == ((0, 150), (0, 100))
    long = ReportedRun("long", Profile((samples.launch("a", "A", 0, 5000),)))
    report = opened(ReportData("t", (long, samples.after())))
    assert (report.shown_range(0), report.shown_range(1)) == ((0, 5000), (0, 100))


@pytest.mark.parametrize(
    ("time", "row", "said"),
    [
        (10, 1, ["matmul_0", "op, type MatMul, core 0", "20 µs", "from 3 µs to 23 µs", "in sk1"]),
        (10, 2, ["matmul_0", "op, type MatMul, core 1", "21 µs", "from 3 µs to 24 µs", "in sk1"]),
        (27, 2, ["matmul_1", "barrier, core 1", "6 µs", "from 24.5 µs to 30.5 µs", "in sk1"]),
        (
            23.7,
            1,
            [
                "softmax",
                "waits before it, core 0",
                "1.5 µs",
                "from 23 µs to 24.5 µs",
                "for matmul_0 on core 1",
                "in sk1",
            ],
        ),
        (55, 2, ["sk1", "the whole launch, core 1", "58 µs", "from 2 µs to 60 µs"]),
        (30, 0, ["sk1", "launch, type SuperKernel", "62 µs", "from 0 µs to 62 µs", "scope attention"]),
    ],
)
def test_hover_tells_what_a_core_did(opened: Open, time: float, row: int, said: list[str]) -> None:
    report = opened(ReportData("t", (samples.after(),)))
    assert report.hover("timeline-0", time, row) == said


def calls(durations: tuple[float, ...], title: str) -> ReportedRun:
    launches = tuple(
        samples.launch("k", "SuperKernel", 1000 * number, us, kernel=0, call=number)
        for number, us in enumerate(durations)
    )
    return ReportedRun(title, Profile(launches, (ProfiledKernel("k", identity="g"),)))


def test_the_fastest_median_and_slowest_call_can_be_chosen_and_tables_sorted(opened: Open) -> None:
    report = opened(ReportData("t", (calls((50, 20, 90), "before"), calls((12, 10, 11), "after"))))
    ends = {}
    for choice in ("median", "fastest", "slowest"):
        report.page.select_option("#timeline-call", label=f"k: {choice}")
        report.page.uncheck("#timeline-shared")
        ends[choice] = report.shown_range(0)[1], report.shown_range(1)[1]
    assert ends == {"median": (50, 11), "fastest": (20, 10), "slowest": (90, 12)}
    report.page.select_option("#timeline-call", label="all calls")
    assert report.shown_range(0)[1] == 2090

    def column(number: int) -> list[str]:
        return list(report.page.locator(f"#calls tbody tr td:nth-child({number})").all_inner_texts())

    assert column(2) == ["before", "after"] and column(4) == ["50.0 µs", "11.0 µs"]
    report.page.click("#calls th:nth-child(4) button")
    assert column(4) == ["50.0 µs", "11.0 µs"]  # the largest first
    report.page.click("#calls th:nth-child(4) button")
    assert column(4) == ["11.0 µs", "50.0 µs"]
    report.page.click("#calls th:nth-child(2) button")
    assert column(2) == ["after", "before"]
    assert report.page.locator("#calls th[aria-sort]").count() == 1
    first = report.page.locator(".verdict").bounding_box()
    assert first is not None and first["y"] + first["height"] < 900  # on the first screen


@pytest.mark.conformance
def test_a_thousand_ops_in_two_hundred_calls_are_a_light_page(browser: Any, tmp_path: Path) -> None:
    """At most 20 MB, and two seconds of the processor until it is drawn."""
    path = write_report(tmp_path / "large.html", samples.large())
    assert path.stat().st_size < 20_000_000
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 2.0
    page.locator("#graph-0").scroll_into_view_if_needed()  # a large graph is drawn when it is needed
    page.locator("#graph-0 canvas").first.wait_for()
    page.close()


def test_hover_finds_an_op_that_zooming_made_visible(opened: Open) -> None:
    report = opened(samples.many_spans())
    report.page.focus("#timeline-0")
    for _ in range(9):
        report.page.keyboard.press("+")
    begin, end = report.shown_range()
    assert end - begin < 10
    number = int((begin + end) / 2 // 2)
    assert report.hover("timeline-0", 2 * number + 0.7, 3)[0] == f"op_{number % 200}"


def test_many_spans_draw_no_more_shapes_than_can_be_seen(opened: Open) -> None:
    report = opened(samples.many_spans(40_000, cores=2))
    shapes = report.run("() => superkernelReport.charts['timeline-0'].getZr().storage.getDisplayList().length")
    assert 1000 < shapes < 9 * 2 * 1200  # types x cores x pixels, where there are 40,000 spans


def test_hover_on_an_edge_tells_its_sync_and_why(opened: Open) -> None:
    report = opened(ReportData("t", (samples.after(),)))
    report.page.locator("#graph-0").scroll_into_view_if_needed()
    middle = report.run(
        """() => {
            const chart = superkernelReport.charts["graph-0"];
            const nodes = chart.getModel().getSeriesByIndex(0).getData();
            const at = (name) => chart.convertToPixel({ seriesIndex: 0 }, nodes.getItemLayout(nodes.indexOfName(name)));
            const [[x0, y0], [x1, y1]] = [at("below 1"), at("above 2")];
            const box = document.getElementById("graph-0").getBoundingClientRect();
            return [box.left + x0 + (x1 - x0) / 6, box.top + y0 + (y1 - y0) / 6];
        }"""
    )
    assert report.hover_at("graph-0", *middle) == [
        "barrier",
        "matmul_1 after softmax",
        "read-after-write on 't1'",
        "write-after-read on 't0'",
    ]


def test_edges_carry_their_sync_and_implied_ones_can_be_hidden(opened: Open) -> None:
    report = opened(ReportData("t", (samples.after(),)))

    def syncs() -> list[str]:
        return sorted(
            report.run(
                """() => superkernelReport.charts["graph-0"].getOption().series[0].edges
                    .map((edge) => edge.sync).filter((sync) => sync !== undefined)"""
            )
        )

    texts = report.run(
        "() => superkernelReport.charts['graph-0'].getZr().storage.getDisplayList().map((shape) => shape.style.text)"
    )
    assert {"matmul_0", "21 µs", "softmax", "5.5 µs", "counter", "barrier", "local", "none"} <= set(texts)
    assert syncs() == ["barrier", "counter", "local", "none"]
    report.page.uncheck("#graph-implied")
    assert syncs() == ["barrier", "counter", "local"]


def skipping() -> ReportData:
    """Experts in a layer: edges pass up to five others."""
    names = ["norm", "mm", "gating", "transpose", "sort", "counts", "rows", "matmul", "swiglu", "matmul_2", "mean"]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (0, 6), (4, 6), (6, 7), (5, 7), (5, 9), (7, 8), (8, 9), (9, 10)]
    edges = tuple(ProfiledEdge(names[a], names[b], SyncKind.COUNTER) for a, b in [*pairs, (2, 10), (4, 10)])
    kernel = ProfiledKernel("k", ops=tuple(map(ProfiledOp, names)), edges=edges)
    return ReportData.on_one(Profile(kernels=(kernel,)), "t")


def test_texts_of_the_graph_do_not_stand_on_each_other(opened: Open) -> None:
    report = opened(skipping())
    texts = report.run(
        """() => superkernelReport.charts["graph-0"].getZr().storage.getDisplayList()
            .filter((shape) => shape.style.text).map((shape) => {
                const box = shape.getBoundingRect().clone();
                box.applyTransform(shape.getComputedTransform());
                return [shape.style.text, box.x, box.y, box.x + box.width, box.y + box.height];
            })"""
    )
    assert sorted(text for text, *_ in texts).count("counter") == 15 and len(texts) == 11 + 15
    for (text, *a), (other_text, *b) in combinations(texts, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (text, a, other_text, b)


def test_hover_where_edges_go_together_tells_of_all(opened: Open) -> None:
    report = opened(skipping())
    middle = report.run(
        """() => {
            const chart = superkernelReport.charts["graph-0"];
            const series = chart.getModel().getSeriesByIndex(0);
            const nodes = series.getData();
            // from the op whose edges to two others begin as one
            const piece = series.option.edges.find((edge) => edge.source === "below 5" && edge.sync === undefined);
            const at = (name) => chart.convertToPixel({ seriesIndex: 0 }, nodes.getItemLayout(nodes.indexOfName(name)));
            const [[x0, y0], [x1, y1]] = [at(piece.source), at(piece.target)];
            document.getElementById("graph-0").scrollIntoView({ block: "start", behavior: "instant" });
            const box = document.getElementById("graph-0").getBoundingClientRect();
            return [box.left + (x0 + x1) / 2, box.top + (y0 + y1) / 2];
        }"""
    )
    found = report.hover_at("graph-0", *middle)
    assert found == ["counter", "matmul after counts", "matmul_2 after counts"]


def test_the_graph_first_shown_is_a_fused_one(opened: Open) -> None:
    kernels = {name: ProfiledKernel("k", ops=(ProfiledOp(name),), fused=name == "fused") for name in ("alone", "fused")}
    runs = tuple(ReportedRun(name, Profile(kernels=(kernel,))) for name, kernel in kernels.items())
    report = opened(ReportData("t", runs))
    assert report.page.locator("#graph-kernel option:checked").inner_text() == "fused: k"


def test_another_super_kernel_can_be_chosen(opened: Open) -> None:
    ops = {"one": (ProfiledOp("first"),), "none": (), "two": (ProfiledOp("second"),)}
    kernels = tuple(ProfiledKernel(name, ops=its_ops) for name, its_ops in ops.items())
    report = opened(ReportData.on_one(Profile(kernels=kernels), "t"))
    assert report.page.locator("#graph-kernel option").all_inner_texts() == ["one", "two"]
    report.page.select_option("#graph-kernel", label="two")
    names = report.run(
        "() => superkernelReport.charts['graph-0'].getOption().series[0].data.map((node) => node.label_text)"
    )
    assert "second" in names and "first" not in names


def test_axes_have_titles_with_units(opened: Open) -> None:
    report = opened(samples.both())

    def titles(chart: str) -> list[str]:
        names = report.run(
            "id => { const o = superkernelReport.charts[id].getOption(); return [o.xAxis[0].name, o.yAxis[0].name]; }",
            chart,
        )
        return [name for name in names if name]

    assert titles("totals-0") == titles("types-0") == ["total time (µs)"]
    assert titles("timeline-1") == ["time since the first launch of the call (µs)"]
    assert titles("roofline-0") == ["bytes moved by the op", "speed (GB/s)"]
    report.page.select_option("#bars-metric", "count")
    assert titles("totals-0") == titles("types-0") == ["launches (number)"]


def test_hover_on_bars_and_roofline_tells_numbers(opened: Open) -> None:
    report = opened(samples.both())
    assert report.hover("totals-0", 30, 1) == ["SuperKernel", "fused", "62 µs"]
    said = report.hover("roofline-0", 404_000, 404_000 / 21e-6 / 1e9)
    assert said == [
        "matmul_0",
        "in sk1",
        "404 kB in 21 µs",
        "19.24 GB/s",
        "96.2 % of the measured bandwidth",
    ]


def test_names_do_no_harm_and_are_shown_as_they_are(opened: Open) -> None:
    report = opened(samples.hostile())
    assert report.page.title() == samples.HOSTILE
    assert report.hover("timeline-0", 10, 1)[0] == samples.HOSTILE
    assert report.hover("totals-0", 30, 0)[0] == samples.HOSTILE
    assert report.hover("roofline-0", 404_000, 404_000 / 21e-6 / 1e9)[0] == samples.HOSTILE
    assert report.run("() => window.harmed") is None
    assert report.page.locator("img").count() == 0


def test_the_button_changes_the_theme_and_keeps_the_zoom(opened: Open) -> None:
    report = opened(ReportData("t", (samples.after(),)), theme="dark")

    def behind() -> str:
        return str(report.run("() => getComputedStyle(document.querySelector('section')).backgroundColor"))

    def ink() -> str:
        return str(report.run("() => superkernelReport.charts['timeline-0'].getOption().xAxis[0].axisLabel.color"))

    report.page.click('[data-do="in"]')
    dark = behind(), ink()
    report.page.click("#theme")
    assert behind() != dark[0] and ink() != dark[1]
    assert report.shown_range() == (25, 75)
    report.page.click("#theme")
    assert (behind(), ink()) == dark


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("data", [samples.both(), samples.hostile()], ids=["both", "hostile"])
def test_it_fits_the_width_of_a_phone_and_of_a_screen(opened: Open, data: ReportData, width: int) -> None:
    report = opened(data, width=width)
    assert report.run("() => document.scrollingElement.scrollWidth") <= width
    for box in report.run(
        "() => [...document.querySelectorAll('canvas')].map((canvas) => canvas.getBoundingClientRect().toJSON())"
    ):
        assert box["left"] >= 0 and box["right"] <= width


def test_charts_follow_the_width_of_the_window(opened: Open) -> None:
    report = opened(samples.both())
    report.page.set_viewport_size({"width": 500, "height": 900})
    report.page.wait_for_function(
        "() => document.querySelector('#timeline-0 canvas').getBoundingClientRect().width < 500"
    )


def test_sources_are_folded_until_asked_for(opened: Open) -> None:
    report = opened(samples.both())
    source = report.page.locator("#source pre")
    assert not source.is_visible()
    report.page.focus("#source summary")
    report.page.keyboard.press("Enter")
    assert source.is_visible()
    assert source.inner_text().rstrip() == "// step 1\nint main() {}"
    assert "mono" in source.evaluate("(pre) => getComputedStyle(pre).fontFamily")


def test_without_scripts_all_numbers_are_there(opened: Open) -> None:
    report = opened(samples.both(), java_script_enabled=False)
    assert report.page.locator("noscript").is_visible()
    assert "23.3 % less" in report.page.inner_text("#summary")


def test_the_roof_is_drawn_once_for_equal_bandwidths_and_named_for_different_ones(opened: Open) -> None:
    def labels(data: ReportData) -> list[str]:
        return list(
            opened(data).run(
                """() => superkernelReport.charts["roofline-0"].getOption().series
                    .filter((line) => line.markLine).map((line) => line.markLine.label.formatter)"""
            )
        )

    assert labels(samples.both()) == ["measured read bandwidth: 20 GB/s"]
    slower = ReportedRun("unfused", replace(samples.before().profile, read_bytes_per_s=10e9))
    assert labels(ReportData("t", (slower, samples.after()))) == [
        "measured read bandwidth: 10 GB/s (unfused)",
        "measured read bandwidth: 20 GB/s (fused)",
    ]
