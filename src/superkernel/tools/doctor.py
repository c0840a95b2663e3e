"""doctor: this machine -> a report of what SuperKernel needs: what was found, what is missing, and how to get it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..cache import Cache
from ..errors import BuildError, UnsupportedError
from ..targets.cpu.runtime.openmp import loaded, openmp, thread_count
from ..targets.native.objects import CXX_FLAGS, INCLUDE
from ..targets.native.toolchain import COMPILERS, LINKERS
from ..targets.native.toolchain import run as run_tool

_TOOL_TIMEOUT_S = 60.0
_DEMO_TIMEOUT_S = 300.0
_DEMO = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:] = {sys.path}; from superkernel.tools.cli import main; main()",
    "demo",
)
_INSTALL = "apt-get install g++ binutils (Debian, Ubuntu) or dnf install gcc-c++ binutils (Fedora)"
_PROGRAM = """\
#include <superkernel/kernel.h>
#include <vector>

int main() { return std::vector<int>(1).front(); }
"""
# below ASCEND_HOME_PATH, in releases of CANN
_BISHENG = ("bin", "compiler/ccec_compiler/bin", "ccec_compiler/bin", "tools/ccec_compiler/bin")


class State(Enum):
    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `needed`: without it the cpu target cannot work."""

    name: str
    state: State
    found: str
    remedy: str = ""
    needed: bool = False


@dataclass(frozen=True)
class Report:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Can the default target work?"""
        return all(check.state is State.OK for check in self.checks if check.needed)

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_dict(self) -> dict[str, Any]:
        rows = [{**vars(check), "state": check.state.value} for check in self.checks]
        return {"ok": self.ok, "checks": rows}


def examine() -> Report:
    """All checks; the last one, a whole super kernel, only where its parts are there."""
    parts = tuple(check() for check in _CHECKS)
    return Report((*parts, check_cpu_target(parts)))


def check_python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    right = sys.version_info >= (3, 11) and sys.platform == "linux"
    state = State.OK if right else State.PROBLEM
    return Check("python", state, found, "" if right else "use Python 3.11 or later on Linux", needed=True)


def check_package() -> Check:
    return Check("superkernel", State.OK, f"{__version__}, {Path(__file__).parents[1]}", needed=True)


def check_compiler() -> Check:
    """The compiler that will be used, and whether it makes a program."""
    chosen = os.environ.get("CXX", "").strip()
    try:
        command = shlex.split(chosen) or [next(filter(shutil.which, COMPILERS), "")]
    except ValueError as reason:
        return Check("compiler", State.PROBLEM, f"CXX={chosen!r} is not a command: {reason}", "unset CXX", needed=True)
    path = shutil.which(command[0]) if command[0] else None
    if path is None:
        found = f"CXX={chosen!r} is not on PATH" if chosen else f"none of {', '.join(COMPILERS)} is on PATH"
        return Check("compiler", State.MISSING, found, ("unset CXX, or " if chosen else "") + _INSTALL, needed=True)
    command[0] = path
    try:
        found = f"{shlex.join(command)}: {_version(command)}"
        with tempfile.TemporaryDirectory(prefix="superkernel-doctor-") as folder:
            source = Path(folder, "tiny.cpp")
            source.write_text(_PROGRAM)
            build = [*command, *CXX_FLAGS, f"-I{INCLUDE}", str(source), "-o", str(source.with_suffix(""))]
            run_tool(build, what="compiling and linking a tiny program", timeout=_TOOL_TIMEOUT_S)
    except BuildError as error:
        return Check("compiler", State.PROBLEM, f"{path}: {error}", f"install a working one: {_INSTALL}", needed=True)
    return Check("compiler", State.OK, f"{found}; compiles and links a tiny program", needed=True)


def check_linker() -> Check:
    check = _tool("linker", LINKERS, f"GNU ld is in the binutils: {_INSTALL}", needed=True)
    if check.state is State.OK and ": GNU ld" not in check.found:  # others are "compatible with GNU ld"
        remedy = f"only GNU ld takes section groups apart: {_INSTALL}"
        return Check("linker", State.PROBLEM, f"{check.found}: not GNU ld", remedy, needed=True)
    return check


def check_objcopy() -> Check:
    return _tool("objcopy", ("objcopy",), f"objcopy is in the binutils: {_INSTALL}", needed=True)


def check_openmp() -> Check:
    """The run time that launches will use; two in one process would fight for the cores."""
    try:
        path = openmp().path
    except UnsupportedError as error:
        return Check("openmp", State.MISSING, str(error), "apt-get install libgomp1", needed=True)
    present = loaded()
    if len(present) > 1:
        found = f"{len(present)} run times are loaded: {', '.join(map(str, present))}; {path} will be used"
        return Check("openmp", State.PROBLEM, found, "load one only: they would fight for the cores")
    return Check("openmp", State.OK, str(present[0] if present else path), needed=True)


def check_cores() -> Check:
    allowed = len(os.sched_getaffinity(0))
    found = f"{os.cpu_count()} in the machine, {allowed} allowed by affinity"
    try:
        threads = thread_count()
    except UnsupportedError:
        return Check("cores", State.PROBLEM, f"{found}; no OpenMP run time to use them", "see openmp")
    whose = "torch's threads" if "torch" in sys.modules else "OpenMP threads (torch is not loaded)"
    found = f"{found}; a launch uses {threads} {whose}"
    if threads > allowed:
        return Check("cores", State.PROBLEM, found, f"set OMP_NUM_THREADS={allowed}: more threads than cores are slow")
    return Check("cores", State.OK, found)


def check_cache() -> Check:
    try:
        info = Cache().info()
    except BuildError as error:
        return Check("cache", State.PROBLEM, str(error), "set SUPERKERNEL_CACHE to a folder of yours", needed=True)
    found = f"{info.directory}: writable, {info.entries} entries, {info.bytes / 1e6:.1f} MB"
    return Check("cache", State.OK, found, needed=True)


def check_torch() -> Check:
    """Asked without importing it, which takes seconds."""
    try:
        return Check("torch", State.OK, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        found = "not installed; only torch.compile(backend='superkernel') needs it"
        return Check("torch", State.MISSING, found, "pip install 'superkernel[torch]'")


def check_gpu() -> Check:
    """What the NVIDIA driver says."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        smi, remedy = shutil.which("nvidia-smi"), "install the NVIDIA driver; in a container: the NVIDIA toolkit"
        if smi:
            return Check("gpu", State.PROBLEM, f"{smi} is there, but the driver's libcuda.so.1 is not", remedy)
        return Check("gpu", State.MISSING, "no NVIDIA driver (libcuda.so.1); only target cuda needs it", remedy)
    if status := driver.cuInit(0):
        return Check("gpu", State.PROBLEM, f"the driver does not start: cuInit returned {status}", "see nvidia-smi")
    count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        return Check("gpu", State.MISSING, "the driver sees no GPU", "see nvidia-smi and CUDA_VISIBLE_DEVICES")
    driver.cuDeviceGetName(name, len(name), 0)
    release = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Check("gpu", State.OK, f"{count.value} x {name.value.decode()}, driver for CUDA {release}")


