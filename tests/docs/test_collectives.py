"""docs/collectives.md: its program runs under torchrun and prints what the page shows; its tables are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT, blocks, check_output, read_page
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.frontend import advice  # noqa: E402
from superkernel.frontend.capture.fusibility import Cause  # noqa: E402
from superkernel.targets.cpu.kernels import collectives  # noqa: E402
from superkernel.tools.cli import app  # noqa: E402

TEXT = read_page("collectives.md")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def torchrun(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*TORCHRUN, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.conformance
def test_the_program_runs_and_its_ranks_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, program),) = blocks(TEXT, "python")
    (tmp_path / "ranks.py").write_text(program)
    ((_, shown),) = blocks(TEXT, "text")
    check_output(shown, torchrun(tmp_path, "ranks.py"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["compare", "prof_result/ranks"])
    assert done.exit_code == 0, done.output
    assert "Ranks of one run" in done.output and (tmp_path / "prof_result/ranks/trace.json").is_file()
    for rank in (0, 1):
        waits = (tmp_path / f"prof_result/ranks/rank{rank}/waits.csv").read_text()
        assert f"for other ranks before it,rank {1 - rank}," in waits


@pytest.mark.conformance
def test_explain_answers_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed import _functional_collectives as functional\n"
        "dist.init_process_group('gloo')\n"
        "def model(x):\n"
        "    return functional.all_reduce(torch.relu(x), 'sum', dist.group.WORLD) + 1\n"
        "def example_inputs():\n"
        "    return (torch.randn(4, 64),)\n"
    )
    words = ["--local-ranks-filter", "0", "--no-python", sys.executable, "-m", "superkernel"]
    printed = torchrun(tmp_path, *words, "explain", "model.py:model")
    assert "verdict: fused: 1 super kernel" in printed and printed.count("verdict") == 1
    assert "all_reduce (sum) of 1024 B" in printed and "1 sync across ranks" in " ".join(printed.split())


def test_the_tables_are_those_of_the_kernels() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", TEXT, re.MULTILINE))
    assert rows["reductions"] == ", ".join(reduction.value for reduction in collectives.Reduction)
    assert rows["dtypes"].partition(";")[0] == ", ".join(collectives._ELEMENTS)
    assert f"An all_reduce of {collectives._TWO_WINDOWS >> 10} KB or more has two windows" in TEXT


def test_the_page_is_found_from_where_users_are() -> None:
    for page in ("README.md", "docs/torch.md", "docs/exceptions.md"):
        assert "collectives.md" in (ROOT / page).read_text(), page
    assert "docs/collectives.md" in advice._REMEDIES[Cause.COLLECTIVE]
