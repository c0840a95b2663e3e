"""Launches of ranks on one GPU, each in a process of its own, through the fake driver; what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.rank_kernels import Sums
from targets.cuda.runtime.fake_driver import LIBRARY, FakeDeviceArray, FakeDriver, build_library
from targets.cuda.runtime.fake_rank import CHIP, FileStore, PlayedSums
from targets.cuda.runtime.test_launch import on_stream

import superkernel as sk
from superkernel.errors import LaunchError, UnsupportedError
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.runtime.device_kernel import close_forgotten

pytestmark = pytest.mark.skipif(not find_assemblers(), reason="no assembler for PTX is installed")
FOLDERS = (Path(sk.__file__).parents[1], Path(__file__).parents[3])  # of the package, and of the tests
Said = list[dict[str, Any]]


def run_ranks(program: str, folder: Path) -> tuple[Said, Said]:
    """What each rank has said."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([*map(str, FOLDERS), *filter(None, known)])
    environment = {**os.environ, "PYTHONPATH": path, LIBRARY: build_library()}
    command = [sys.executable, "-m", "targets.cuda.runtime.fake_rank", program]
    children = [
        subprocess.Popen(
            [*command, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [child.communicate(timeout=800) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode in (0, 9), errors
    first, second = ([json.loads(line) for line in text.splitlines()] for text, _ in outputs)
    for said in (first, second):
        assert all(each.get("violations", "") == "" and each.get("opened", 0) == 0 for each in said), said
    return first, second


def test_two_processes_have_the_sums_launch_after_launch(tmp_path: Path) -> None:
    for said in run_ranks("sums", tmp_path):
        assert said[0] == {"right": 40}


def test_a_rank_that_ends_stops_the_launch_that_waits_for_it(tmp_path: Path) -> None:
    said, _ = run_ranks("killed", tmp_path)
    assert said[0] == {"right": True}
    assert "group world (0,1): rank 1 (pid " in said[1]["error"] and "has ended" in said[1]["error"]
    assert said[1]["seconds"] < 300  # half of the time limit
    assert "an earlier launch failed" in said[2]["error"] and "has ended" in said[2]["error"]


def test_a_rank_that_does_not_come_is_named_and_learns_of_it(tmp_path: Path) -> None:
    first, second = run_ranks("late", tmp_path)
    assert "no progress for 10 s (debug-watchdog): all cores wait" in first[0]["error"]
    assert "rank 1 has not arrived at collective 'w0' of group world (0,1)" in first[0]["error"]
    assert "an earlier launch failed" in first[1]["error"]
    for refusal in second[:2]:
        assert "rank 0 has failed: super_kernel_scope 'rank0'" in refusal["error"]
        assert "no progress for 10 s" in refusal["error"]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Said]:
    said = run_ranks("refusals", tmp_path_factory.mktemp("refusals"))
    first, second = ([each for each in of_rank if "error" in each] for of_rank in said)
    assert len(first) == len(second) == 4
    return first, second


def test_ranks_with_other_collectives_are_refused_before_anything_runs(refusals: tuple[Said, Said]) -> None:
    for rank, (refusal, *_) in enumerate(refusals):
        assert f"super_kernel_scope 'rank{rank}': collectives of group world (0,1)" in refusal["error"]
        assert "rank 0 has 2 and rank 1 has 1" in refusal["error"] and "Nothing was run" in refusal["error"]


def test_ranks_on_several_gpus_are_refused_on_all(refusals: tuple[Said, Said]) -> None:
    for _, refusal, *_ in refusals:
        assert refusal["kind"] == "UnsupportedError"
        assert "launches on several GPUs are not tested, and are refused" in refusal["error"]


def test_where_memory_cannot_be_shared_every_rank_says_so(refusals: tuple[Said, Said]) -> None:
    first, second = (each[2]["error"] for each in refusals)
    assert "cuIpcOpenMemHandle_v2 returned 801" in second
    assert "rank 1: " in first and "cuIpcOpenMemHandle_v2 returned 801" in first
    assert "does not let two processes share memory of a GPU" in first


def test_under_mps_ranks_that_do_not_fit_beside_each_other_are_refused(refusals: tuple[Said, Said]) -> None:
    for *_, refusal in refusals:
        assert "under MPS all ranks are on the GPU at the same time" in refusal["error"]
        assert "fill 2.0 times the GPU" in refusal["error"] and refusal["kind"] == "UnsupportedError"


def test_a_rank_that_never_connects_is_an_error_within_the_time_limit(tmp_path: Path) -> None:
    (refusal, _), _ = run_ranks("missing", tmp_path)
    assert "rank 1 of group world (0,1) did not come within 1 s" in refusal["error"]


# in this process


def compiled(folder: Path, ranks: int = 2, options: str = "") -> sk.SuperKernel:
    return sk.compile(Sums(200, ranks=ranks).ops(folder, 0), "rank0", options, "cuda", chip=CHIP)


def test_a_launch_before_the_ranks_are_connected_is_refused(fake: FakeDriver, tmp_path: Path) -> None:
    with compiled(tmp_path) as kernel:
        x = FakeDeviceArray(np.zeros(200, np.int32))
        for launch in (kernel, kernel.bind):
            with pytest.raises(
                UnsupportedError, match=r"waits for other ranks of world \(0,1\): call sk.connect_ranks"
            ):
                launch({"x": x})
        with pytest.raises(UnsupportedError, match=r"call sk\.connect_ranks"):
            kernel.launch_values(*kernel.argument_arrays())


def test_wrong_arguments_of_connect_ranks(fake: FakeDriver, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    with compiled(tmp_path) as kernel:
        with pytest.raises(LaunchError, match=r"the store is 5; pass one of torch\.distributed"):
            sk.connect_ranks(kernel, 5)
        for wrong in (0, -1, float("nan"), "1", True):
            with pytest.raises(LaunchError, match=r"timeout_s is .*; a number of seconds above 0 is needed"):
                sk.connect_ranks(kernel, store, timeout_s=wrong)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="takes a super kernel and a store, not 'kernel'"):
        sk.connect_ranks("kernel", store)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="it runs inside one super kernel, not op by op"):
        compiled(tmp_path, options="debug-replay=1")
    with (
        compiled(tmp_path, options="debug-check=1") as kernel,
        pytest.raises(UnsupportedError, match="debug-check=1 runs every op alone"),
    ):
        sk.connect_ranks(kernel, store)


def test_a_group_of_one_rank_needs_no_other_process(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = Sums(200, ranks=1)
    kernel = compiled(tmp_path, ranks=1)
    PlayedSums(fake, sums, 0, list(kernel.graph.buffers), kernel.executable.shape.cores)  # type: ignore[attr-defined]
    sk.connect_ranks(kernel, FileStore(tmp_path / "store"))
    with pytest.raises(LaunchError, match="it is connected to other ranks already"):
        sk.connect_ranks(kernel, FileStore(tmp_path / "store"))
    inputs = sums.inputs(1)
    x, y = FakeDeviceArray(inputs[0]["x"]), FakeDeviceArray(np.zeros(200, np.int32))
    go = kernel.bind({"x": x, "y1": y})
    for _ in range(3):
        y.array[:] = 0
        go()
        kernel.synchronize()
        assert np.array_equal(y.array, sums.expected(inputs))
    with pytest.raises(LaunchError, match="'w0' is a window; connect_ranks has made it"):
        kernel({"x": x, "y1": y, "w0": FakeDeviceArray(np.zeros(4096, np.uint8))})
    stream = fake.stream()
    on_stream(monkeypatch, stream)
    with pytest.raises(UnsupportedError, match="stays on the stream of the first one"):
        kernel({"x": x, "y1": y})
    fake.capture(stream, 1)
    with pytest.raises(UnsupportedError, match="cannot be captured in a CUDA graph"):
        kernel({"x": x, "y1": y})
    fake.capture(stream, 0)
    kernel.close()
    assert fake.get("modules") == 0


def test_a_forgotten_kernel_gives_its_windows_back(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = compiled(tmp_path, ranks=1)
    sk.connect_ranks(kernel, FileStore(tmp_path / "store"))
    assert fake.get("allocations")
    loaded = kernel.loaded
    del kernel
    loaded_kernels = loaded._kernels  # type: ignore[attr-defined]
    close_forgotten(loaded_kernels)  # as when nothing refers to the kernel any more
    assert not fake.get("allocations") and not fake.get("modules")
    loaded_kernels.clear()
