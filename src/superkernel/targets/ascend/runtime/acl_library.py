"""targets.ascend.runtime.acl_library: ASCEND_HOME_PATH -> CANN's run time library, loaded; its errors as sentences."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from ....errors import LaunchError
from ..tools import HOME
from .acl_functions import FUNCTIONS, AclCode

NAMES = ("libacl_rt.so", "libascendcl.so")  # the name of now, and that of older versions
FOLDERS = ("lib64", "runtime/lib64", "acllib/lib64")


def find_library() -> Path | None:
    home = os.environ.get(HOME, "").strip()
    if not home:
        return None
    places = (Path(home, folder, name) for folder in FOLDERS for name in NAMES)
    return next((place.resolve() for place in places if place.is_file()), None)


def missing_library() -> str:
    """Why there is none."""
    home = os.environ.get(HOME, "").strip()
    if not home:
        return f"{HOME} is not set"
    return f"neither {' nor '.join(NAMES)} is in {' or '.join(FOLDERS)} of {HOME}={home}"


class AclLibrary:
    """The library with typed functions. A code other than 0 becomes a LaunchError with the library's own text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._calls = ctypes.CDLL(str(path))
        except OSError as reason:
            raise LaunchError(
                f"{path} cannot be loaded: {reason}. Source CANN's set_env.sh, which sets LD_LIBRARY_PATH, and see "
                "that the driver is installed"
            ) from reason
        missing = []
        for function in FUNCTIONS:
            try:
                loaded = getattr(self._calls, function.name)
            except AttributeError:
                if not function.optional:
                    missing.append(function.name)
                continue
            loaded.restype, loaded.argtypes = function.result, function.arguments
        if missing:
            raise LaunchError(
                f"{path} has no {', '.join(missing)}: this version of CANN is too old to launch super kernels; 8.5 has "
                "all that is needed"
            )

    def has(self, function: str) -> bool:
        return hasattr(self._calls, function)

    def code(self, function: str, *arguments: Any) -> int:
        """The code that a function returns, without a check."""
        returned: int = getattr(self._calls, function)(*arguments)
        return returned

    def check(self, doing: str, function: str, *arguments: Any) -> None:
        """`doing` says in an error what failed."""
        if code := self.code(function, *arguments):
            raise self.error(doing, function, code)

    def error(self, doing: str, function: str, code: int) -> LaunchError:
        """Reads the text of this thread's last errors, so call it before any other function fails."""
        text = self.recent_text()
        return LaunchError(f"{doing}: {function} returned {code}{f': {text}' if text else ' and gave no text'}")

    def recent_text(self) -> str:
        text: bytes | None = self._calls.aclGetRecentErrMsg()
        return (text or b"").decode("utf-8", "replace").strip()

    def soc_name(self) -> str:
        name: bytes | None = self._calls.aclrtGetSocName()
        return (name or b"").decode("utf-8", "replace")

    def handle(self, doing: str, function: str, *arguments: Any) -> int:
        """What a function gives back through a pointer, its last parameter."""
        found = ctypes.c_void_p()
        self.check(doing, function, *arguments, ctypes.byref(found))
        return found.value or 0

    def initialise(self) -> bool:
        """Whether this call did it, and finalise() is due; another part of the process may have been earlier."""
        code = self.code("aclInit", None)
        if code not in (AclCode.SUCCESS, AclCode.REPEAT_INITIALIZE):
            raise self.error(f"initialising {self.path}", "aclInit", code)
        if code:
            self.recent_text()  # it stands for nothing that went wrong
        return code == AclCode.SUCCESS

    def finalise(self) -> None:
        """Once per initialise() that did it. The counting function leaves other users of the library alone."""
        if self.has("aclFinalizeReference"):
            self.check("finalising", "aclFinalizeReference", None)
        else:
            self.check("finalising", "aclFinalize")


@cache
def load_acl(path: Path) -> AclLibrary:
    return AclLibrary(path)
