"""targets.cpu.checks: compiler, linker, object editor, OpenMP run time and cores of this machine -> checks."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from ...errors import BuildError, UnsupportedError
from ..checks import TOOL_TIMEOUT_S, Check, CheckState, check_tool, version_of
from ..native.objects import CXX_FLAGS
from ..native.toolchain import COMPILERS, LINKERS, run
from .build import INCLUDE
from .runtime.openmp import loaded, openmp, thread_count
from .runtime.processors import cpu_quota, processor_count

_INSTALL = "apt-get install g++ binutils (Debian, Ubuntu) or dnf install gcc-c++ binutils (Fedora)"
_PROGRAM = """\
#include <superkernel/kernel.h>
#include <vector>

int main() { return std::vector<int>(1).front(); }
"""


def checks() -> tuple[Check, ...]:
    return check_compiler(), check_linker(), check_objcopy(), check_openmp(), check_cores()


def check_compiler() -> Check:
    """The compiler that will be used, and whether it makes a program."""
    chosen, check = os.environ.get("CXX", "").strip(), partial(Check, "compiler", needed=True)
    try:
        command = shlex.split(chosen) or [next(filter(shutil.which, COMPILERS), "")]
    except ValueError as reason:
        return check(CheckState.PROBLEM, f"CXX={chosen!r} is not a command: {reason}", "unset CXX")
    path = shutil.which(command[0]) if command[0] else None
    if path is None:
        found = f"CXX={chosen!r} is not on PATH" if chosen else f"none of {', '.join(COMPILERS)} is on PATH"
        return check(CheckState.MISSING, found, ("unset CXX, or " if chosen else "") + _INSTALL)
    command[0] = path
    try:
        found = f"{shlex.join(command)}: {version_of(command)}"
        with tempfile.TemporaryDirectory(prefix="superkernel-doctor-") as folder:
            source = Path(folder, "tiny.cpp")
            source.write_text(_PROGRAM)
            build = [*command, *CXX_FLAGS, f"-I{INCLUDE}", str(source), "-o", str(source.with_suffix(""))]
            run(build, what="compiling and linking a tiny program", timeout=TOOL_TIMEOUT_S)
    except BuildError as error:
        return check(CheckState.PROBLEM, f"{path}: {error}", f"install a working one: {_INSTALL}")
    return check(CheckState.OK, f"{found}; compiles and links a tiny program")


def check_linker() -> Check:
    check = check_tool("linker", LINKERS, f"GNU ld is in the binutils: {_INSTALL}", needed=True)
    if check.state is CheckState.OK and ": GNU ld" not in check.found:  # others are "compatible with GNU ld"
        remedy = f"only GNU ld takes section groups apart: {_INSTALL}"
        return Check("linker", CheckState.PROBLEM, f"{check.found}: not GNU ld", remedy, needed=True)
    return check


def check_objcopy() -> Check:
    return check_tool("objcopy", ("objcopy",), f"objcopy is in the binutils: {_INSTALL}", needed=True)


def check_openmp() -> Check:
    """The run time that launches will use; two in one process would fight for the cores."""
    try:
        path = openmp().path
    except UnsupportedError as error:
        return Check("openmp", CheckState.MISSING, str(error), "apt-get install libgomp1", needed=True)
    present = loaded()
    if len(present) > 1:
        found = f"{len(present)} run times are loaded: {', '.join(map(str, present))}; {path} will be used"
        return Check("openmp", CheckState.PROBLEM, found, "load one only: they would fight for the cores")
    return Check("openmp", CheckState.OK, str(present[0] if present else path), needed=True)


def check_cores() -> Check:
    allowed = len(os.sched_getaffinity(0))
    found = f"{os.cpu_count()} in the machine, {allowed} allowed by affinity"
    if (quota := cpu_quota()) is not None:
        found = f"{found}, the CPU quota is {quota:g}"
    try:
        threads = thread_count()
    except UnsupportedError:
        return Check("cores", CheckState.PROBLEM, f"{found}; no OpenMP run time to use them", "see openmp")
    whose = "torch's threads" if "torch" in sys.modules else "OpenMP threads (torch is not loaded)"
    found = f"{found}; a launch uses {min(threads, processor_count())} of {threads} {whose}"
    if threads > allowed:
        remedy = f"set OMP_NUM_THREADS={allowed}: more threads than cores are slow"
        return Check("cores", CheckState.PROBLEM, found, remedy)
    return Check("cores", CheckState.OK, found)
