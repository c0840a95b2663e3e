"""docs/writing-kernels.md: every code block is a file that its first line names, and every program among them runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.errors import SuperKernelError

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-kernels.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"(?://|#) file: ([\w.]+)\n")
_SUFFIXES = {"cpp": ".cpp", "c": ".c", "python": ".py"}
REQUIRED = ("parts.py", "gain.py", "normalise.py", "roots.py")  # @block, early start, sync_all, dynamic


def blocks() -> dict[str, str]:
    """File name -> text."""
    found: dict[str, str] = {}
    for language, text in _BLOCK.findall(PAGE.read_text()):
        marker = _MARKER.match(text)
        assert marker, f"a {language or 'nameless'} block does not begin with the name of its file: {text[:60]!r}"
        name = marker[1]
        assert Path(name).suffix == _SUFFIXES[language], f"{name} is in a {language} block"
        assert name not in found, f"two blocks are called {name}"
        found[name] = text
    return found


FILES = blocks()
PROGRAMS = [name for name in FILES if name.endswith(".py")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("page")
    for name, text in FILES.items():
        (written / name).write_text(text)
    return written


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs_as_it_stands_on_the_page(folder: Path, program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_capability_has_a_program_that_checks_its_result() -> None:
    assert set(REQUIRED) <= set(PROGRAMS)
    for name in PROGRAMS:
        assert "\nassert " in FILES[name] or "    assert (" in FILES[name], f"{name} checks nothing"


def test_each_source_is_used_by_a_program() -> None:
    used = set(re.findall(r'"([\w.]+\.c(?:pp)?)"', "".join(FILES[name] for name in PROGRAMS)))
    assert used == set(FILES) - set(PROGRAMS)


def test_the_page_names_every_function_of_the_header() -> None:
    header = Path(sk.__file__).parent / "targets/cpu/include/superkernel"
    functions = re.findall(r"\b(sk_\w+)\(", (header / "kernel.h").read_text() + (header / "events.h").read_text())
    missing = {name for name in functions if f"`{name}(" not in PAGE.read_text()}
    assert not missing


def test_the_errors_it_names_exist() -> None:
    named = set(re.findall(r"`(\w+Error)`", PAGE.read_text()))
    assert named and all(issubclass(getattr(sk, name), SuperKernelError) for name in named)
