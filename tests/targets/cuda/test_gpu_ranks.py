"""On a GPU: two ranks, each in a process of its own, in time slices and under MPS; one that ends, one that is late."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import superkernel

pytestmark = pytest.mark.gpu
FOLDERS = (Path(superkernel.__file__).parents[1], Path(__file__).parents[2])  # of the package, and of the tests
TIMEOUT_S = 240
Said = list[dict[str, Any]]


@pytest.fixture(params=["time slices", "mps"])
def scheduling(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Variables of the ranks: without MPS processes take turns on the GPU, with it they run beside each other."""
    if request.param == "time slices":
        yield {}
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("MPS is not installed: nvidia-cuda-mps-control was not found")
    places = {f"CUDA_MPS_{kind}_DIRECTORY": str(tmp_path / kind.lower()) for kind in ("PIPE", "LOG")}
    for place in places.values():
        Path(place).mkdir()
    environment = {**os.environ, **places}
    subprocess.run([control, "-d"], env=environment, check=True, timeout=30, capture_output=True)
    yield {**places, "GPU_RANKS_CORES": "60"}  # so that both ranks fit on the GPU at the same time
    quitting = {"env": environment, "text": True, "timeout": 30, "capture_output": True}
    subprocess.run([control], input="quit -t 5\n", check=False, **quitting)  # type: ignore[call-overload]


def run_ranks(program: str, folder: Path, variables: Mapping[str, str]) -> tuple[Said, Said]:
    """What each rank has said; what was printed is shown where a test fails, or by pytest -s."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([*map(str, FOLDERS), *filter(None, known)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "targets.cuda.gpu_ranks", program, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [child.communicate(timeout=TIMEOUT_S) for child in children]
    finally:
        for child in children:
            child.kill()
    for rank, (text, errors) in enumerate(outputs):
        print(f"{program}, rank {rank}:\n{text}{errors}")
    assert [child.returncode in (0, 9) for child in children] == [True, True]
    first, second = ([json.loads(line) for line in text.splitlines()] for text, _ in outputs)
    return first, second


def test_two_processes_have_the_sums_launch_after_launch(tmp_path: Path, scheduling: Mapping[str, str]) -> None:
    for said in run_ranks("sums", tmp_path, scheduling):
        assert [(each["right"], each["last"]) for each in said] == [(20, True)] * 4


def test_every_collective_that_is_shipped_is_right(tmp_path: Path, scheduling: Mapping[str, str]) -> None:
    for said in run_ranks("shipped", tmp_path, scheduling):
        assert [each["right"] for each in said] == [10, 10, 10]


def test_a_rank_that_ends_stops_the_launch_that_waits_for_it(tmp_path: Path, scheduling: Mapping[str, str]) -> None:
    said, _ = run_ranks("killed", tmp_path, scheduling)
    assert said[0] == {"right": True}
    assert "rank 1 (pid " in said[1]["error"] and "has ended" in said[1]["error"]
    assert said[1]["seconds"] < 10
    assert "an earlier launch failed" in said[2]["error"]


def test_a_rank_that_does_not_come_is_named_and_learns_of_it(tmp_path: Path, scheduling: Mapping[str, str]) -> None:
    first, second = run_ranks("late", tmp_path, scheduling)
    assert "no progress for 2 s" in first[0]["error"]
    assert "rank 1 has not arrived at collective 'w0' of group world (0,1)" in first[0]["error"]
    for refusal in second[:2]:
        assert "rank 0 has failed: super_kernel_scope 'rank0'" in refusal["error"]
