"""examples/02_scope.py: runs from anywhere, fused and unfused give the same bits, and a difference is told."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from examples.program import load, run_here

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


PROGRAM = "02_scope.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(PROGRAM)


def test_it_runs_from_any_folder_and_says_that_the_bits_are_equal(tmp_path: Path) -> None:
    done = run_here(PROGRAM, tmp_path, "--small")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Precision ====== Success!!!\n")
    assert "with a bias" in done.stdout and "without a bias" in done.stdout
    assert "scope 'sp1' in graph 1 (inference): 1 segment\n" in done.stdout
    assert "segment 1: 2 ops, fused" in done.stdout


def test_the_sizes_are_those_of_the_sample(example: ModuleType) -> None:
    assert example.FULL == (864, 7168, 4096)
    x1, x2, *_ = example.inputs(example.SMALL, False)
    assert x1.dtype is x2.dtype is torch.int8 and x2.stride(0) == 1


@pytest.mark.parametrize("with_bias", [False, True])
def test_both_models_compute_the_same(example: ModuleType, with_bias: bool) -> None:
    given = example.inputs(example.SMALL, with_bias)
    x1, x2, scale, _, bias, rows, _ = given
    found = example.ModelOrigin()(*given)
    assert example.check(found, example.ModelSuperKernel()(*given)) == []
    exact = (x1.long() @ x2.long()).double() * scale.double() * rows.double().unsqueeze(1)
    exact = exact if bias is None else exact + bias.double()
    torch.testing.assert_close(found[2], exact.to(torch.bfloat16), rtol=1e-2, atol=1e-2)


def test_the_check_finds_every_difference(example: ModuleType) -> None:
    expected = example.ModelOrigin()(*example.inputs(example.SMALL, True))
    for number, name in enumerate(("rows", "scales", "product")):
        found = [value.clone() for value in expected]
        found[number].view(-1)[0] += 1
        assert example.check(expected, tuple(found)) == [name]
