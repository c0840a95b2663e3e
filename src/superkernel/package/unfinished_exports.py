"""package.unfinished_exports: the path of a package -> a folder beside it to write into, removed also after a kill.

An export holds a lock on a file in its folder, which the system releases when the process ends, however it ends. So the
next export to the path knows which folders are left over: it gets their locks. The file names the boot of the system as
well, since a network file system may not show the locks of other machines.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "export.lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_LETTERS = 50  # of the package's name in that of the folder; names may have 255 bytes


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exports into one folder do this one after the other, where the file system has locks."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def unfinished_export(path: Path) -> Iterator[Path]:
    """A new folder beside the package, for folders that are written and replaced; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=_prefix(path), dir=path.parent) as fresh:
        lock = os.open(Path(fresh, _LOCK), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with suppress(OSError):  # of a file system without locks: nothing says then that the folder is left over
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(lock, _mark())
            yield Path(fresh)
            _remove_folders(Path(fresh))
        finally:
            os.close(lock)


def remove_left_over(path: Path) -> None:
    """The folders of exports to the path whose processes were killed."""
    with suppress(OSError):
        for folder in path.parent.iterdir():
            if folder.name.startswith(_prefix(path)) and _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Only the lock is in it then."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark = _mark()
        if not mark or os.read(lock, len(mark) + 1) != mark:
            return False
        _remove_folders(folder)
    except OSError:  # its export goes on
        return False
    finally:
        os.close(lock)
    return True


def _remove_folders(folder: Path) -> None:
    """All but the lock: what a kill leaves now is removed by the next export."""
    for inside in folder.iterdir():
        if inside.name != _LOCK:
            shutil.rmtree(inside, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name[:_MOST_LETTERS]}-"


def _mark() -> bytes:
    """What the lock says of the system that runs now; empty where it is not known."""
    try:
        return b"superkernel export " + _BOOT.read_bytes()
    except OSError:
        return b""
