"""targets.cpu: launches that stall, never return or crash: a report that names scope, op and cores, never a hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from caches import with_host_library
from measured import sample
from targets.cpu.small import ROOT, broken, child, compile_ops, launched, numbers, small

import superkernel as sk
from superkernel import LaunchError, Op

pytestmark = pytest.mark.slow

CHILD = """
import sys
from targets.cpu.small import broken, compile_ops, numbers, small
from superkernel import Op
name, cores = sys.argv[1], int(sys.argv[2])
ops = [Op(small("scale", 2), ["a", "t"], name="before"), Op(broken(name, 1), ["z"], name="culprit")]
action = sys.argv[3] if len(sys.argv) > 3 else "exit"
k = compile_ops(ops, "sick", f"stream-fusion=1:debug-watchdog=2:debug-watchdog-action={action}", cores)
k(numbers("a", "z"))
print("survived")
"""

STOPPED = """
import os, subprocess, time
from targets.cpu.small import compile_ops, numbers, small
from superkernel import Op
k = compile_ops([Op(small("scale"), ["a", "t"], send=["begun"]), Op(small("scale"), ["t", "u"], recv=["go"])],
                "paused", "debug-watchdog=5")
code = f"read end; sleep 0.5; kill -STOP {os.getpid()}; sleep 6; kill -CONT {os.getpid()}"
other = subprocess.Popen(["sh", "-c", code], stdin=subprocess.PIPE)  # now: it takes a while on a busy machine
import threading
def act():
    assert k.events["begun"].wait(600)
    other.communicate()  # the end of its input
    time.sleep(0.3)  # for the watchdog, to make up its mind
    k.events["go"].set()
thread = threading.Thread(target=act)
thread.start()
k(numbers("a"))
thread.join()
print("survived")
"""


def test_an_event_that_never_comes_is_reported_and_the_next_launch_works() -> None:
    ops = [Op(small("scale"), ["a", "t"], name="free"), Op(small("mix"), ["t", "b", "u"], name="held", recv=["never"])]
    with compile_ops(ops, "stalled", "debug-watchdog=3") as k:
        arrays = numbers("a", "b")
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(LaunchError) as told:
                launched(k, k, arrays)
            assert 3 <= time.monotonic() - start < 60  # which is the default
            report = str(told.value)
            assert report.startswith("super_kernel_scope 'stalled': no progress for 3 s (debug-watchdog)")
            assert "core 0: waiting in wait for event never before held" in report
            assert "core 1: waiting in wait before held: held through its gate on 0" in report
        k.events["never"].set()
        wanted = 5 * arrays["a"] + 1
        np.testing.assert_array_equal(launched(k, k, arrays)["t"], wanted)


def test_a_stopped_launch_leaves_the_words_it_waits_for_at_zero() -> None:
    """One event has come, the other never does: the next launch must not take the old one for a new one."""
    ops = [Op(small("scale"), ["a", "t"]), Op(small("scale"), ["t", "u"], recv=["came", "never"])]
    with compile_ops(ops, "half", "debug-watchdog=2") as k:
        k.events["came"].set()
        with pytest.raises(LaunchError, match="wait for event never"):
            launched(k, k, numbers("a"))
        assert not k.events["came"].is_set()


def test_a_sub_kernel_of_a_stopped_launch_reads_nothing_that_was_never_written() -> None:
    """Its wait is broken off: it must be left there, not go on with an index from uninitialised memory."""
    follow = broken("follow", 2, "in:index:int64[48]", "in:x:int64[48]", "out:z:int64[48]")
    ops = [
        Op(small("scale", 2), ["a", "t"], name="free"),
        Op(small("chain", 1), ["t", "index"], name="held", recv=["never"]),
        Op(follow, ["index", "a", "z"], name="follower"),
    ]
    with compile_ops(ops, "left", "debug-watchdog=3") as k:
        arrays = {**numbers("a"), "index": np.full(48, 2**60), "t": np.zeros(48, np.int64), "z": np.zeros(48, np.int64)}
        with pytest.raises(LaunchError, match="core 1: waiting in wait at the wait point of follower"):
            k(arrays)
        assert not arrays["z"].any()


@pytest.mark.serial
def test_an_op_of_many_blocks_makes_progress_with_each(capfd: pytest.CaptureFixture[str]) -> None:
    """Longer in all than the watchdog waits, shorter for each block."""
    with compile_ops([Op(broken("patient", 100, "out:z:int64[100]"), ["z"])], "patient", "debug-watchdog=1") as k:
        start = time.monotonic()
        made = k({})
        assert time.monotonic() - start > 1.4
        np.testing.assert_array_equal(made["z"], np.arange(100))
    assert "no progress" not in capfd.readouterr().err


@pytest.mark.serial
def test_blocks_that_meet_again_and_again_make_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with compile_ops([Op(broken("march", 2, "out:z:int64[48]"), ["z"])], "marching", "debug-watchdog=1") as k:
        np.testing.assert_array_equal(k({})["z"][:2], [0, 1])
    assert "no progress" not in capfd.readouterr().err


@pytest.mark.serial
def test_time_for_which_the_process_was_stopped_does_not_count() -> None:
    assert "survived" in child(STOPPED).stdout


CRASHES = {
    "null_write": signal.SIGSEGV,
    "abort_now": signal.SIGABRT,
    "divide": signal.SIGFPE,
    "overflow": signal.SIGSEGV,
    "throw_out": signal.SIGABRT,
}


def assert_reported(
    name: str, cores: int, folder: Path, headline: str, status: int, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same report on stderr and in a file, with scope, op, and what each core was doing."""
    done = child(CHILD, args=[name, str(cores)], check=False, env={"SUPERKERNEL_CACHE": str(folder), **env})
    assert done.returncode == status, done.stderr
    assert "survived" not in done.stdout
    (report,) = (folder / "reports").glob("sick-*.txt")
    for text in (done.stderr, report.read_text()):
        assert "super_kernel_scope 'sick': " in text
        assert headline in text
        assert "inside call culprit: 1 block" in text
        assert all(f"  core {core}: " in text for core in range(cores))
    assert str(report) in done.stderr
    return done


