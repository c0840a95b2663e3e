"""superkernel trace: a script runs as itself, and what it launched is left, also when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from observe.kernels import SOURCE

import superkernel as sk
from superkernel.observe import store

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import superkernel as sk

assert __name__ == "__main__"
print("words:", sys.argv[1:])
typed = "float32[1024]"
add = sk.SubKernel.from_source(
    Path(__file__).with_name("kernels.cpp"), "add", block_dim=2,
    params=[f"in:x:{typed}", f"in:y:{typed}", f"out:z:{typed}"],
)
k = sk.compile([sk.Op(add, ["a", "b", "t"]), sk.Op(add, ["t", "b", "c"])], "twice")
one = np.ones(1024, np.float32)
k({"a": one, "b": one})
if "raise" in sys.argv:
    raise ValueError("on purpose")
if "leave" in sys.argv:
    sys.exit(7)
k({"a": one, "b": one})
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "kernels.cpp").write_text(SOURCE)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def trace(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, "-m", "superkernel", "trace", str(script), *words]
    return subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)


def test_a_script_with_arguments_leaves_everything(script: Path) -> None:
    done = trace(script, "--size", "3", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "words: ['--size', '3']" in done.stdout and "2 launches" in done.stdout
    out = script.parent / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted([*store.FILES, store.FACTS, store.REPORT])
    found = store.read(out)
    assert len(found.launches) == 2 and {span.op for span in found.spans} >= {"add", "add_1"}
    assert found.read_bytes_per_s is not None and found.read_bytes_per_s > 1e8
    assert "twice" in (out / store.REPORT).read_text()


def test_without_a_place_it_is_left_in_prof_result(script: Path) -> None:
    assert trace(script).returncode == 0
    assert store.read(script.parent / "prof_result" / "trace").detail


@pytest.mark.parametrize(("word", "status"), [("raise", 1), ("leave", 7)])
def test_a_script_that_fails_keeps_its_status_and_what_was_recorded(script: Path, word: str, status: int) -> None:
    done = trace(script, word, "--output", "out")
    assert done.returncode == status
    assert len(store.read(script.parent / "out").launches) == 1
    assert (script.parent / "out" / store.REPORT).is_file()
    if word == "raise":
        assert "ValueError: on purpose" in done.stderr and 'script.py", line' in done.stderr
        assert "runpy" not in done.stderr  # the traceback begins in the script


def test_as_json_the_output_is_one_object(script: Path) -> None:
    done = trace(script, "raise", "-o", "out", "--json")
    found = json.loads(done.stdout)
    assert (found["ok"], found["status"], found["launches"]) == (False, 1, 1)
    assert "on purpose" in found["failure"] and "words:" in done.stderr


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    done = trace(tmp_path / "none.py")
    assert done.returncode == 1 and "does not exist" in done.stderr
