"""targets.checks: one thing that a target needs of the machine: whether it was found, and how to get it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import BuildError
from .native.toolchain import run

TOOL_TIMEOUT_S = 60.0


class CheckState(Enum):
    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    name: str
    state: CheckState
    found: str
    remedy: str = ""
    needed: bool = False  # without it the default target cannot work


def check_tool(
    name: str, programs: Sequence[str], remedy: str, folders: Sequence[str] = (), *, needed: bool = False
) -> Check:
    """The first of the programs that is on PATH or in one of the folders, with its version."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    path = next((found for program in programs if (found := shutil.which(program, path=search))), None)
    if path is None:
        return Check(name, CheckState.MISSING, f"{' or '.join(programs)} is not on PATH", remedy, needed)
    try:
        return Check(name, CheckState.OK, f"{path}: {version_of([path])}", needed=needed)
    except BuildError as error:
        return Check(name, CheckState.PROBLEM, str(error), remedy, needed)


def version_of(command: Sequence[str]) -> str:
    """The line in which a program says its version."""
    said = run([*command, "--version"], what=f"asking {command[0]} for its version", timeout=TOOL_TIMEOUT_S)
    lines = said.strip().splitlines()
    return next((line for line in lines if re.search(r"\d\.\d", line)), lines[0] if lines else "no version")
