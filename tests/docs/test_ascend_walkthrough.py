"""docs/ascend-walkthrough.md: its list is that of the example, and its commands print what the page shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from docs.pages import ROOT, blocks, check_output, read_page, shell_commands
from typer.testing import CliRunner

from superkernel.tools.cli import app

PAGE = read_page("ascend-walkthrough.md")
LIST = ROOT / "examples" / "ascend_list"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(LIST, tmp_path / "list")
    monkeypatch.chdir(tmp_path / "list")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    return tmp_path / "list"


def test_the_page_shows_the_files_of_the_example() -> None:
    ops, metadata = (text for _, text in blocks(PAGE, "json"))
    assert ops == (LIST / "ops.json").read_text()
    assert json.loads(metadata) == json.loads((LIST / "matmul.json").read_text())


def test_the_commands_print_what_the_page_shows(folder: Path) -> None:
    shells = [text for _, text in blocks(PAGE, "sh")]
    compiled, refused, plan, emulated = (text for _, text in blocks(PAGE, "text"))
    (compile_command,), (emulate_command,) = shell_commands(shells[0]), shell_commands(shells[1])
    done = CliRunner().invoke(app, compile_command[1:])
    assert done.exit_code == 0, done.output
    check_output(compiled, done.output)
    assert plan in (folder / "dumped" / "plan.txt").read_text() and (folder / "mlp" / "build.sh").is_file()
    done = CliRunner().invoke(app, emulate_command[1:])
    assert done.exit_code == 0, done.output
    check_output(emulated, done.output)
    assert (folder / "lanes.html").is_file()
    assert "a kernel for the cpu target" in refused


def test_a_kernel_for_the_cpu_is_refused_in_the_words_of_the_page(folder: Path) -> None:
    (folder / "add.cpp").write_text(blocks(read_page("ops-json.md"), "cpp")[0][1])
    (folder / "cpu.json").write_text(blocks(read_page("ops-json.md"), "json")[0][1])
    done = CliRunner().invoke(app, ["compile", "cpu.json", "--target", "ascend", "-o", "refused"])
    assert done.exit_code == 1 and not (folder / "refused").exists()
    check_output(f"error: {blocks(PAGE, 'text')[1][1]}", done.output)
