"""targets.ascend.checks: what the target needs of this machine, CANN and libclang -> checks."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from ..checks import Check, CheckState, check_tool
from .source_check import libclang_installed
from .tools import COMPILER_FOLDERS, HOME


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
        return Check("libclang", CheckState.OK, f"libclang {version('libclang')}")
    remedy = "pip install libclang; without it, what target ascend emits is not parsed before CANN's compiler sees it"
    return Check("libclang", CheckState.MISSING, "libclang is not installed", remedy)
