"""docs/targets.md and README.md: the first super kernel runs, and its plan and source are those on the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.model.options import TARGETS
from superkernel.targets import find_target

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "targets.md").read_text()
README = (ROOT / "README.md").read_text()


def block(text: str, language: str) -> str:
    """The first code block of that language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def without_compiler(source: str) -> str:
    """Names and sizes that a compiler decides, replaced."""
    return re.sub(r"(core\.preload\(.*\), )\d+\)", r"\g<1>N)", re.sub(r"\badd_[0-9a-f]{8}\b", "add_HASH", source))


def test_the_page_shows_plan_and_source_of_the_readmes_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add.cpp").write_text(block(README, "cpp"))
    names: dict[str, object] = {}
    exec(block(README, "python"), names)
    with sk.compile(names["ops"], name="twice", cores=2) as k:  # type: ignore[arg-type]
        assert f"{k.plan}\n" == block(PAGE, "text")
        assert without_compiler(k.source) == without_compiler(block(PAGE, "cpp"))
        outputs = k({"a": np.ones(1024, np.float32), "b": np.ones(1024, np.float32)})
    assert (outputs["c"] == 3).all()


def test_every_target_has_a_row_that_says_whether_it_is_here() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))
    for target in TARGETS:
        try:
            find_target(target)
        except sk.UnsupportedError:
            assert rows[target] == "to come"
        else:
            assert rows[target].startswith("here")
