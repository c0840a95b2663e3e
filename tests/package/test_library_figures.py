"""libsuperkernel: opening a package of 100 MB, its memory, and how even calls at a fixed rate are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from package.hand_made import weights, write_package

from superkernel.package.library import build_environment
from superkernel.targets.native.toolchain import find_toolchain, run

pytestmark = [pytest.mark.conformance, pytest.mark.serial]
PROGRAM = Path(__file__).with_name("library_figures.c")
TENSORS, ELEMENTS = 100, 1 << 18  # 100 MB of float32


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = build_environment(tmp_path_factory.mktemp("build") / "environment")
    output = tmp_path_factory.mktemp("program") / "program"
    command = [*find_toolchain().cxx, "-O2", "-x", "c", "-std=c99", *environment.compile_flags, str(PROGRAM)]
    run([*command, "-x", "none", *environment.link_flags, "-o", str(output)], what="a program with model.h")
    return output


def figures(program: Path, package: Path, entry: str, calls: int, gap_us: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(
        run([str(program), str(package), entry, str(calls), str(gap_us)], what="figures")
    )
    return found


def test_a_package_of_100_mb_opens_in_50_ms_and_takes_less_than_20_mb_beside_its_weights(
    program: Path, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(1)
    tensors = {f"w{i}": numbers.random(ELEMENTS, np.float32) for i in range(TENSORS)}
    package = write_package(tmp_path / "large.sk", tensors={**weights(), **tensors}, data_begin=2 << 20)
    measured = [figures(program, package, "add", 1000, 0) for _ in range(5)]
    assert min(figure["open_us"] for figure in measured) < 50_000
    assert all(figure["own_kilobytes"] < 20_000 for figure in measured)


def test_calls_at_a_fixed_rate_are_even(program: Path, tmp_path: Path) -> None:
    """1000 calls a second: the 99th percentile is at most twice the median, on an idle machine."""
    package = write_package(tmp_path / "small.sk")
    measured = [figures(program, package, "work", 3000, 1000) for _ in range(5)]
    assert min(figure["p99_us"] / figure["p50_us"] for figure in measured) <= 2, measured
