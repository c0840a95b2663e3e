"""docs/ops-json.md: its file compiles and runs with the printed result, and its tables have every field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from docs.pages import blocks, check_output, read_page, shell_commands
from typer.testing import CliRunner

from superkernel.model import opsfile
from superkernel.model.binary import Form
from superkernel.model.kernel_json import _READERS
from superkernel.tools.cli import app

PAGE = read_page("ops-json.md")


def fields(heading: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_sample_compiles_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (_, source), (_, ops), (_, shell), (_, printed) = blocks(PAGE, "cpp", "json", "sh", "text")
    (tmp_path / "add.cpp").write_text(source)
    (tmp_path / "ops.json").write_text(ops)
    exec(re.findall(r"python -c '(.*)'", shell)[0], {})
    done = [CliRunner().invoke(app, command[1:]) for command in shell_commands(shell)]
    assert [result.exit_code for result in done] == [0, 0], done[-1].output
    check_output(printed, done[-1].output)
    assert (np.load("results/half.npy") == 1.5).all()
    assert set(json.loads(ops)) == fields("The file")


def test_the_tables_have_every_field() -> None:
    assert fields("The file") == set(opsfile._FILE)
    assert fields("A kernel") == {form.value for form in Form} | {"symbol", *_READERS}
    assert fields("An op") == set(opsfile._OP)
    tiling = next(line for line in PAGE.splitlines() if line.startswith("| `tiling`"))
    assert all(f'"{name}"' in tiling or f"`{name}`" in tiling for name in opsfile._TILING)
