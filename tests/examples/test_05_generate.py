"""The generation example writes eager's tokens with one super kernel per token."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.program import run_here

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")


@pytest.mark.conformance
def test_it_writes_the_same_tokens_three_times(tmp_path: Path) -> None:
    ended = run_here("05_generate.py", tmp_path, "--width", "96", "--layers", "1", "--steps", "32")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["eager", "inductor", "superkernel"]
    assert all(float(line.split()[1]) > 0 for line in lines[:3])
    assert "1 segment of" in lines[3] and "0 ops left to torch" in lines[3]
    assert lines[4].startswith("32 tokens, the same by all") and lines[-1] == "execute sample success"
    assert len(set(lines[4].split(": ")[1].split())) > 3  # not one token for ever
