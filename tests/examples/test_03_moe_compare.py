"""examples/03_moe_compare.py: runs from anywhere, compares equal results, and leaves both profiles."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from examples.program import load, run_here

torch = pytest.importorskip("torch")

from superkernel.observe.compare import compare  # noqa: E402

pytestmark = pytest.mark.slow

PROGRAM = "03_moe_compare.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(PROGRAM)


def test_it_runs_from_any_folder_and_leaves_both_profiles(tmp_path: Path) -> None:
    done = run_here(PROGRAM, tmp_path, "--calls", "10", "--turns", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("execute sample success\n")
    for told in ("sk1 and sk3: one binary, shared", "sk2 and sk4: one binary, shared", "sk5: a binary of its own"):
        assert told in done.stdout
    found = compare(tmp_path / "prof_result" / "no_sk_model", tmp_path / "prof_result" / "sk_model")
    assert found.same_model and found.notes == []
    assert found.kernel_drop_percent is not None and found.kernel_drop_percent >= 25
    before = {row.op_type for row in found.rows if row.before_count}
    wanted = {"GroupedMatmul", "MoeGatingTopK", "DequantSwigluQuant", "MatMul", "Transpose", "Tile", "Concat"}
    assert wanted | {"ReduceMean", "Split", "Cast", "StridedSlice"} <= before
    (fused,) = [row for row in found.rows if row.op_type == "SuperKernel"]
    assert fused.after_count == 6 * 10 and not fused.before_count
    left = {row.op_type for row in found.rows if row.after_count}
    assert not left & {"GroupedMatmul", "MoeGatingTopK", "DequantSwigluQuant"}


def test_the_check_finds_every_difference(example: ModuleType) -> None:
    with torch.no_grad():
        expected = example.Model()(*example.inputs())
    assert example.check(expected, tuple(value.clone() for value in expected)) == []
    for number, name in enumerate(("left", "right")):
        found = [value.clone() for value in expected]
        found[number].view(-1)[0] += 1
        assert example.check(expected, tuple(found)) == [name]


def test_the_optional_bias_matters(example: ModuleType) -> None:
    x = torch.randn(example.TOKENS, example.WIDTH)
    layer = example.Experts(example.Kind(bias=True))
    with torch.no_grad():
        biased = layer(x)
        layer.up_bias = None
        assert not torch.equal(biased, layer(x))
