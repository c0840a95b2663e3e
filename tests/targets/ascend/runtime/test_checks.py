"""What the doctor says of NPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.ascend.runtime.conftest import install
from targets.ascend.runtime.emulated_npu import EmulatedNpu

from superkernel.targets import find_target
from superkernel.targets.ascend.checks import check_npu
from superkernel.targets.checks import CheckState


def test_without_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    check = check_npu()
    assert (check.state, check.found) == (CheckState.MISSING, "ASCEND_HOME_PATH is not set")
    assert "k.emulate" in check.remedy
    assert [check.name for check in find_target("ascend").checks()] == ["cann", "libclang", "npu"]


def test_a_library_that_cannot_be_loaded(toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    (tmp_path / "text").write_text("no library")
    install(toolkit, tmp_path, source=tmp_path / "text")
    check = check_npu()
    assert check.state is CheckState.PROBLEM and "cannot be loaded" in check.found


def test_a_library_without_a_device(npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.targets.ascend.checks.DEVICE_FILES", "/dev/no such npu*")
    check = check_npu()
    assert check.state is CheckState.PROBLEM and str(npu.library) in check.found and "npu-smi" in check.remedy
    assert npu.called == []  # nothing was initialised


def test_a_library_and_devices(npu: EmulatedNpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("davinci0", "davinci1"):
        (tmp_path / name).touch()
    monkeypatch.setattr("superkernel.targets.ascend.checks.DEVICE_FILES", str(tmp_path / "davinci[0-9]*"))
    check = check_npu()
    assert check.state is CheckState.OK and check.found == f"{npu.library}; davinci0, davinci1"
