"""targets.ascend.tools: the device compiler and its object tools, found through ASCEND_HOME_PATH, and the host's."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

HOME = "ASCEND_HOME_PATH"
# where the compiler lies in an installation of CANN
COMPILER_FOLDERS = ("bin", "compiler/ccec_compiler/bin", "tools/ccec_compiler/bin", "compiler/bin")
# where the device compiler finds kernel_operator.h and what that includes; newer toolkits have asc/include
_TIKCFW = "compiler/tikcpp/tikcfw"
INCLUDES = ("asc/include", "include", _TIKCFW, f"{_TIKCFW}/interface", f"{_TIKCFW}/impl")
FLAGS = "CCE_FLAGS"  # instead of those folders


class Tool(Enum):
    """What a command of the build calls; the value is its name in build.sh."""

    COMPILER = "BISHENG"
    LINKER = "LD"
    EDITOR = "OBJCOPY"
    ARCHIVER = "AR"
    SIZER = "SIZE"


# names beside the device compiler; names on the host
_NAMES: Mapping[Tool, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Tool.COMPILER: (("bisheng",), ()),
    Tool.LINKER: (("ld.lld",), ("ld.bfd", "ld")),
    Tool.EDITOR: (("llvm-objcopy",), ("objcopy", "llvm-objcopy")),
    Tool.ARCHIVER: (("llvm-ar",), ("ar", "llvm-ar")),
    Tool.SIZER: (("llvm-size",), ("size", "llvm-size")),
}


@dataclass(frozen=True)
class Tools:
    found: tuple[tuple[Tool, str], ...]
    missing_compiler: str  # why there is none; empty: there is one
    compiler_flags: tuple[str, ...] = ()  # as build.sh gives them

    def path(self, tool: Tool) -> str | None:
        return dict(self.found).get(tool)


def find_tools() -> Tools:
    """The compiler's folder comes first: the host's linker cannot link device code."""
    home = os.environ.get(HOME, "").strip()
    folders = [Path(home, folder) for folder in COMPILER_FOLDERS] if home else []
    search = os.pathsep.join(map(str, folders))
    found: dict[Tool, str] = {}
    for tool, (device_names, host_names) in _NAMES.items():
        path = _first(device_names, search) if home else None
        if path := path or _first(host_names, None):
            found[tool] = path
    missing = ""
    if Tool.COMPILER not in found:
        looked = f"not in {HOME}={home} ({', '.join(COMPILER_FOLDERS)})" if home else f"{HOME} is not set"
        missing = f"the device compiler bisheng was not found: {looked}"
    given = os.environ.get(FLAGS)
    flags = shlex.split(given) if given else [f"-I{Path(home, folder)}" for folder in INCLUDES if home]
    return Tools(tuple(found.items()), missing, tuple(flags))


def _first(names: Sequence[str], search: str | None) -> str | None:
    return next(filter(None, (shutil.which(name, path=search) for name in names)), None)
