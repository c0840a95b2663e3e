"""docs/report.md: its example writes a report, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from superkernel.observe.report import sections, view

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "report.md").read_text()
CHARTS = ROOT / "src" / "superkernel" / "observe" / "report" / "echarts" / "echarts.min.js"


def test_the_example_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert "Two additions" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_section_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0], names)
    rows = [name for row in re.findall(r"^\| ([A-Z][^|]+?) \|", PAGE, re.MULTILINE) for name in row.split(", ")]
    shown = [section.title for section in sections.sections(names["data"])]  # type: ignore[arg-type]
    assert rows == ["Before and after" if title == "Time by op type" else title for title in shown]


def test_its_limits_and_versions_are_those_of_the_code() -> None:
    for limit in (view.MOST_SPANS, view.MOST_LAUNCHES, sections.MOST_TEXT):
        assert f"{limit:,}" in PAGE
    version = re.search(r'\.version="([\d.]+)"', CHARTS.read_text()[-3000:])
    assert version is not None
    assert f"version {version[1]}, unchanged" in PAGE
    assert f"{CHARTS.stat().st_size / 1e6:.1f} MB" in PAGE
