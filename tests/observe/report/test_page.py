"""The page without a browser: complete, self-contained, and nothing in it that a name has put there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from observe.report import samples

from superkernel.observe.profile import Profile, ProfiledKernel, ProfiledOp
from superkernel.observe.report import ReportData
from superkernel.observe.report import sections as sections_module
from superkernel.observe.report import view as view_module
from superkernel.observe.report.page import page
from superkernel.plan.steps import SpanKind

SECTIONS = (
    "summary", "calls", "scopes", "bars", "inner", "waits", "timeline", "graph", "plan", "source", "splits", "roofline",
    "machine",
)  # fmt: skip
VOID = {"meta", "link", "input", "br", "img", "wbr"}


class Read(HTMLParser):
    """The elements of a page, its texts by section, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.texts: dict[str, str] = {}
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "elements that nothing closes"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.elements.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = values["id"] or ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.texts[self.section] = self.texts.get(self.section, "") + data.replace("\xa0", " ")

    def tags(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.elements if tag != "wbr")  # where a name may be broken

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def test_it_has_every_section_with_a_title_and_a_link_to_it() -> None:
    read = Read(page(samples.both()))
    assert [values["id"] for tag, values in read.elements if tag == "section"] == list(SECTIONS)
    links = [values["href"] for tag, values in read.elements if tag == "a" and values.get("class") != "skip"]
    assert links == [f"#{name}" for name in SECTIONS]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("summary", ("23.3 % less", "120 µs before, 92.0 µs after", "50.0 % less", "4 before, 2 after")),
        (
            "summary",
            ("A call of attention, tail takes 33.3 % less time: 150 µs before, 100 µs after (one call each).",),
        ),
        ("summary", ("measured together", "fused: one call, of three", "Host between launches8.00 µs")),
        ("calls", ("attention, tail", "150 µs", "100 µs", "33.3 % less", "30.0 µs", "8.00 µs")),
        ("scopes", ("attention", "90.0 µs", "62.0 µs", "31.1 % less", "tail", "unchanged")),
        ("inner", ("MatMul", "80.5 µs", "85.3 %", "Softmax", "1.50 µs")),
        ("waits", ("matmul_1", "at a barrier before it", "6.50 µs", "before it", "matmul_0", "1.50 µs")),
        ("machine", ("A processor with 2 cores", "20.0 GB/s")),
        ("summary", ("81.4 %", "fused, 2 cores, 58.0 µs inside of super kernels; 6.9 % waiting, 11.7 % between ops")),
        ("bars", ("SuperKernel", "MatMul", "Softmax", "-60.0 µs", "+62.0 µs")),
        ("timeline", ("unfused", "Launches only")),
        ("graph", ("barrier", "counter", "read-after-write on 't0'", "sk1 (scope attention)")),
        ("plan", ("plan sk1: 4 ops\n  call matmul_0", "options early-start=1")),
        ("source", ("// step 1\nint main() {}",)),
        ("splits", ("the op nonzero has no sub-kernel", "collective", "not fused", "model.py:9")),
        ("roofline", ("matmul_0", "404 kB", "19.2 GB/s", "96.2 %", "1 of 4 ops are not drawn")),
    ],
)
def test_a_section_says_what_the_data_says(section: str, said: tuple[str, ...]) -> None:
    text = Read(page(samples.both())).texts[section]
    for words in said:
        assert words in text


def test_every_chart_has_a_place_and_what_is_drawn_there() -> None:
    read = Read(page(samples.both()))
    drawn = [(values["data-chart"], values["data-number"]) for _, values in read.elements if "data-chart" in values]
    assert drawn == [
        ("totals", "0"),
        ("types", "0"),
        ("timeline", "0"),
        ("timeline", "1"),
        ("graph", "0"),
        ("roofline", "0"),
    ]
    data = read.data
    assert len(data["timelines"][1]["choices"][0]["spans"]) == 12
    assert len(data["graphs"][1]["edges"]) == 4
    assert [len(run["points"]) for run in data["roofline"]] == [0, 3]
    for _, values in read.elements:
        if "data-chart" in values:
            assert values["aria-label"]


def test_ids_differ_and_labels_lead_to_them() -> None:
    elements = Read(page(samples.both())).elements
    ids = Counter(values["id"] for _, values in elements if "id" in values)
    assert set(ids.values()) == {1}
    for _, values in elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert values.get(name) in (None, *ids)


def test_nothing_is_loaded() -> None:
    read = Read(page(samples.both()))
    for tag, values in read.elements:
        assert "src" not in values
        assert not any(name.startswith("on") for name in values), f"{tag} has a script in an attribute"
        if "href" in values:
            assert (values["href"] or "").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import", page(samples.both()).partition("<style>")[2].partition("</style>")[0])


def test_no_script_may_run_but_the_two_of_the_page() -> None:
    read = Read(page(samples.hostile()))
    policy = next(values["content"] for tag, values in read.elements if tag == "meta" and "http-equiv" in values)
    allowed = re.findall(r"'sha256-([^']+)'", policy or "")
    executable = read.scripts[1:]  # the first is data
    assert allowed == [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in executable]
    assert "default-src 'none'" in (policy or "")


def test_names_stay_names() -> None:
    """Names that end scripts, attributes and comments add no element to the page."""
    read, expected = Read(page(samples.hostile())), Read(page(samples.hostile("name")))
    assert read.tags() == expected.tags()
    assert read.scripts[1:] == expected.scripts[1:]
    for section in SECTIONS:
        assert samples.HOSTILE in read.texts[section], f"{section} does not show the name as it is"
    data = read.data
    assert data["runs"] == [samples.HOSTILE]
    assert samples.HOSTILE in data["timelines"][0]["names"]
    assert data["graphs"][0]["ops"][0]["name"] == samples.HOSTILE


