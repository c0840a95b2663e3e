"""docs/ascend.md: its super kernel runs and has the entry on the page; its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from superkernel.targets.ascend import metadata, oplist
from superkernel.targets.ascend.chips import known_chips

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ascend.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_runs_and_has_the_entry_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    (tmp_path / "adds.cpp").write_text(block("cpp"))
    names: dict[str, object] = {}
    exec(block("python"), names)
    made = names["made"]
    assert isinstance(made, dict) and (made["z"] == 3).all()
    source = (tmp_path / "add_skp" / "add_skp_kernel.cpp").read_text()
    assert block("text") in source


def test_every_field_is_on_the_page() -> None:
    short = re.sub(r"`\.\.\.(_\w+)`", r"\1", PAGE)
    for field in (*oplist._ENTRY, *oplist._MORE, *metadata._REQUIRED, *metadata._OPTIONAL):
        assert field in short or any(field.endswith(end) for end in re.findall(r"\b_\w+", short)), field


def test_every_chip_is_on_the_page() -> None:
    for chip in known_chips():
        assert f"`{chip}`" in PAGE


def test_it_says_plainly_that_nothing_ran_on_an_npu() -> None:
    assert "Nothing here has run on an NPU" in PAGE
