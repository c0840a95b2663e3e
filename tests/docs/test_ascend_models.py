"""docs/ascend-models.md: its programs run, and print what the page shows."""

from __future__ import annotations

import fnmatch
import re
import runpy
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ascend-models.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def pattern(line: str) -> str:
    """A line of the page; `...` stands for anything."""
    return "*".join(part.replace("[", "[[]") for part in line.split("..."))


def test_the_model_gives_the_op_list_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("swiglu.py").write_text(blocks("python")[0])
    runpy.run_path("swiglu.py", run_name="__main__")
    printed, shown = capsys.readouterr().out.splitlines(), blocks("text")[0].splitlines()
    assert len(printed) == len(shown)
    for line, expected in zip(printed, shown, strict=True):
        assert fnmatch.fnmatchcase(line, pattern(expected)), f"{line}\nis not\n{expected}"


def test_the_dump_on_the_page_is_read(tmp_path: Path) -> None:
    from superkernel.frontend.explain import explain_place

    sources = "".join(
        f'op {{ name: "{name}" type: "Data" id: {at} }}\n' for at, name in enumerate(("arg0_1", "weight"))
    )
    path = tmp_path / "ge_proto_page.txt"
    path.write_text(blocks("text")[1].replace("  op {", f"{sources}  op {{", 1))
    (scope,) = explain_place(str(path), {"target": "ascend"}).scopes
    assert (scope.name, scope.options) == ("sk1", "early-start=0")
    assert [op.name for op in scope.segments[0].ops] == ["MatMulV3_1"]
