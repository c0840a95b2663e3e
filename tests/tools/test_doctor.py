"""doctor: what is there is found, what is missing is told with a remedy, and only the cpu target's needs can fail."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from caches import with_host_library

from superkernel.errors import BuildError, UnsupportedError
from superkernel.frontend.torch_versions import REQUIREMENT
from superkernel.targets.ascend import checks as ascend_checks
from superkernel.targets.ascend.checks import check_cann, check_libclang
from superkernel.targets.checks import Check, CheckState
from superkernel.targets.cpu import checks as cpu_checks
from superkernel.tools import doctor
from superkernel.tools.cli import main
from superkernel.tools.doctor import DoctorReport


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a program that prints and exits as told; they are the only ones on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)

    def make(name: str, prints: str = "", status: int = 0, inside: Path = folder) -> Path:
        inside.mkdir(parents=True, exist_ok=True)
        path = inside / name
        path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
        path.chmod(0o755)
        return path

    return make


def summary(check: Check) -> tuple[CheckState, bool, bool]:
    return check.state, check.needed, bool(check.remedy)


MISSING_PART = (CheckState.MISSING, True, True)
BROKEN_PART = (CheckState.PROBLEM, True, True)
MISSING_EXTRA = (CheckState.MISSING, False, True)
BROKEN_EXTRA = (CheckState.PROBLEM, False, True)
GOOD_PART = (CheckState.OK, True, False)
GOOD_EXTRA = (CheckState.OK, False, False)


# the whole


def test_this_machine_can_run_the_cpu_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(with_host_library(tmp_path)))
    report = doctor.examine()
    assert report.ok, report
    assert summary(report["cpu target"]) == GOOD_PART


def test_what_is_only_nice_to_have_does_not_count() -> None:
    assert DoctorReport((Check("a", CheckState.OK, "", needed=True), Check("b", CheckState.MISSING, ""))).ok


@pytest.mark.parametrize("state", [CheckState.MISSING, CheckState.PROBLEM])
def test_what_is_needed_counts(state: CheckState) -> None:
    assert not DoctorReport((Check("a", state, "", needed=True), Check("b", CheckState.OK, ""))).ok


def test_the_proof_is_not_tried_without_its_parts() -> None:
    check = doctor.check_demo([Check("linker", CheckState.MISSING, "", needed=True)])
    assert (check.state, check.found) == (CheckState.MISSING, "not tried: see linker")


def test_a_failed_proof_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Sequence[str], **how: Any) -> str:
        raise BuildError("running a super kernel: failed", command, "error: the output differs\n")

    monkeypatch.setattr(doctor, "run_tool", fail)
    check = doctor.check_demo([])
    assert (check.state, check.found) == (CheckState.PROBLEM, "the output differs")


def test_a_proof_that_crashes_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_DEMO", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    check = doctor.check_demo([])
    assert check.state is CheckState.PROBLEM
    assert "SIGKILL" in check.found


# the tools


@pytest.mark.usefixtures("programs")
def test_a_missing_compiler_is_told() -> None:
    assert summary(cpu_checks.check_compiler()) == MISSING_PART


@pytest.mark.usefixtures("programs")
def test_a_chosen_compiler_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "nocc -O2")
    check = cpu_checks.check_compiler()
    assert (check.state, check.found) == (CheckState.MISSING, "CXX='nocc -O2' is not on PATH")


def test_a_chosen_compiler_that_is_no_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ 'open")
    assert summary(cpu_checks.check_compiler()) == BROKEN_PART


def test_a_compiler_that_cannot_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\n[ $# = 1 ] && echo fake 1.0 && exit 0\necho no headers >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    check = cpu_checks.check_compiler()
    assert summary(check) == BROKEN_PART
    assert "no headers" in check.found


def test_a_working_compiler_is_found_with_its_version() -> None:
    check = cpu_checks.check_compiler()
    assert summary(check) == GOOD_PART
    assert "compiles and links a tiny program" in check.found


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("check", [cpu_checks.check_linker, cpu_checks.check_objcopy])
def test_missing_binutils_are_told(check: Callable[[], Check]) -> None:
    assert summary(check()) == MISSING_PART


@pytest.mark.parametrize("version", ["LLD 17.0.6 (compatible with GNU linkers)", "mold 2.4.0 (compatible with GNU ld)"])
def test_a_linker_that_is_not_gnu_ld_is_a_problem(version: str, programs: Callable[..., Path]) -> None:
    programs("ld", version)
    assert summary(cpu_checks.check_linker()) == BROKEN_PART


def test_a_tool_that_does_not_run_is_a_problem(programs: Callable[..., Path]) -> None:
    programs("objcopy", status=3)
    assert summary(cpu_checks.check_objcopy()) == BROKEN_PART


def test_a_version_may_be_on_a_later_line(programs: Callable[..., Path]) -> None:
    path = programs("nvcc", "nvcc: the compiler\nrelease 13.0, V13.0.88")
    assert doctor.check_nvcc().found == f"{path}: release 13.0, V13.0.88"


# cores, OpenMP, cache


def test_a_missing_openmp_run_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise UnsupportedError("no OpenMP run time found")

    monkeypatch.setattr(cpu_checks, "openmp", none)
    assert summary(cpu_checks.check_openmp()) == MISSING_PART


def test_two_openmp_run_times_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_checks, "loaded", lambda: [Path("/a/libgomp.so.1"), Path("/b/libomp.so")])
    check = cpu_checks.check_openmp()
    assert summary(check) == BROKEN_EXTRA
    assert "/a/libgomp.so.1, /b/libomp.so" in check.found


def test_the_openmp_run_time_that_is_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_checks, "loaded", lambda: [Path("/a/libgomp.so.1")])
    assert cpu_checks.check_openmp().found == "/a/libgomp.so.1"


def test_more_threads_than_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_checks, "thread_count", lambda: 10_000)
    assert summary(cpu_checks.check_cores()) == BROKEN_EXTRA


def test_as_many_threads_as_cores_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = len(os.sched_getaffinity(0))
    monkeypatch.setattr(cpu_checks, "thread_count", lambda: allowed)
    monkeypatch.setattr(cpu_checks, "cpu_quota", lambda: None)
    monkeypatch.setattr(cpu_checks, "processor_count", lambda: allowed)
    check = cpu_checks.check_cores()
    assert summary(check) == GOOD_EXTRA
    assert f"a launch uses {allowed} of {allowed} " in check.found and "quota" not in check.found
    monkeypatch.setattr(cpu_checks, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(cpu_checks, "processor_count", lambda: 1)
    check = cpu_checks.check_cores()
    assert f"a launch uses 1 of {allowed} " in check.found and "the CPU quota is 1.5" in check.found


def test_a_cache_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", "/dev/null/cache")
    assert summary(doctor.check_cache()) == BROKEN_PART


def test_the_cache_is_told_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path))
    assert doctor.check_cache().found == f"{tmp_path}: writable, 0 entries, 0.0 MB"


# what other targets and the front end need


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1", "2.15.0a0+git1234"])
def test_a_supported_torch_is_ok(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"torch": version}.__getitem__)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    check = doctor.check_torch()
    assert summary(check) == GOOD_EXTRA and check.found.startswith(f"{version}; ")


@pytest.mark.parametrize("version", ["2.10.2", "2.16.0", "3.0.0.dev20270101", "unknown"])
def test_a_torch_whose_models_are_not_fused_is_a_problem(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"torch": version}.__getitem__)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    check = doctor.check_torch()
    assert summary(check) == BROKEN_EXTRA
    assert f"not {version}" in check.found and "unfused" in check.found


def test_a_torch_without_its_module_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"torch": "2.13.0"}.__getitem__)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert summary(doctor.check_torch()) == BROKEN_EXTRA


def test_the_package_asks_for_the_versions_that_it_supports() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == [REQUIREMENT]


def test_a_missing_torch_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", none)
    assert summary(doctor.check_torch()) == MISSING_EXTRA


class FakeDriver:
    """libcuda with some GPUs."""

    def __init__(self, gpus: int, init: int = 0) -> None:
        self.gpus, self.init = gpus, init

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 12040
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: int) -> int:
        name.value = b"NVIDIA H200"
        return 0


def give_driver(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver | None) -> None:
    def load(name: str) -> FakeDriver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_gpu_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    give_driver(monkeypatch, FakeDriver(2))
    found = "2 x NVIDIA H200, driver for CUDA 12.4; only target cuda needs it"
    assert doctor.check_gpu() == Check("gpu", CheckState.OK, found)
    monkeypatch.setattr(doctor, "has_target", lambda name: name != "cuda")
    assert doctor.check_gpu().found.endswith("; not needed: this version has no target cuda")


def test_a_driver_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    give_driver(monkeypatch, FakeDriver(0))
    assert summary(doctor.check_gpu()) == MISSING_EXTRA


def test_a_driver_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    give_driver(monkeypatch, FakeDriver(1, init=999))
    assert summary(doctor.check_gpu()) == BROKEN_EXTRA


@pytest.mark.usefixtures("programs")
def test_a_missing_driver_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    give_driver(monkeypatch, None)
    assert summary(doctor.check_gpu()) == MISSING_EXTRA


def test_nvidia_smi_without_its_driver_is_a_problem(
    programs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("nvidia-smi")
    give_driver(monkeypatch, None)
    assert summary(doctor.check_gpu()) == BROKEN_EXTRA


def test_nvcc_is_found_in_the_cuda_home(
    programs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    path = programs("nvcc", "release 13.0", inside=tmp_path / "cuda" / "bin")
    assert doctor.check_nvcc() == Check("nvcc", CheckState.OK, f"{path}: release 13.0")


@pytest.mark.usefixtures("programs")
def test_a_missing_cann_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert summary(check_cann()) == MISSING_EXTRA


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("home", [".", "gone"])
def test_a_cann_home_without_its_compiler_is_a_problem(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / home))
    assert summary(check_cann()) == BROKEN_EXTRA


def test_a_missing_libclang_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("clang.cindex", reason="libclang is not installed")
    assert check_libclang().state is CheckState.OK
    monkeypatch.setattr(ascend_checks, "libclang_installed", lambda: False)
    assert summary(check_libclang()) == MISSING_EXTRA


def test_the_cann_compiler_is_found_in_its_home(
    programs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    path = programs("bisheng", "clang version 15.0.5", inside=tmp_path / "cann/compiler/ccec_compiler/bin")
    assert check_cann() == Check("cann", CheckState.OK, f"{path}: clang version 15.0.5")


# the command


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """`superkernel doctor` with arguments, on a machine with one row; its exit status and what it prints."""

    def run(state: CheckState, *arguments: str) -> tuple[Any, str]:
        report = DoctorReport((Check("linker", state, "in /a[b]", "get [bold]one", needed=True),))
        monkeypatch.setattr(doctor, "examine", lambda: report)
        monkeypatch.setattr(sys, "argv", ["superkernel", "doctor", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(("state", "status"), [(CheckState.OK, 0), (CheckState.MISSING, 1), (CheckState.PROBLEM, 1)])
def test_the_exit_status_says_whether_the_cpu_target_can_work(
    shell: Callable[..., tuple[Any, str]], state: CheckState, status: int
) -> None:
    assert shell(state)[0] == status


def test_the_table_shows_names_and_remedies_as_they_are(shell: Callable[..., tuple[Any, str]]) -> None:
    table = shell(CheckState.MISSING)[1]
    assert all(text in table for text in ("linker", "missing", "in /a[b]", "-> get [bold]one"))


def test_the_report_as_json(shell: Callable[..., tuple[Any, str]]) -> None:
    status, printed = shell(CheckState.MISSING, "--json")
    row = {"name": "linker", "state": "missing", "found": "in /a[b]", "remedy": "get [bold]one", "needed": True}
    assert (status, json.loads(printed)) == (1, {"ok": False, "checks": [row]})
