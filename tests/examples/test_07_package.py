"""The package example runs, and notices wrong actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from examples.program import load, run_here

pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def test_a_policy_becomes_a_package_and_gives_the_same_actions(tmp_path: Path) -> None:
    ended = run_here("07_package.py", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert "manifest.json" in lines[0] and "weights.safetensors" in lines[0]
    assert "memory" in lines[1]
    assert lines[-1] == "execute sample success"


def test_wrong_actions_are_noticed() -> None:
    check = load("07_package.py").check
    right = [np.full((1, 2), step, np.float32) for step in range(3)]
    other = [*right[:2], right[2] + np.float32(1e-2)]
    assert check(right, right, right) == []
    assert len(check(other, other, right)) == 1
    assert len(check(right, other, right)) == 1
    assert "does not change" in check([right[0]] * 3, [right[0]] * 3, [right[0]] * 3)[0]
