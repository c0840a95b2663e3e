"""examples/06_triton_capture.py: runs here, on a GPU or on the emulator, and says so when a result is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.program import load, run_here

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = "06_triton_capture.py"


def test_it_captures_compiles_runs_and_checks(tmp_path: Path) -> None:
    done = run_here(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<3 captured ops, buffers x, weight, normed, gated, y>" in done.stdout
    assert done.stdout.endswith("execute sample success\n")


def test_the_check_finds_a_wrong_output() -> None:
    example = load(PROGRAM)
    tensors = example.allocate("cpu")
    assert example.check(tensors) == ["y is not what torch computes in float64"]
    tensors["y"] = example.expected(tensors).float()
    assert example.check(tensors, {"y": tensors["y"].clone()}) == []
    assert example.check(tensors, {"gated": tensors["y"]}) == ["gated has other bits than after single launches"]
