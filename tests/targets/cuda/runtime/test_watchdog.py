"""Launches without progress: reported, stopped where cores wait, and the next launch works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from targets.cuda.runtime.fake_driver import FakeDriver, chain_image
from targets.cuda.runtime.test_launch import NO_INPUTS, add_twice, floats, on_stream

import superkernel
from superkernel.errors import LaunchError
from superkernel.targets import launch_reports
from superkernel.targets.cuda.runtime import device_kernel as device_kernel_module
from superkernel.targets.cuda.runtime import watchdog
from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel
from superkernel.targets.cuda.runtime.sync_state import StateSnapshot
from superkernel.targets.cuda.runtime.watchdog import stall_report
from superkernel.targets.cuda.task_layout import LONG_WAIT

QUICK = "debug-watchdog=0.05"


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    report = tmp_path / "report.txt"
    monkeypatch.setattr(watchdog, "report_path", lambda name: report)
    return report


def load(fake: FakeDriver, folder: Path, options: str) -> CudaLoadedKernel:
    image = chain_image(folder, options)
    fake.cores, fake.compute = image.cores, add_twice
    return CudaLoadedKernel(image)


def launch(kernel: CudaLoadedKernel) -> None:
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)


def until(condition: Callable[[], bool]) -> None:
    """A moment on an idle machine; the timeout of the test run ends what never comes."""
    while not condition():
        time.sleep(0.001)


def test_a_launch_in_which_all_cores_wait_is_stopped_and_the_next_works(
    fake: FakeDriver, tmp_path: Path, reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel = load(fake, tmp_path, QUICK)
    fake.mode = "waits"
    launch(kernel)
    with pytest.raises(LaunchError, match=r"no progress for 0.05 s \(debug-watchdog\): all cores wait") as raised:
        kernel.synchronize()
    text = str(raised.value)
    assert text.startswith("super_kernel_scope 'chain': sk_chain") and "SM 0-3 slot 0: " in text and "first" in text
    assert reports.read_text() == text + "\n" and text in capfd.readouterr().err
    fake.mode = "complete"
    launch(kernel)
    kernel.synchronize()
    kernel.close()


def test_the_error_surfaces_at_the_next_launch_and_only_there(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, check = threading.Event(), watchdog.Watchdog._check

    def check_later(self: watchdog.Watchdog, watched: watchdog._Watched, now: float) -> None:
        launched.wait()  # on a busy machine the launches may be further apart than the watchdog waits
        check(self, watched, time.monotonic())

    monkeypatch.setattr(watchdog.Watchdog, "_check", check_later)
    kernel = load(fake, tmp_path, QUICK)
    fake.mode = "waits"
    bound = kernel.bind({"x": floats(), "y": floats()}, NO_INPUTS)
    for _ in range(3):  # launches behind the stalled one end with it
        kernel.launch_bound(bound, NO_INPUTS)
    launched.set()
    (device_kernel,) = kernel._kernels.values()
    state = next(device_kernel.states())
    until(lambda: state.error is not None)
    fake.mode = "waits"
    with pytest.raises(LaunchError, match="debug-watchdog"):
        kernel.launch_bound(bound, NO_INPUTS)
    fake.mode = "complete"
    kernel.launch_bound(bound, NO_INPUTS)
    kernel.synchronize()
    assert len(fake.launches) == 4
    kernel.close()


def test_an_error_that_was_not_raised_is_raised_by_close(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = load(fake, tmp_path, QUICK)
    fake.mode = "waits"
    launch(kernel)
    with pytest.raises(LaunchError, match="debug-watchdog"):
        kernel.close()
    assert fake.get("modules") == fake.get("allocations") == 0


def test_a_sub_kernel_that_does_not_return_is_reported_again_and_again(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(watchdog, "_publish", lambda image, report: said.append(report))
    kernel = load(fake, tmp_path, QUICK)
    fake.mode = "inside"
    launch(kernel)
    until(lambda: len(said) > 1)
    assert "sub-kernel of op 'first' does not return" in said[0]
    fake.finish()  # it was only slow
    kernel.synchronize()
    kernel.close()


def test_the_action_exit_ends_the_process(fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        fake.finish()
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    kernel = load(fake, tmp_path, f"{QUICK}:debug-watchdog-action=exit")
    fake.mode = "inside"
    launch(kernel)
    ended.wait()
    assert codes[0] == launch_reports.STALLED_STATUS == 70
    kernel.synchronize()
    kernel.close()


def test_a_stalled_launch_of_a_graph_is_stopped_and_its_state_reset(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = load(fake, tmp_path, QUICK)
    stream = fake.stream()
    on_stream(monkeypatch, stream)
    fake.capture(stream, 1)
    launch(kernel)
    fake.capture(stream, 0)
    (device_kernel,) = kernel._kernels.values()
    (state,) = device_kernel.states()
    fake.mode = "waits"
    fake.replay(state.address)
    until(lambda: state.error is not None and not state.control.read())
    with pytest.raises(LaunchError, match="all cores wait"):
        kernel.synchronize()
    kernel.synchronize()
    kernel.close()


def test_watchdog_0_watches_nothing(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = load(fake, tmp_path, "debug-watchdog=0")
    launch(kernel)
    (device_kernel,) = kernel._kernels.values()
    assert not any(state in device_kernel_module.WATCHDOG._watched for state in device_kernel.states())
    kernel.close()


@pytest.mark.parametrize("from_finalizer", [False, True])
def test_a_state_is_not_freed_while_it_is_looked_at(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_finalizer: bool
) -> None:
    looks, goes_on, looked = threading.Event(), threading.Event(), threading.Event()

    def check(self: watchdog.Watchdog, watched: watchdog._Watched, now: float) -> None:
        looks.set()
        goes_on.wait()
        watched.state.snapshot()  # the fake notes a copy from memory that was freed
        looked.set()

    kernel = load(fake, tmp_path, QUICK)
    monkeypatch.setattr(watchdog.Watchdog, "_check", check)
    launch(kernel)
    looks.wait()
    if from_finalizer:
        device_kernel_module.close_forgotten(dict(kernel._kernels))
        kernel._kernels.clear()
        kernel._closed = True
        goes_on.set()
    else:
        monkeypatch.setattr(device_kernel_module.DeviceKernel, "wait", lambda self: None)
        threading.Timer(0.05, goes_on.set).start()
        kernel.close()
        assert looked.is_set()
    until(lambda: looked.is_set() and fake.get("used") == 0)


def test_ctrl_c_while_waiting_ends_the_launch(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = load(fake, tmp_path, "debug-watchdog=0")
    fake.mode = "waits"
    launch(kernel)

    def interrupted(seconds: float) -> None:
        """A signal would also be taken inside the fake, which cannot raise it."""
        monkeypatch.setattr(device_kernel_module, "sleep", time.sleep)
        raise KeyboardInterrupt

    monkeypatch.setattr(device_kernel_module, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel.synchronize()
    fake.mode = "complete"
    launch(kernel)
    kernel.synchronize()
    kernel.close()


def test_a_report_names_sm_slot_op_block_and_what_is_waited_for(tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    progress = [2 | LONG_WAIT, 2 | LONG_WAIT, 1, 0]
    text = stall_report(image, StateSnapshot(0, 0, tuple(progress)), 3)
    assert "sub-kernel of op 'first' does not return" in text
    assert "SM 0-1 slot 0: wait before second: first done on" in text
    assert "SM 2 slot 0: in call first: 4 blocks, block 2" in text
    assert "1 other cores have finished, or not begun" in text


def test_the_interpreter_ends_while_the_watchdog_runs(tmp_path: Path) -> None:
    """A process that has launched ends by itself."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from pathlib import Path\n"
        "from targets.cuda.runtime import fake_driver\n"
        "from targets.cuda.runtime.test_launch import NO_INPUTS, floats\n"
        "from superkernel.targets.cuda.runtime import driver\n"
        "from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel\n"
        "fake = fake_driver.FakeDriver(); driver.LIBRARY = fake.path\n"
        "kernel = CudaLoadedKernel(fake_driver.chain_image(Path(sys.argv[3])))\n"
        "kernel.launch({'x': floats(), 'y': floats()}, NO_INPUTS)\n"
        "print('launched')\n"
    )
    folders = [str(Path(superkernel.__file__).parents[1]), str(Path(__file__).parents[3]), str(tmp_path)]
    command = [sys.executable, "-c", code, *folders]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)
    assert (done.returncode, done.stdout.strip()) == (0, "launched"), done.stderr
