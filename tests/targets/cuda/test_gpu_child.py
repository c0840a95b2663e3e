"""On a GPU, in child processes: stalled and endless launches, Ctrl-C, a lost context, compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import superkernel

pytestmark = pytest.mark.gpu
FOLDERS = (Path(superkernel.__file__).parents[1], Path(__file__).parents[2])  # of the package, and of the tests
TIMEOUT_S = 300


def run_program(name: str, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "targets.cuda.gpu_programs", name]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, FOLDERS), *filter(None, known)])}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)


def test_a_launch_that_waits_for_ever_is_stopped_and_the_next_works() -> None:
    done = run_program("stalled_wait")
    assert done.returncode == 0, done.stderr
    assert "no progress for 1 s (debug-watchdog): all cores wait" in done.stdout
    assert "next launch: True event: False" in done.stdout
    assert "superkernel: " in done.stderr


def test_a_stalled_launch_of_a_graph_is_stopped_and_the_next_replay_works() -> None:
    done = run_program("stalled_graph")
    assert done.returncode == 0, done.stderr
    assert "refused: super_kernel_scope 'gpu'" in done.stdout and "all cores wait" in done.stdout
    assert "next replay: True" in done.stdout


def test_an_endless_sub_kernel_ends_the_process_with_status_70() -> None:
    done = run_program("endless")
    assert done.returncode == 70, (done.stdout, done.stderr)
    assert "first launch: 1.0" in done.stdout and "not reached" not in done.stdout
    assert "sub-kernel of op 'endless' does not return" in done.stderr


def test_ctrl_c_ends_the_launch_and_the_next_works() -> None:
    done = run_program("interrupted")
    assert done.returncode == 0, done.stderr
    assert "interrupted True" in done.stdout and "next launch: True" in done.stdout


def test_a_stray_store_says_that_the_context_is_lost() -> None:
    done = run_program("stray")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("CUDA_ERROR_ILLEGAL_ADDRESS") == 2, done.stdout
    assert "super_kernel_scope 'gpu'" in done.stdout and "The CUDA context is lost" in done.stdout


def sanitizer() -> str:
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *(f"{h}/bin" for h in homes)]))
    if found is None:
        pytest.skip("compute-sanitizer is not installed")
    return found


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_is_clean(tool: str) -> None:
    done = run_program("sanitized", sanitizer(), f"--tool={tool}", "--error-exitcode=9")
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.count("equal: True") == 2