def check_nvcc() -> Check:
    homes = [os.environ.get(variable, "") for variable in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in (*homes, "/usr/local/cuda") if home]
    return _tool("nvcc", ("nvcc",), "install the CUDA toolkit, to write kernels of your own for target cuda", folders)


def check_cann() -> Check:
    home = os.environ.get("ASCEND_HOME_PATH", "")
    remedy = "install the CANN toolkit and source its set_env.sh; without it, target ascend emits source and emulates"
    if home and not Path(home).is_dir():
        return Check("cann", State.PROBLEM, f"ASCEND_HOME_PATH={home} is not a folder", remedy)
    folders = [f"{home}/{folder}" for folder in _BISHENG] if home else []
    bisheng = _tool("cann", ("bisheng",), remedy, folders)
    if bisheng.state is State.MISSING:
        where = f"ASCEND_HOME_PATH={home} has no bisheng" if home else "ASCEND_HOME_PATH is not set, no bisheng on PATH"
        return Check("cann", State.PROBLEM if home else State.MISSING, where, remedy)
    return bisheng


def check_cpu_target(parts: Iterable[Check]) -> Check:
    """The proof: a super kernel compiled, linked, launched and checked, in a process that may crash."""
    lacking = [part.name for part in parts if part.needed and part.state is not State.OK]
    if lacking:
        return Check("cpu target", State.MISSING, f"not tried: see {', '.join(lacking)}", "see above", needed=True)
    try:
        run_tool(_DEMO, what="running a super kernel", timeout=_DEMO_TIMEOUT_S)
    except BuildError as error:
        told = error.stderr.strip().removeprefix("error: ") or str(error)
        return Check("cpu target", State.PROBLEM, told, "see the message", needed=True)
    return Check("cpu target", State.OK, "a super kernel was compiled, linked, launched and checked", needed=True)


_CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_package,
    check_compiler,
    check_linker,
    check_objcopy,
    check_openmp,
    check_cores,
    check_cache,
    check_torch,
    check_gpu,
    check_nvcc,
    check_cann,
)


def _tool(
    name: str, programs: Sequence[str], remedy: str, folders: Sequence[str] = (), *, needed: bool = False
) -> Check:
    """The first of the programs that is on PATH or in one of the folders, with its version."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    path = next((found for program in programs if (found := shutil.which(program, path=search))), None)
    if path is None:
        return Check(name, State.MISSING, f"{' or '.join(programs)} is not on PATH", remedy, needed)
    try:
        return Check(name, State.OK, f"{path}: {_version([path])}", needed=needed)
    except BuildError as error:
        return Check(name, State.PROBLEM, str(error), remedy, needed)


def _version(command: Sequence[str]) -> str:
    """The line in which a program says its version."""
    said = run_tool([*command, "--version"], what=f"asking {command[0]} for its version", timeout=_TOOL_TIMEOUT_S)
    lines = said.strip().splitlines()
    return next((line for line in lines if re.search(r"\d\.\d", line)), lines[0] if lines else "no version")
