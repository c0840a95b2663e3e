"""tools.doctor: this machine -> a report of what SuperKernel needs: what was found, what is missing, how to get it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cache import Cache
from ..errors import BuildError
from ..frontend.torch_versions import REQUIREMENT, supported_range, unsupported_version
from ..targets import all_targets, has_target
from ..targets.checks import Check, CheckState, check_tool
from ..targets.native.toolchain import run as run_tool
from ..version import __version__

_DEMO_TIMEOUT_S = 300.0
_COMMAND = f"import sys; sys.path[:] = {sys.path}; from superkernel.tools.cli import main; main()"
_DEMO = (sys.executable, "-c", _COMMAND, "demo")


@dataclass(frozen=True)
class DoctorReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Can the default target work?"""
        return all(check.state is CheckState.OK for check in self.checks if check.needed)

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_dict(self) -> dict[str, Any]:
        rows = [{**vars(check), "state": check.state.value} for check in self.checks]
        return {"ok": self.ok, "checks": rows}


def examine() -> DoctorReport:
    """The checks of every target; the last check, a whole super kernel, runs only if its parts were found."""
    host = check_python(), check_package(), check_cache(), check_torch(), check_gpu(), check_nvcc()
    parts = (*host, *(check for target in all_targets() for check in target.checks()))
    return DoctorReport((*parts, check_demo(parts)))


def check_python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    right = sys.version_info >= (3, 11) and sys.platform == "linux"
    state = CheckState.OK if right else CheckState.PROBLEM
    return Check("python", state, found, "" if right else "use Python 3.11 or later on Linux", needed=True)


def check_package() -> Check:
    return Check("superkernel", CheckState.OK, f"{__version__}, {Path(__file__).parents[1]}", needed=True)


def check_cache() -> Check:
    try:
        info = Cache().info()
    except BuildError as error:
        return Check("cache", CheckState.PROBLEM, str(error), "set SUPERKERNEL_CACHE to a folder of yours", needed=True)
    state = "writable" if info.writable else "read-only, so what it lacks is built anew by every process"
    found = f"{info.directory}: {state}, {info.entries} entries, {info.bytes / 1e6:.1f} MB"
    return Check("cache", CheckState.OK, found, needed=True)


def check_torch() -> Check:
    """The version of torch and whether its models are fused, without importing it, which takes seconds."""
    remedy = f"pip install '{REQUIREMENT}'"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        found = "not installed; only torch.compile(backend='superkernel') needs it"
        return Check("torch", CheckState.MISSING, found, remedy)
    if find_spec("torch") is None:
        return Check("torch", CheckState.PROBLEM, f"{version} is installed, but there is no module 'torch'", remedy)
    if reason := unsupported_version(version):
        found = f"{version}: {reason}; torch.compile(backend='superkernel') runs models through Inductor, unfused"
        return Check("torch", CheckState.PROBLEM, found, remedy)
    return Check(
        "torch", CheckState.OK, f"{version}; torch.compile(backend='superkernel') supports {supported_range()}"
    )


def check_gpu() -> Check:
    """The GPUs that the NVIDIA driver reports, and whether a target uses them."""
    use = _cuda_use()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        smi, remedy = shutil.which("nvidia-smi"), f"install the NVIDIA driver; {use}"
        if smi:
            return Check("gpu", CheckState.PROBLEM, f"{smi} is there, but the driver's libcuda.so.1 is not", remedy)
        return Check("gpu", CheckState.MISSING, "no NVIDIA driver (libcuda.so.1)", remedy)
    if status := driver.cuInit(0):
        problem = f"the driver does not start: cuInit returned {status}"
        return Check("gpu", CheckState.PROBLEM, problem, "see nvidia-smi")
    count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        return Check("gpu", CheckState.MISSING, "the driver sees no GPU", "see nvidia-smi and CUDA_VISIBLE_DEVICES")
    driver.cuDeviceGetName(name, len(name), 0)
    release = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Check("gpu", CheckState.OK, f"{count.value} x {name.value.decode()}, driver for CUDA {release}; {use}")


def _cuda_use() -> str:
    if has_target("cuda"):
        return "only target cuda needs it"
    return "not needed: this version has no target cuda"


def check_nvcc() -> Check:
    homes = [os.environ.get(variable, "") for variable in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in (*homes, "/usr/local/cuda") if home]
    remedy = f"install the CUDA toolkit; {_cuda_use()}"
    return check_tool("nvcc", ("nvcc",), remedy, folders)


def check_demo(parts: Iterable[Check]) -> Check:
    """The proof: a super kernel compiled, linked, launched and checked, in a process that may crash."""
    lacking = [part.name for part in parts if part.needed and part.state is not CheckState.OK]
    if lacking:
        return Check("cpu target", CheckState.MISSING, f"not tried: see {', '.join(lacking)}", "see above", needed=True)
    try:
        run_tool(_DEMO, what="running a super kernel", timeout=_DEMO_TIMEOUT_S)
    except BuildError as error:
        message = error.stderr.strip().removeprefix("error: ") or str(error)
        return Check("cpu target", CheckState.PROBLEM, message, "see the message", needed=True)
    return Check("cpu target", CheckState.OK, "a super kernel was compiled, linked, launched and checked", needed=True)
