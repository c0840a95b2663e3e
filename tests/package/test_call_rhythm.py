"""The rhythm of calls: the next of steady calls is expected in time, also after a late one; others are not expected."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from superkernel.targets.cpu.model_library import MODEL_SOURCES
from superkernel.targets.native.toolchain import find_toolchain

MS = 1_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("rhythm") / "rhythm"
    source = Path(__file__).with_name("call_rhythm.cpp")
    command = [*find_toolchain().cxx, "-std=c++17", f"-I{MODEL_SOURCES}", str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def expected_after(program: Path, intervals: Sequence[int]) -> list[int]:
    shown = subprocess.run([program, *map(str, intervals)], check=True, capture_output=True, text=True)
    return [int(line) for line in shown.stdout.split()]


def test_steady_calls_are_expected_from_the_fourth_on(program: Path) -> None:
    assert expected_after(program, [MS] * 6) == [0, 0, 0, MS, MS, MS]


def test_a_late_call_and_the_next_one_do_not_end_a_rhythm(program: Path) -> None:
    late = [MS] * 6 + [3 * MS // 2, MS // 2] + [MS] * 4
    assert expected_after(program, late)[5:] == [MS] * 7


def test_another_rate_is_learned(program: Path) -> None:
    found = expected_after(program, [MS] * 6 + [3 * MS] * 8)
    assert 0 in found[8:11] and found[-3:] == [3 * MS] * 3


def test_jitter_of_a_few_percent_is_averaged(program: Path) -> None:
    chance = random.Random(1)
    found = expected_after(program, [int(MS * chance.uniform(0.93, 1.07)) for _ in range(100)])
    assert all(abs(interval - MS) < MS // 20 for interval in found[4:])


@pytest.mark.parametrize("interval", [100_000, 200 * MS])
def test_neither_calls_without_pauses_nor_rare_ones_are_expected(program: Path, interval: int) -> None:
    assert expected_after(program, [interval] * 8) == [0] * 8


def test_irregular_calls_are_hardly_ever_expected(program: Path) -> None:
    chance = random.Random(1)
    found = expected_after(program, [int(chance.expovariate(1 / MS)) for _ in range(300)])
    assert sum(interval > 0 for interval in found) < 30
