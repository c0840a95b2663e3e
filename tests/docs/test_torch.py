"""docs/torch.md: its example runs, and its tables name every back end option."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from superkernel.frontend.settings import BackendSettings, Fuse  # noqa: E402

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text()


def test_the_example_runs_and_explains_itself(tmp_path, monkeypatch, capsys) -> None:
    torch._dynamo.reset()
    code = re.search(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert code is not None
    script = tmp_path / "model.py"
    script.write_text(code[1])
    exec(compile(code[1], str(script), "exec"), {"__name__": "example"})
    shown = capsys.readouterr().out
    sample = re.search(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert sample is not None
    missing = beginnings(sample[1]) - beginnings(shown) - {"measured:", "measured"}  # not in time on a busy machine
    assert not missing and {"verdict:", "addmm", "scope 'mlp' in graph"} <= beginnings(shown), shown


def beginnings(report: str) -> set[str]:
    """What a line begins with, up to its first number or colon: the rest depends on the machine and on times."""
    found = (re.match(r"\s*([^\d:]*[^\d\s:](?:(?<=[a-z]):)?)", line) for line in report.splitlines())
    return {start[1] for start in found if start is not None and start[1] != "..."}


def test_the_quantised_layer_is_close_to_the_layer() -> None:
    code = re.search(r"^```python\n([^`]*?class Int8Linear.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    layer, x = torch.nn.Linear(64, 32, bias=False), torch.randn(2, 64)
    torch.testing.assert_close(names["Int8Linear"](layer)(x), layer(x), rtol=0, atol=0.05)


def test_every_option_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert rows == {field.name for field in fields(BackendSettings)} - {"mode"}


def test_every_way_to_fuse_is_named() -> None:
    assert all(f"`{way.value}`" in TEXT for way in Fuse)


@pytest.mark.conformance
def test_the_example_of_several_shapes_runs() -> None:
    torch._dynamo.reset()
    examples = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (example,) = (example for example in examples if "buckets" in example)
    exec(compile(example, "shapes.py", "exec"), {"__name__": "example"})
