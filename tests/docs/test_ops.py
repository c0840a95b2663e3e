"""docs/ops.md: its example runs, its signatures are those of the functions, and its tables name what is supported."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from superkernel import ops  # noqa: E402
from superkernel.ops import gating, rounding  # noqa: E402

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "ops.md").read_text()


def test_the_example_runs_and_is_one_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    code = re.search(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert code is not None
    script = tmp_path / "model.py"
    script.write_text(code[1])
    exec(compile(code[1], str(script), "exec"), {"__name__": "example"})
    shown = capsys.readouterr().out
    assert "scope 'sp1' in graph 1 (inference): 1 segment" in shown
    assert "quant_matmul" in shown and "dequant_swiglu_quant" in shown


def test_every_operator_has_a_section_and_an_operator_of_torch() -> None:
    assert set(re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)) == set(ops.__all__)
    for name in ops.__all__:
        assert f"`npu_{name}`" in TEXT
        assert getattr(torch.ops.superkernel, name).default is not None


@pytest.mark.parametrize("name", ["quant_matmul", "dequant_swiglu_quant", "moe_gating_top_k", "grouped_matmul"])
def test_the_signature_on_the_page_is_that_of_the_function(name: str) -> None:
    told = re.search(rf"^`{name}\((.*?)\)`", TEXT, re.MULTILINE | re.DOTALL)
    assert told is not None
    parameters = inspect.signature(getattr(ops, name)).parameters
    named = [word.strip() for word in told[1].split(",")]
    rest = [word for word in named if word not in ("*", "...")]
    assert set(rest) <= set(parameters)
    if "..." in named:  # what is left out is refused, and named as such
        assert all(f"`{left}`" in TEXT or left.startswith("activation_") for left in set(parameters) - set(rest))
    else:
        assert rest == list(parameters)


def test_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"k up to {rounding.MAX_DEPTH}" in TEXT
    assert f"up to {gating.MAX_EXPERTS} experts" in TEXT
