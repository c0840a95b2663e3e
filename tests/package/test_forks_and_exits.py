"""Loaded models where the process is forked, ends, or gets a signal, while threads are calling."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from package.hand_made import write_package

BEGIN = """
import os, sys, threading
import numpy as np
import superkernel as sk
model = sk.load_model(sys.argv[1], threads=1)
x, go, started = np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32)
expected = model.add(x).tolist()

def refusal(use):
    try:
        return use()
    except sk.LaunchError as error:
        return str(error)

def begin_long_call():
    thread = threading.Thread(target=lambda: results.append(model.wait(go, out=started)), daemon=True)
    thread.start()
    while not started[0]:
        pass
    return thread

results = []
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("package") / "hand_made.sk")


def runs_well(code: str, package: Path) -> None:
    no_warnings = ["-W", "ignore::DeprecationWarning"]  # of Python 3.12, of a fork while there are threads
    command = [sys.executable, *no_warnings, "-c", BEGIN + textwrap.dedent(code), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


IN_CHILD = """
    def child(body):
        number = os.fork()
        if number == 0:
            body()
            os._exit(0)
        assert os.waitpid(number, 0)[1] == 0
"""


def test_threads_of_a_child_are_kept_apart_as_in_its_parent(package: Path) -> None:
    code = """
    def body():
        thread = begin_long_call()
        for _ in range(2):
            assert "another thread is running in this context" in refusal(lambda: model.add(x))
            assert "while a call is running" in refusal(model.close)
        go[0] = 1
        thread.join()
        assert results == [1], results
        assert model.add(x).tolist() == expected

    child(body)
    """
    runs_well(textwrap.dedent(IN_CHILD) + textwrap.dedent(code), package)


def test_a_context_that_ran_in_another_thread_at_the_fork_refuses_all_calls_of_the_child(package: Path) -> None:
    code = """
    thread = begin_long_call()

    def body():
        assert "when the process was forked" in refusal(lambda: model.add.submit(x).result(600))
        assert "when the process was forked" in refusal(lambda: model.add(x))
        assert model.new_context().add(x).tolist() == expected
        model.close()

    child(body)
    go[0] = 1
    thread.join()
    assert model.add(x).tolist() == expected
    """
    runs_well(textwrap.dedent(IN_CHILD) + textwrap.dedent(code), package)


def test_the_process_ends_while_daemon_threads_call(package: Path) -> None:
    code = """
    one = np.ones((), np.float32)  # an array: such calls are checked in C

    def call_for_ever(context):
        while True:
            context.work(one)

    for _ in range(8):
        threading.Thread(target=call_for_ever, args=(model.new_context(),), daemon=True).start()
    for _ in range(1000):
        model.work(one)
    """
    runs_well(code, package)


def test_nothing_is_submitted_while_the_process_ends(package: Path) -> None:
    code = """
    import atexit

    def at_the_end():
        assert "nothing can be submitted" in refusal(lambda: model.add.submit(x))
        assert model.add(x).tolist() == expected
        model.close()

    atexit.register(at_the_end)
    """
    runs_well(code, package)


def test_an_interrupted_call_leaves_the_context_free(package: Path) -> None:
    code = """
    import signal

    class Interrupt(Exception):
        pass

    def interrupt(*_):
        raise Interrupt

    y = np.empty_like(x)
    signal.signal(signal.SIGALRM, interrupt)
    for use in (lambda: model.add(x=x), lambda: model.add(x, out=y), model.save_state):
        interrupts = 0
        while interrupts < 700:
            try:
                signal.setitimer(signal.ITIMER_REAL, 3e-4 + interrupts % 97 * 1e-6)
                while True:
                    use()
            except Interrupt:
                interrupts += 1
    """
    runs_well(code, package)
