"""docs/custom-ops.md: every code block is a file that its first line names, and every program among them runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from measured import sample

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


@pytest.mark.parametrize("program", sample(PROGRAMS))
def test_the_program_runs_as_it_stands_on_the_page(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert "\nassert " in FILES[program]
    monkeypatch.chdir(tmp_path)
    exec(compile(FILES[program], program, "exec"), {"__name__": "__main__", "__file__": str(tmp_path / program)})
    assert "superkernel" not in {record.name for record in caplog.records}  # no warning: nothing was left unfused


def test_the_names_on_the_page_exist() -> None:
    errors = set(re.findall(r"`(?:sk\.)?(\w+Error)`", PAGE.read_text()))
    assert errors and all(issubclass(getattr(sk, name), SuperKernelError) for name in errors)
    facts = re.search(r"A `TensorArg` has (.*?)\. Use it", PAGE.read_text(), re.DOTALL)
    assert facts is not None
    assert all(hasattr(TensorArg("x"), name) for name in re.findall(r"`(\w+)`", facts[1]))
