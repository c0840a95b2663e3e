"""docs/profiling.md: its example runs, and its columns are those of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from superkernel.observe import store  # noqa: E402
from superkernel.observe.tables import CALLS, DETAILS, INNER_TYPES, STATISTIC, WAITS  # noqa: E402

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "profiling.md").read_text()


def test_the_example_runs_and_leaves_the_files_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    code = re.search(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert code is not None
    (tmp_path / "model.py").write_text(code[1])
    exec(compile(code[1], str(tmp_path / "model.py"), "exec"), {"__name__": "example"})
    found = store.read("prof_result/sk_model")
    assert [launch.type for launch in found.launches] == ["SuperKernel"] and found.launches[0].spans
    named = set(re.findall(r"^\| `([\w.]+)` \|", TEXT, re.MULTILINE))
    assert named == {*store.FILES, store.PROFILE, store.REPORT}


def test_every_column_is_named_in_order() -> None:
    words = TEXT.replace("\n", " ")
    assert f"`op_statistic.csv`: {', '.join(STATISTIC)}." in words
    assert f"`kernel_details.csv`: {', '.join(DETAILS)}." in words
    assert f"`calls.csv`: {', '.join(CALLS)}." in words
    assert f"`inner_op_statistic.csv`: {', '.join(INNER_TYPES)}." in words
    assert f"`waits.csv`: {', '.join(WAITS)}." in words
