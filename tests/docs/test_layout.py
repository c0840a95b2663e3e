"""docs/layout.md: one screen that names every package, with an entry point that exists; links of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import superkernel as sk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layout.md"
ROOT = PAGE.parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(PAGE.parent.glob("*.md"))]
PACKAGE = Path(sk.__file__).parent
_PACKAGE_ROW = re.compile(r"^\| `([^`]+/)` \| (.+) \| `([^`]+)` `([^`]+)` \|$", re.MULTILINE)
_NAMED_FILE = re.compile(r"`([\w/]+\.(?:py|cpp|h))`(?: `(\w+)`)?")
_MODULE = re.compile(r"(?<![\w/<])superkernel(?:\.[a-z]\w*)+")
_LINK = re.compile(r"\]\(([\w./-]+)\)")
_MINOR = ("kernels", "bench", "ranks", "report")  # parts of a package that its row covers


def test_the_page_is_one_screen() -> None:
    assert len(PAGE.read_text().splitlines()) <= 60


def test_every_package_has_a_row() -> None:
    packages = {str(path.parent.relative_to(PACKAGE)) + "/" for path in PACKAGE.rglob("*/__init__.py")}
    named = [package for package, _, _, _ in _PACKAGE_ROW.findall(PAGE.read_text())]
    assert sorted(named) == sorted(name for name in packages if Path(name).name not in _MINOR)


def test_a_package_starts_in_itself() -> None:
    rows = _PACKAGE_ROW.findall(PAGE.read_text())
    assert rows
    for package, _, file, _ in rows:
        assert file.startswith(package)


@pytest.mark.parametrize(("file", "name"), _NAMED_FILE.findall(PAGE.read_text()))
def test_an_entry_point_is_in_its_file(file: str, name: str) -> None:
    # a package may hand on what one of its modules defines
    defined = rf"\b{name}\b" if file.endswith("__init__.py") else rf"^\s*(?:(?:class|def|int32_t) {name}\b|{name} = )"
    assert not name or re.search(defined, (PACKAGE / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_on_a_page_exist(page: Path) -> None:
    for module in set(_MODULE.findall(page.read_text())):
        *parents, last = module.split(".")
        parent = PACKAGE.joinpath(*parents[1:])
        text = next(file for file in (parent / "__init__.py", parent.with_suffix(".py")) if file.is_file()).read_text()
        found = (parent / f"{last}.py").is_file() or (parent / last).is_dir() or re.search(rf"\b{last}\b", text)
        assert found, f"{page.name} names {module}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