@pytest.mark.parametrize("name", sample(CRASHES, 2))
def test_a_crash_in_a_sub_kernel_is_reported_and_the_process_dies_of_the_signal(name: str, shared_cache: Path) -> None:
    clear_reports(shared_cache)
    number = CRASHES[name]
    assert_reported(name, 2, shared_cache, f"{signal.strsignal(number)} on core ", -number)


def test_a_crash_on_a_launch_of_one_core_also_calls_the_handler_that_was_there_before(shared_cache: Path) -> None:
    clear_reports(shared_cache)
    headline = "Segmentation fault on core 0 in 'call culprit: 1 block'"
    done = assert_reported("null_write", 1, shared_cache, headline, -signal.SIGSEGV, PYTHONFAULTHANDLER="1")
    report, _, traceback = done.stderr.partition("Fatal Python error: Segmentation fault")
    assert headline in report
    assert 'File "<string>", line' in traceback


@pytest.mark.parametrize("cores", (1, 2))
def test_a_sub_kernel_that_never_returns_ends_the_process_with_a_report(cores: int, shared_cache: Path) -> None:
    clear_reports(shared_cache)
    headline = "no progress for 2 s (debug-watchdog), stalled inside a sub-kernel"
    assert_reported("endless", cores, shared_cache, headline, 70)


def test_by_default_a_sub_kernel_that_never_returns_is_reported_again_and_again(shared_cache: Path) -> None:
    command = [sys.executable, "-c", CHILD, "endless", "1", "report"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "SUPERKERNEL_CACHE": str(shared_cache)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        headlines = (line for line in process.stderr if "stalled inside a sub-kernel" in line)
        assert next(headlines) == next(headlines)
        assert process.poll() is None
        process.kill()


def clear_reports(folder: Path) -> None:
    for report in (folder / "reports").glob("*"):
        report.unlink()


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the children of this module, so that their reports are found."""
    return with_host_library(tmp_path_factory.mktemp("cache"))


def test_a_crash_outside_a_launch_is_not_ours() -> None:
    code = """
import os, signal
from targets.cpu.small import compile_ops, numbers, small
from superkernel import Op
k = compile_ops([Op(small("scale"), ["a", "t"])], "healthy")
k(numbers("a"))
os.kill(os.getpid(), signal.SIGSEGV)
"""
    done = child(code, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "super_kernel_scope" not in done.stderr


def test_a_process_without_a_place_for_reports_launches_all_the_same(tmp_path: Path) -> None:
    code = """
import os, sys
import superkernel as sk
from targets.cpu.small import numbers
os.environ["SUPERKERNEL_CACHE"] = "/proc/none"
k = sk.load(sys.argv[1])
assert k(numbers("a"))["t"] is not None
"""
    with compile_ops([Op(small("scale"), ["a", "t"])], "homeless") as k:
        child(code, args=[str(k.save(tmp_path / "saved"))])


@pytest.mark.serial
def test_another_launch_goes_on_while_one_is_stopped() -> None:
    ops = [Op(small("scale"), ["a", "t"]), Op(small("mix"), ["t", "b", "u"], recv=["go"])]
    with sk.compile(ops, "both", "debug-watchdog=3", cores=2, outputs=["t", "u"]) as k:
        mine, other = dict(k.events), k.events["go"].__class__("go")
        results: list[object] = []

        def stall() -> None:
            try:
                k(numbers("a", "b"), events={"go": other})
            except LaunchError as error:
                results.append(error)

        thread = threading.Thread(target=stall)
        thread.start()
        arrays = numbers("a", "b")
        while thread.is_alive():
            mine["go"].set()
            made = k(arrays)
            np.testing.assert_array_equal(made["t"], 5 * arrays["a"] + 1)
        thread.join()
        assert len(results) == 1
