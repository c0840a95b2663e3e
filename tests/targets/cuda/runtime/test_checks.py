"""doctor on the cuda target: driver, GPU, assembler, packages: what is there, what is missing, what works without."""

from __future__ import annotations

import pytest
from targets.cuda.runtime.fake_driver import FakeDriver

from superkernel.targets.checks import CheckState
from superkernel.targets.cuda import checks
from superkernel.targets.cuda.assemble import Ptxas
from superkernel.targets.cuda.runtime import driver


def test_a_gpu_that_can_launch(fake: FakeDriver) -> None:
    check = checks.check_launch()
    assert (check.state, check.needed) == (CheckState.OK, False)
    assert check.found == "Fake GPU 0, sm_90, 8 SMs; driver for CUDA 13.0"
    assert fake.get("cuDevicePrimaryCtxRetain") == 0


def test_what_keeps_a_gpu_from_launching(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.set("cooperative", 0)
    check = checks.check_launch()
    assert check.state is CheckState.PROBLEM and "Fake GPU 0 cannot launch kernels" in check.found
    fake.plant("cuInit", 100)
    check = checks.check_launch()
    assert check.state is CheckState.PROBLEM and "sees no GPU" in check.found and "k.emulate" in check.remedy
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_that_is_not_there.so.1")
    check = checks.check_launch()
    assert check.state is CheckState.MISSING and "install the NVIDIA driver" in check.remedy


def test_assemblers_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_assemblers", lambda: (Ptxas("/somewhere/ptxas", (12, 8)),))
    assert checks.check_assembler().found == "ptxas 12.8"
    monkeypatch.setattr(checks, "find_assemblers", tuple)
    check = checks.check_assembler()
    assert check.state is CheckState.MISSING and "launches saved kernels" in check.remedy
    monkeypatch.setattr(checks, "version", lambda name: "1.2")
    assert checks.check_triton().found == "triton 1.2" and checks.check_bindings().found == "cuda-bindings 1.2"

    def missing(name: str) -> str:
        raise checks.PackageNotFoundError(name)

    monkeypatch.setattr(checks, "version", missing)
    for check in (checks.check_triton(), checks.check_bindings()):
        assert check.state is CheckState.MISSING and "only target cuda uses it" in check.remedy
