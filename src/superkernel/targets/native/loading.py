"""targets.native.loading: a shared object -> loaded into this process; a mount that forbids it is named."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ...errors import BuildError


def load_shared(path: Path, alias: Path | None = None) -> ctypes.CDLL:
    """The library `path`, by another name of it if one is given; OSError: it cannot be loaded."""
    try:
        return ctypes.CDLL(str(alias or path))
    except OSError as reason:
        if _is_noexec(path):
            raise BuildError(
                f"{path} lies on a file system that is mounted noexec, so no code can be loaded from it: set "
                f"SUPERKERNEL_CACHE to a directory on another file system (a saved super kernel: copy it to one), or "
                f"mount it with exec ({reason})"
            ) from reason
        raise


def _is_noexec(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False
