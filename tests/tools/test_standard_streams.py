"""The shell where its standard output is full or closed, or its reader has gone: a sentence, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from handmade_package import write_handmade


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handmade(tmp_path_factory.mktemp("package") / "hand.sk")


def ended(words: str, redirected: str) -> tuple[int, str]:
    """Exit status and error output of a command of the shell."""
    command = f"{sys.executable} -m superkernel {words} {redirected}"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=800, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", ["package info {}", "package info {} --json", "package info {}/none --json"])
def test_a_full_disk_is_one_sentence(package: Path, words: str) -> None:
    status, errors = ended(words.format(package), "> /dev/full")
    assert status == 1
    assert errors == "error: the standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", ["package info {}", "package verify {} --json"])
def test_a_reader_that_has_gone_ends_the_command_silently(package: Path, words: str) -> None:
    assert ended(words.format(package), "| true; exit ${PIPESTATUS[0]}") == (1, "")


def test_closed_streams_are_as_if_nothing_read_them(package: Path, tmp_path: Path) -> None:
    assert ended(f"package info {package} --json", "<&- >&-") == (0, "")
    (tmp_path / "script.py").write_text("print('a script')")
    status, errors = ended(f"export {tmp_path / 'script.py'}:make -o {tmp_path / 'x.sk'} --json", ">&-")
    assert status == 1 and errors == "a script\n"
