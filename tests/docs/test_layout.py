"""docs/layout.md: names every source file once, no other, and an entry that is really there."""

from __future__ import annotations

import re
from pathlib import Path

import superkernel as sk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layout.md"
PACKAGE = Path(sk.__file__).parent
_ROW = re.compile(r"^\| `([^`]+)` \| (.+) \| (?:`([^`]+)` )?\|$", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w./-]+)\)")
ROWS = _ROW.findall(PAGE.read_text())


def test_every_source_file_is_on_the_page_once_and_nothing_else() -> None:
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    named = [path for path, _, _ in ROWS]
    assert sorted(named) == sorted(str(path.relative_to(PACKAGE)) for path in files)


def test_the_entry_of_every_file_is_in_it() -> None:
    for path, _, entry in ROWS:
        text = (PACKAGE / path).read_text()
        assert re.search(rf"(?<!\w){re.escape(entry)}(?!\w)", text), f"{path} has no {entry}"
        assert entry or not text, f"{path} has no entry on the page"


def test_every_file_has_one_short_sentence() -> None:
    for path, sentence, _ in ROWS:
        assert 10 <= len(sentence) <= 120, f"{path}: {sentence}"


def test_links_lead_somewhere() -> None:
    for page in PAGE.parent.glob("*.md"):
        for target in _LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
