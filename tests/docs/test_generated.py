"""The pages that tools/write_docs.py writes: fresh, complete, and found out when they are stale."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from superkernel.model.options import OPTIONS


@pytest.fixture
def write_docs() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "write_docs.py"
    spec = importlib.util.spec_from_file_location("write_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["options.md", "configuration.md", "files.md"])
def test_a_page_is_fresh(write_docs: ModuleType, name: str) -> None:
    texts = {page.name: (page, text()) for page, text in write_docs.PAGES.items()}
    page, text = texts[name]
    assert page.read_text(encoding="utf-8") == text, "run `make docs`"


def test_the_options_page_has_every_row(write_docs: ModuleType) -> None:
    page = write_docs.options_page()
    for row in OPTIONS:
        assert f"| `{row.key}` | {row.allowed} | {row.default} | {row.what} |" in page
        assert f"| `{row.key}` | {row.support['cpu'].level.value}" in page


def test_every_source_file_begins_with_a_sentence(write_docs: ModuleType) -> None:
    files = write_docs.source_files()
    assert {"compile.py", "kernel.h", "launch.cpp", "graph.js"} <= {path.name for path in files}
    for path in files:
        assert 10 <= len(write_docs.first_sentence(path)) <= 160, f"{path} begins with no short sentence"


def test_a_module_is_called_what_its_docstring_calls_it(write_docs: ModuleType) -> None:
    modules = [path for path in write_docs.source_files() if path.suffix == ".py"]
    for path in modules:
        name = ".".join(path.relative_to(write_docs.PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        called = re.match(r'"""([a-z][\w.]*): ', path.read_text())
        assert not called or called[1] in (name, name.partition(".")[2]), path


def test_a_sentence_stands_without_the_name_of_its_file(write_docs: ModuleType, tmp_path: Path) -> None:
    texts = {
        "a.py": '"""plan.a: edges -> waits, e.g. flags. More.\n\nMore."""\n',
        "b.h": "// b.h: what one core\n// does | may do.\n//\n// More.\n#pragma once\n",
        "c.py": "x = 1\n",
    }
    expected = {"a.py": "edges -> waits, e.g. flags", "b.h": r"what one core does \| may do", "c.py": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert write_docs.first_sentence(tmp_path / name) == expected[name]


def test_check_fails_on_a_missing_or_stale_page_and_writes_nothing(
    write_docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "options.md"
    monkeypatch.setattr(write_docs, "PAGES", {page: write_docs.options_page})
    assert write_docs.main(["--check"]) == 1
    assert not page.exists()
    assert write_docs.main([]) == 0
    assert write_docs.main(["--check"]) == 0
    page.write_text("stale", encoding="utf-8")
    assert write_docs.main(["--check"]) == 1
    assert page.read_text(encoding="utf-8") == "stale"
