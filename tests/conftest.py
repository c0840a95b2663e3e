"""Test set-up: hypothesis profiles, the `gpu` mark that skips where no CUDA GPU is usable, the slowest files."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

# Tests of synchronisation need the team that the plan names, however crowded the machine is; the tests of launches
# without a team say so. Child processes inherit it.
os.environ.setdefault("SUPERKERNEL_TEAM", "always")
# Else every process that uses Inductor, also those that tests start, compiles a probe of the processor and loads it in
# another process that imports torch. tests/frontend/lowering/test_inductor.py probes.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# a machine with a GPU that runs the tests marked `gpu` may have neither hypothesis nor pytest-timeout
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # no limits on time, which a busy machine would exceed
    untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("ci", untimed, max_examples=200, derandomize=True, print_blob=True)
    settings.register_profile("quick", settings.get_profile("ci"), max_examples=50)
    settings.register_profile("long", settings.get_profile("ci"), max_examples=1000)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_seconds_by_file: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    if not importlib.util.find_spec("pytest_timeout"):
        for option in ("timeout", "timeout_method"):
            parser.addini(option, "of pytest-timeout, which is not installed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    missing = collection_path.suffix == ".py" and not importlib.util.find_spec("hypothesis")
    return True if missing and "from hypothesis" in collection_path.read_text() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Slow files first: a long test that begins last would leave the other workers idle.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # Under xdist the controller gets the reports of all workers, and it alone prints a summary.
    _seconds_by_file[report.nodeid.split("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(_seconds_by_file) < 2:
        return
    terminalreporter.section("slowest 10 test files")
    for file, seconds in _seconds_by_file.most_common(10):
        terminalreporter.write_line(f"{seconds:8.1f}s {file}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Asked when such a test is about to run, so that collecting tests imports no torch.
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


@cache
def why_no_gpu() -> str | None:
    """The reason why no CUDA GPU can be used here; None if one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1)"
    if status := driver.cuInit(0):
        return f"the CUDA driver does not start (cuInit returned {status})"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the CUDA driver sees no GPU"
    if importlib.util.find_spec("torch"):
        import torch

        if not torch.cuda.is_available():
            return f"torch {torch.__version__} cannot use the GPU"
    return None
