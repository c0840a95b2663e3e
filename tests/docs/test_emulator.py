"""docs/emulator.md: its program runs, and the names it uses are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from superkernel.targets.ascend.emulator import Emulation, Outside, emulate
from superkernel.targets.ascend.emulator.delays import delays_of
from superkernel.targets.ascend.emulator.stand_ins import PATTERN_BYTES
from superkernel.targets.emulation.turns import Turn

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "emulator.md").read_text()
BLOCKS = re.findall(r"^```\w+\n(?://|#) file: ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in BLOCKS:
        (tmp_path / name).write_text(text)
    exec((tmp_path / "turn.py").read_text(), {})
    assert "Span(core=" in capsys.readouterr().out


def test_seeds_are_what_the_page_says() -> None:
    assert delays_of(0).turn is Turn.CLOCK
    assert {delays_of(seed).turn for seed in range(1, 60)} == {Turn.RANDOM, Turn.PRIORITY, Turn.HELD}


def test_keywords_and_fields_exist() -> None:
    assert {"outside", "races", "seed", "stand_ins"} <= set(emulate.__kwdefaults__)
    assert {"steps", "printed", "words", "notes"} <= set(Emulation.__dataclass_fields__)
    assert Outside("go", after="done").after == "done"
    assert f"with {PATTERN_BYTES} bytes each" in PAGE
