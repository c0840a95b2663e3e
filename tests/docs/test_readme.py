"""README.md: its model runs, the shell commands of the page work on it, and its tables are true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from superkernel.frontend.torch_versions import supported_range
from superkernel.targets import has_target
from superkernel.targets.native.toolchain import run
from superkernel.tools.cli import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
# blocks that other tests run: the first super kernel (test_targets.py), the installation (test_packaging.py)
OTHER_TESTS = ("add.cpp", "sk::block_num()", "pip install")


def commands(text: str) -> list[list[str]]:
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [line for line in lines if line]


def test_the_model_runs_under_the_shell_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    remaining = [(language, text) for language, text in BLOCKS if not any(word in text for word in OTHER_TESTS)]
    (_, model), (_, shell), *package = remaining
    assert [language for language, _ in remaining] == ["python", "sh", "python", "python"]
    (tmp_path / "model.py").write_text(model)
    monkeypatch.chdir(tmp_path)
    printed = ""
    for command in commands(shell):
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        printed += capsys.readouterr().out
        assert not ended.value.code, printed
    assert "mlp" in printed
    assert {path.name for path in (tmp_path / "prof_result/trace").iterdir()} >= {"report.html", "trace.json"}
    for number, (_, program) in enumerate(package):
        file = tmp_path / f"package{number}.py"
        file.write_text(program)
        run([sys.executable, str(file)], what="a program of the page")
    assert (tmp_path / "mlp.sk/manifest.json").is_file()


def test_the_table_of_what_works_is_true() -> None:
    assert f"torch {supported_range()}" in TEXT
    assert has_target("cuda")
    found = re.search(r"Python (\d\.\d+) to (\d\.\d+)", TEXT)
    project = (ROOT / "pyproject.toml").read_text()
    assert found is not None and f'requires-python = ">={found[1]}"' in project
    assert f'"Programming Language :: Python :: {found[2]}"' in project


def test_the_make_targets_of_the_page_exist() -> None:
    targets = set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make (\w+)", TEXT)) <= targets
    assert {"demo", "test", "picture"} <= targets
