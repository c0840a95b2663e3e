"""docs/cuda-emulator.md: its example runs, and what it says of seeds and arguments is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from docs.pages import blocks, read_page

from superkernel.targets.cuda.emulator.launch import emulate
from superkernel.targets.cuda.emulator.schedule import WarpSchedule
from superkernel.targets.emulation.turns import Turn

PAGE = read_page("cuda-emulator.md")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (_, ptx), (_, program) = blocks(PAGE, "ptx", "python")
    name = re.match(r"// file: (\S+)\n", ptx)
    assert name is not None
    Path(name[1]).write_text(ptx.partition("\n")[2])
    exec(compile(program, "turn.py", "exec"), {})
    assert capsys.readouterr().out == "['first', 'second']\n"


def test_seeds_do_what_the_page_says() -> None:
    assert WarpSchedule.of_seed(0) == WarpSchedule(Turn.CLOCK)
    assert {WarpSchedule.of_seed(seed).turn for seed in range(1, 60)} == {Turn.RANDOM, Turn.PRIORITY, Turn.HELD}


def test_the_arguments_exist() -> None:
    listed = set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))
    assert listed <= set(inspect.signature(emulate).parameters)
    assert {"seed", "launches", "races", "schedule"} <= listed
