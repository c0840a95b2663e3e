"""docs/launching.md: its program runs as it stands on the page, and its shell lines are those of the command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "launching.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = blocks("cpp")
    (tmp_path / "add.cpp").write_text(source)
    monkeypatch.chdir(tmp_path)
    exec(compile("".join(blocks("python")), "launching.md", "exec"), {})


def test_the_shell_takes_the_options_of_the_page() -> None:
    import typer

    from superkernel.tools.cli import app

    options = set(re.findall(r"--[a-z]+", "".join(blocks("sh")) + PAGE.partition("## From a shell")[2]))
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    assert options <= {name for parameter in command.params for name in parameter.opts}
    assert {"--input", "--output", "--repeat", "--json"} <= options
