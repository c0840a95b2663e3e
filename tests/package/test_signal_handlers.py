"""Handlers of signals that end a step of a loaded model by an exception, or use the model themselves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from handmade_package import write_handmade

BEGIN = """
import faulthandler, gc, signal, sys
import numpy as np
import superkernel as sk
faulthandler.dump_traceback_later(600, exit=True)
x, y = np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)
model = sk.load_model(sys.argv[1], threads=1)
expected = model(x, y).tolist()
futures, kept = [], []
other, out = model.new_context(), np.zeros_like(x)
saved = model.save_state()
uses = {
    "names": lambda: model(x=x, y=y),
    "out": lambda: model(x, y, out=out),
    "submit": lambda: futures.append(model.submit(x, y)),
    "new_context": lambda: model.new_context().close(),
    "save_state": model.save_state,
    "load_state": lambda: model.load_state(saved),
    "copy_state": lambda: model.copy_state(other),
    "close": model.close,
}

def begin(handler):
    signal.signal(signal.SIGALRM, handler)
    again()

def again():
    signal.setitimer(signal.ITIMER_REAL, 1e-5 + len(kept) % 101 * 3e-6)

def attempt(use):
    try:
        use()
    except sk.LaunchError as error:
        assert "another thread is running" in str(error) or "close" in str(error), error

def end():
    signal.setitimer(signal.ITIMER_REAL, 0)
    for future in futures:
        attempt(lambda: future.result(600))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handmade(tmp_path_factory.mktemp("package") / "hand.sk")


def runs_well(code: str, *arguments: object) -> None:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stdout) == (0, "model is closed\n"), done.stderr


@pytest.mark.parametrize("use", ["names", "out", "submit", "new_context", "save_state", "load_state", "copy_state"])
def test_an_exception_leaves_the_context_free_also_while_it_is_kept(package: Path, use: str) -> None:
    code = """
    class Interrupt(Exception):
        pass

    def interrupt(*_):
        raise Interrupt

    use = uses[sys.argv[2]]
    signal.signal(signal.SIGALRM, interrupt)
    while len(kept) < 500:
        try:
            again()
            while True:
                use()
        except Interrupt as error:
            kept.append(error)  # with the frames that it left
    end()
    assert model(x, y).tolist() == expected
    model.close()
    print("model is closed")
    """
    runs_well(code, package, use)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("out", "names"),
        ("save_state", "names"),
        ("submit", "submit"),
        ("submit", "close"),
        ("new_context", "new_context"),
        ("new_context", "close"),
    ],
)
def test_a_handler_uses_the_model_that_its_thread_is_using(package: Path, outer: str, inner: str) -> None:
    code = """
    outer, inner = uses[sys.argv[2]], uses[sys.argv[3]]

    def use_again(*_):
        kept.append(None)
        attempt(inner)
        if len(kept) < 500:
            again()

    begin(use_again)
    while len(kept) < 500:
        attempt(outer)
    end()
    model.close()
    print("model is closed")
    """
    runs_well(code, package, outer, inner)
