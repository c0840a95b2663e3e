"""docs/custom-ops.md: every code block is a file that its first line names, and every program among them runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.model.tensor_arg import TensorArg

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "custom-ops.md"
_BLOCK = re.compile(r"^```(\w*)\n(?://|#) file: ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {name: text for _, name, text in _BLOCK.findall(PAGE.read_text())}
PROGRAMS = [name for name in FILES if name.endswith(".py")]


def test_every_block_is_a_file_and_every_source_belongs_to_a_program() -> None:
    assert PAGE.read_text().count("```") == 2 * len(FILES)
    assert set(FILES) == {name for program in PROGRAMS for name in (program, program.replace(".py", ".cpp"))}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs_as_it_stands_on_the_page(program: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\nassert " in FILES[program] and "unfused" not in done.stderr


def test_the_names_on_the_page_exist() -> None:
    errors = set(re.findall(r"`(?:sk\.)?(\w+Error)`", PAGE.read_text()))
    assert errors and all(issubclass(getattr(sk, name), SuperKernelError) for name in errors)
    facts = re.search(r"A `TensorArg` has (.*?)\. It is", PAGE.read_text(), re.DOTALL)
    assert facts is not None
    assert all(hasattr(TensorArg("x"), name) for name in re.findall(r"`(\w+)`", facts[1]))
