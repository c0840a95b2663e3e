"""targets.ascend.checks: CANN, NPUs and libclang of this machine -> checks: what can be built, checked, launched."""

from __future__ import annotations

import os
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...errors import LaunchError
from ..checks import Check, CheckState, check_tool
from .runtime.acl_library import find_library, load_acl, missing_library
from .source_check import libclang_installed
from .tools import COMPILER_FOLDERS, HOME

DEVICE_FILES = "/dev/davinci[0-9]*"  # one per NPU, made by the driver


def check_cann() -> Check:
    home = os.environ.get(HOME, "")
    remedy = "install the CANN toolkit and source its set_env.sh; without it, target ascend emits source and emulates"
    if home and not Path(home).is_dir():
        return Check("cann", CheckState.PROBLEM, f"{HOME}={home} is not a folder", remedy)
    folders = [f"{home}/{folder}" for folder in COMPILER_FOLDERS] if home else []
    bisheng = check_tool("cann", ("bisheng",), remedy, folders)
    if bisheng.state is CheckState.MISSING:
        where = f"{HOME}={home} has no bisheng" if home else f"{HOME} is not set, no bisheng on PATH"
        return Check("cann", CheckState.PROBLEM if home else CheckState.MISSING, where, remedy)
    return bisheng


def check_libclang() -> Check:
    if libclang_installed():
        try:
            found = f"libclang {version('libclang')}"
        except PackageNotFoundError:  # not from the wheel of that name
            found = "libclang"
        return Check("libclang", CheckState.OK, found)
    remedy = "pip install libclang; without it, what target ascend emits is not parsed before CANN's compiler sees it"
    return Check("libclang", CheckState.MISSING, "libclang is not installed", remedy)


def check_npu() -> Check:
    """The run time library and its devices. Nothing is initialised: that would take an NPU from other processes."""
    library = find_library()
    if library is None:
        remedy = (
            "install CANN and its driver, and source set_env.sh; without it, k.emulate(...) takes the place of launches"
        )
        return Check("npu", CheckState.MISSING, missing_library(), remedy)
    try:
        load_acl(library)
    except LaunchError as error:
        return Check("npu", CheckState.PROBLEM, str(error), "install the driver and a CANN that has these functions")
    devices = sorted(Path(path).name for path in glob(DEVICE_FILES))
    if not devices:
        remedy = "see that the driver is loaded (npu-smi info), and that the container was given the device files"
        return Check("npu", CheckState.PROBLEM, f"{library}; there is no {DEVICE_FILES}", remedy)
    return Check("npu", CheckState.OK, f"{library}; {', '.join(devices)}")
