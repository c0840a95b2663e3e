"""docs/exceptions.md: every class is there, and every example raises it with the message on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import superkernel as sk
from superkernel.errors import SuperKernelError

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "exceptions.md").read_text()
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BEGINNING = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLASSES = {cls.__name__ for cls in SuperKernelError.__subclasses__()}


def examples() -> list[Any]:
    """(class, code, message) of every example, in the section of its class."""
    found = []
    for section in TEXT.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        pairs = _EXAMPLE.findall(section)
        assert pairs, f"{title} has no example"
        assert section.count("```python") == len(pairs), f"{title}: an example has no message"
        found += [pytest.param(title, *pair, id=f"{title}-{i}") for i, pair in enumerate(pairs)]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the README's add.cpp is."""
    source = re.search(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert source is not None
    (tmp_path / "add.cpp").write_text(source[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("title", "code", "message"), examples())
def test_the_example_raises_what_the_page_says(folder: Path, title: str, code: str, message: str) -> None:
    beginning = _BEGINNING.search(TEXT)
    assert beginning is not None
    names: dict[str, Any] = {}
    exec(beginning[1], names)
    with pytest.raises(SuperKernelError) as caught:
        exec(code, names)
    assert type(caught.value).__name__ == title
    pattern = re.escape(message.strip()).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, str(caught.value).strip(), re.DOTALL), str(caught.value)


def test_every_class_has_a_row_and_a_section() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == CLASSES
    assert set(re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)) == CLASSES
    assert set(sk.__all__) >= CLASSES
