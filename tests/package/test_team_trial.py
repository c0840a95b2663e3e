"""One thread or a team: the faster way is used, also where the first launches showed the other one to be faster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from superkernel.targets.cpu.model_library import MODEL_SOURCES
from superkernel.targets.native.toolchain import find_toolchain


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("trial") / "trial"
    source = Path(__file__).with_name("team_trial.cpp")
    command = [*find_toolchain().cxx, "-std=c++17", f"-I{MODEL_SOURCES}", str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def teams(program: Path, at_first: int, later: int, solo: int) -> tuple[int, int, int]:
    """Of the launches up to 512, up to 1024, and up to 16384."""
    shown = subprocess.run([program, *map(str, (at_first, later, solo))], check=True, capture_output=True, text=True)
    young, grown, old = map(int, shown.stdout.split())
    return young, grown, old


def test_the_faster_way_is_used(program: Path) -> None:
    assert min(teams(program, 100, 100, 200)) >= 480
    young, grown, old = teams(program, 300, 300, 200)
    assert young <= 16 + 20 and grown <= 16 and old <= 16, "a slower team is only tried"


def test_a_team_that_was_slow_in_the_beginning_is_found_within_some_hundred_launches(program: Path) -> None:
    young, grown, old = teams(program, 300, 100, 200)
    assert young > 300 and grown > 480 and old > 15_000