@pytest.mark.parametrize(
    "name", ["", " ", "\0", "\n", "\ud800", "$title", "${data}", "x" * 5000, "مصفوفة", "\U0001d6fc"]
)
def test_odd_names_are_shown(name: str) -> None:
    read = Read(page(samples.both()))
    odd = Read(page(replace(samples.both(), title=name, runs=(samples.before(), replace(samples.after(), title=name)))))
    assert odd.tags() == read.tags()
    assert odd.data["runs"][1] == name


def test_an_empty_run_says_that_it_is_empty() -> None:
    read = Read(page(ReportData.on_one(Profile(), "nothing")))
    for section, said in {
        "summary": "nothing was launched, so there is nothing to compare",
        "machine": "Nothing was recorded about the machine.",
        "bars": "No launch was recorded.",
        "timeline": "Nothing was recorded",
        "graph": "No super kernel was recorded.",
        "plan": "No plan was recorded.",
        "source": "No emitted source was recorded.",
        "splits": "Nothing was recorded about how scopes were split.",
        "roofline": "No op was recorded.",
    }.items():
        assert said in read.texts[section]
    assert not [values for _, values in read.elements if "data-chart" in values]


def test_ops_without_bytes_are_listed_and_not_drawn() -> None:
    run = samples.kernel_run([samples.span(0, "a", SpanKind.OP, 0, 1)], [ProfiledOp("a", "Add")])
    read = Read(page(ReportData("t", (run,))))
    assert "1 of 1 ops are not drawn" in read.texts["roofline"]
    assert "bandwidth was not measured" in read.texts["roofline"]
    assert "1.00 µs" in read.texts["roofline"]
    assert "roofline" not in [values.get("data-chart") for _, values in read.elements]


def test_ops_that_were_launched_one_by_one_are_no_super_kernel() -> None:
    kernel = samples.after().profile.kernels[0]
    profiles = {fused: Profile(kernels=(replace(kernel, fused=fused),)) for fused in (True, False)}
    texts = {fused: Read(page(ReportData.on_one(profile, "r"))).texts["summary"] for fused, profile in profiles.items()}
    assert "Super kernels" in texts[True] and "Super kernels" not in texts[False]


def test_a_span_outside_of_super_kernels_has_the_type_of_its_launch() -> None:
    cast = samples.launch("cast", "Cast", 0, 5, spans=(samples.span(0, "x", SpanKind.OP, 1, 2),))
    data = Read(page(ReportData.on_one(Profile((cast,)), "r"))).data
    assert data["types"][data["timelines"][0]["choices"][0]["spans"][0][5]] == "Cast"


def test_a_kernel_without_ops_has_no_graph_and_does_not_shift_the_others() -> None:
    kernels = (ProfiledKernel("empty"), ProfiledKernel("full", ops=(ProfiledOp("a"),)))
    read = Read(page(ReportData.on_one(Profile(kernels=kernels), "r")))
    (option,) = [values for tag, values in read.elements if tag == "option" and values["value"].isdigit()]
    assert read.data["graphs"][int(option["value"])]["ops"][0]["name"] == "a"


def test_a_part_is_shown_with_the_line_that_it_ended_at() -> None:
    (row,) = re.findall(r"<tr>.*the op nonzero has no sub-kernel.*</tr>", page(samples.both()).replace("<wbr>", ""))
    assert "model.py:9" in row and "model.py:7" not in row


def test_equal_texts_are_shown_once_and_long_ones_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections_module, "MOST_TEXT", 1000)
    sources = (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z"))
    kernels = tuple(ProfiledKernel(name, source=source * 600) for name, source in sources)
    text = Read(page(ReportData.on_one(Profile(kernels=kernels), "r"))).texts["source"]
    assert text.count("x" * 600) == 1
    assert "b: the same as a." in text
    assert "y" * 400 in text and "y" * 401 not in text and "Cut here: 200 more characters." in text
    assert "zz" not in text and "d: 1 lines; left out" in text


def test_very_long_runs_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MOST_SPANS", 5)
    monkeypatch.setattr(view_module, "MOST_LAUNCHES", 1)
    read = Read(page(ReportData("t", (samples.after(),))))
    assert "Only 5 of 12 spans are drawn" in read.texts["timeline"]
    assert "Only the first 1 of 2 launches" in read.texts["timeline"]
    (choice,) = read.data["timelines"][0]["choices"]
    assert (len(choice["spans"]), len(choice["launches"])) == (0, 1)


def test_ten_thousand_spans_make_a_page_of_at_most_two_megabytes() -> None:
    assert len(page(samples.many_spans()).encode()) < 2_000_000


def test_the_same_profiles_give_the_same_page() -> None:
    assert page(samples.both()) == page(samples.both())


def test_types_share_one_colour_number_in_all_charts() -> None:
    data = Read(page(samples.both())).data
    assert data["types"][0] == "SuperKernel"
    assert len(set(data["types"])) == len(data["types"])
    matmul = data["types"].index("MatMul")
    assert data["graphs"][1]["ops"][0]["type"] == matmul
    assert {launch[3] for launch in data["timelines"][0]["choices"][0]["launches"]} >= {matmul}


@pytest.mark.parametrize("theme", ["light", "dark", "dark by button"])
def test_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    """The ratio that the accessibility guidelines ask for."""
    style = page(samples.both()).partition("<style>")[2].partition("</style>")[0]
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", blocks[["light", "dark", "dark by button"].index(theme)]))
    for ink in ("text", "quiet", "accent"):
        for behind in ("panel", "page"):
            assert contrast(colours[ink], colours[behind]) >= 4.5, (ink, behind)


def contrast(ink: str, behind: str) -> float:
    light, dark = sorted((luminance(ink), luminance(behind)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
