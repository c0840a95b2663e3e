"""docs/exporting.md: its programs run in order, and the sample error is that of the export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docs.pages import blocks, read_page

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.package.manifest import read_manifest  # noqa: E402


@pytest.mark.conformance
def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "exporting"}
    for number, (_, code) in enumerate(blocks(read_page("exporting.md"), "python")):
        file = tmp_path / f"part{number}.py"
        file.write_text(code)
        exec(compile(code, str(file), "exec"), names)
    packages = {path.name: read_manifest(path) for path in tmp_path.glob("*.sk")}
    assert {*packages} == {"policy.sk", "counter.sk", "double.sk", "batched.sk"}
    assert [state.name for state in packages["counter.sk"].states] == ["total"]
    assert len(packages["double.sk"].entries[0].shapes) == 2
    assert [shape.bucket.size for shape in packages["batched.sk"].entries[0].shapes if shape.bucket] == [1, 4, 16]


def test_the_sample_error_is_that_of_the_export(tmp_path: Path) -> None:
    with pytest.raises(sk.UnsupportedError) as caught:
        sk.export(lambda x: torch.fft.rfft(torch.relu(x)).abs(), (torch.ones(8),), tmp_path / "x.sk")
    first, second = str(caught.value).splitlines()
    assert first in read_page("exporting.md")
    assert second.partition(" (")[0] in read_page("exporting.md")
