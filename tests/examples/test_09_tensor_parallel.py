"""examples/09_tensor_parallel.py: two ranks, which it starts itself, write the tokens of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from examples.program import EXAMPLES, load, run

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

PROGRAM = "09_tensor_parallel.py"


def test_it_starts_its_ranks_and_they_write_the_tokens_of_one_process(tmp_path: Path) -> None:
    done = run(EXAMPLES / PROGRAM, tmp_path, "--width", "64", "--layers", "1", "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert "3. a step: 1 super kernel, 3 collectives in it" in done.stdout
    assert done.stdout.endswith("4. checked: 8 tokens, the same as one process writes\nexecute sample success\n")


def test_the_check_finds_wrong_tokens_and_a_step_that_torch_runs() -> None:
    example = load(PROGRAM)
    report = example.CompileReport()
    expected = [5, 2, 9, 4]
    assert any("the ranks wrote" in wrong for wrong in example.check([5, 2, 9, 3], expected, report))
    assert any("a step is 0 segments" in wrong for wrong in example.check(expected, expected, report))
    assert any("hardly change" in wrong for wrong in example.check([7] * 4, [7] * 4, report))


@pytest.mark.conformance
def test_it_runs_as_it_is_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3. a step: 1 super kernel, 9 collectives in it" in done.stdout
    assert done.stdout.endswith("execute sample success\n")
