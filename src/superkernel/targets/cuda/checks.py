"""targets.cuda.checks: driver, GPUs, assemblers and packages of this machine -> checks: what works here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ..checks import Check, CheckState
from .assemble import INSTALL, find_assemblers
from .runtime.device import found_devices
from .runtime.driver import find_driver, version_text, why_no_driver

_WITHOUT_GPU = "without it, target cuda plans, builds and emulates (k.emulate)"


def check_launch() -> Check:
    """Whether super kernels can be launched. No context is opened: that would take memory of the GPU."""
    if reason := why_no_driver():
        missing = "cannot be loaded" in reason
        state = CheckState.MISSING if missing else CheckState.PROBLEM
        return Check("cuda launch", state, reason, f"install the NVIDIA driver; {_WITHOUT_GPU}")
    devices = found_devices()
    unable = [device.name for device in devices if not device.cooperative]
    if unable:
        found = f"{', '.join(unable)} cannot launch kernels whose blocks wait for each other"
        return Check("cuda launch", CheckState.PROBLEM, found, f"use another GPU; {_WITHOUT_GPU}")
    listed = "; ".join(map(str, devices))
    return Check("cuda launch", CheckState.OK, f"{listed}; driver for CUDA {version_text(find_driver().version)}")


def check_assembler() -> Check:
    found = find_assemblers()
    if not found:
        remedy = f"{INSTALL}; without it, target cuda plans and emulates, and launches saved kernels"
        return Check("ptx assembler", CheckState.MISSING, "neither ptxas nor nvJitLink", remedy)
    return Check("ptx assembler", CheckState.OK, ", ".join(assembler.identity for assembler in found))


def check_triton() -> Check:
    return _check_package("triton", "triton", "with sk.capture() records its launches, and its ptxas assembles")


def check_bindings() -> Check:
    return _check_package("cuda bindings", "cuda-bindings", "its nvJitLink assembles where there is no ptxas")


def _check_package(name: str, distribution: str, use: str) -> Check:
    try:
        return Check(name, CheckState.OK, f"{distribution} {version(distribution)}")
    except PackageNotFoundError:
        found = f"{distribution} is not installed; {use}"
        return Check(name, CheckState.MISSING, found, f"pip install {distribution}; only target cuda uses it")


def checks() -> tuple[Check, ...]:
    return check_launch(), check_assembler(), check_triton(), check_bindings()
