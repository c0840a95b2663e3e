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
from superkernel.errors import OptionError
from superkernel.observe import shell, store

pytestmark = pytest.mark.slow

SCRIPT = """
import os
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
if "move" in sys.argv:
    os.chdir("elsewhere")
    print("file:", Path(__file__).is_file())
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


def trace(script: Path, *words: str, start: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, "-m", "superkernel", "trace", str(script), *words]
    start = start or script.parent
    return subprocess.run(command, cwd=start, env=environment, capture_output=True, text=True, check=False)


def test_a_script_with_arguments_leaves_everything(script: Path) -> None:
    done = trace(script, "--size", "3", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "words: ['--size', '3']" in done.stdout and "2 launches" in done.stdout
    out = script.parent / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted([*store.FILES, store.PROFILE, store.REPORT])
    found = store.read(out)
    assert len(found.launches) == 2 and {span.op for span in found.launches[0].spans} >= {"add", "add_1"}
    assert found.read_bytes_per_s is not None and found.read_bytes_per_s > 1e8
    assert "twice" in (out / store.REPORT).read_text()


@pytest.mark.conformance
@pytest.mark.conformance
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


@pytest.mark.conformance
@pytest.mark.conformance
def test_a_script_that_changes_directory_leaves_everything_where_it_was_started(script: Path) -> None:
    elsewhere = script.parent / "elsewhere"
    elsewhere.mkdir()
    done = trace(Path(script.name), "move", "-o", "out", start=script.parent)
    assert done.returncode == 0, done.stderr
    assert "file: True" in done.stdout  # as under python, __file__ is good anywhere
    assert (script.parent / "out" / store.REPORT).is_file() and not list(elsewhere.iterdir())
    assert len(store.read(script.parent / "out").launches) == 2


@pytest.mark.conformance
def test_after_two_dashes_everything_is_the_scripts(script: Path) -> None:
    done = trace(Path("-o"), "out", "--", script.name, "--help", "-o", "mine", start=script.parent)
    assert done.returncode == 0, done.stderr
    assert "words: ['--help', '-o', 'mine']" in done.stdout and (script.parent / "out" / store.REPORT).is_file()


def test_a_module_runs_as_under_python_m(script: Path) -> None:
    done = trace(Path("-m"), "script", "-o", "out", "--", "-m", "raise", start=script.parent)
    assert done.returncode == 1 and "words: ['-m', 'raise']" in done.stdout
    assert "ValueError: on purpose" in done.stderr and "runpy" not in done.stderr
    assert len(store.read(script.parent / "out").launches) == 1


def test_a_module_is_found_or_named() -> None:
    assert shell.TracedProgram("json.tool", is_module=True).path.name == "tool.py"
    assert shell.TracedProgram("superkernel", is_module=True).path.name == "__main__.py"
    for name in ("no_such_module", "json.no_such", "email"):
        with pytest.raises(OptionError, match=f"there is no module '{name}' to run"):
            shell.TracedProgram(name, is_module=True).path


def test_a_script_that_is_no_python_shows_where_and_nothing_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("def f(:\n    pass\n")
    done = trace(script, "-o", "out")
    assert done.returncode == 1
    assert 'wrong.py", line 1' in done.stderr and "SyntaxError" in done.stderr
    assert "runpy" not in done.stderr and "run_script" not in done.stderr


def test_a_script_without_launches_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("print('nothing to do')\n")
    done = trace(script, "-o", "out")
    assert done.returncode == 0 and "nothing was launched" in done.stdout
    assert store.read(tmp_path / "out").launches == () and (tmp_path / "out" / store.REPORT).is_file()


def test_the_traceback_is_shown_also_when_nothing_can_be_written(tmp_path: Path) -> None:
    script = tmp_path / "fills.py"
    script.write_text(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # a full disk\n"
        "raise ValueError('on purpose')\n"
    )
    done = trace(script, "-o", "out")
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr
    assert "cannot be written" in done.stderr and "make room" in done.stderr


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    done = trace(tmp_path / "none.py")
    assert done.returncode == 1 and "does not exist" in done.stderr
