"""examples/02_scope.py: runs from anywhere, fused and unfused give the same bits, and a difference is told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import superkernel as sk

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "02_scope.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scope_example", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_from_any_folder_and_says_that_the_bits_are_equal(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Precision ====== Success!!!\n")
    assert "scope 'sp1' in graph 1 (inference): 1 segment\n" in done.stdout


def test_both_models_compute_the_same(example: ModuleType) -> None:
    given = example.inputs()
    rows, scales, product = example.ModelOrigin()(*given)
    assert example.check((rows, scales, product), example.ModelSuperKernel()(*given)) == []
    exact = (given[0].long() @ given[1].long().t()).double() * given[2].double() * given[3].double().unsqueeze(1)
    torch.testing.assert_close(product, exact.to(torch.bfloat16), rtol=1e-2, atol=0)


def test_the_check_finds_every_difference(example: ModuleType) -> None:
    expected = example.ModelOrigin()(*example.inputs())
    for number, name in enumerate(("rows", "scales", "product")):
        found = [value.clone() for value in expected]
        found[number].view(-1)[0] += 1
        assert example.check(expected, tuple(found)) == [name]
