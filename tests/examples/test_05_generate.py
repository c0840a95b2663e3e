"""The generation example writes eager's tokens with one super kernel per token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "05_generate.py"


@pytest.mark.timeout(600)
def test_it_writes_the_same_64_tokens_three_times() -> None:
    command = [sys.executable, str(EXAMPLE), "--width", "96", "--layers", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["eager", "inductor", "superkernel"]
    assert all(float(line.split()[1]) > 0 for line in lines[:3])
    assert "1 segment of" in lines[3] and "0 ops left to torch" in lines[3]
    assert lines[4].startswith("64 tokens, the same by all") and lines[-1] == "execute sample success"
    assert len(set(lines[4].split(": ")[1].split())) > 3  # not one token for ever
