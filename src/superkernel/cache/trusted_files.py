"""cache.trusted_files: a cache directory -> which of its files only this user can have written.

A cache holds machine code, which is loaded into the process. So a directory, a shard or a file that another user owns
or may write is never read from: its entries are built again. Files are opened without following links and looked at
through the open file, so that what was checked is what is read; in a private folder no other user can exchange a file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError
from .files import SEAL, remove_files
from .location import REMEDY

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a planted FIFO must not block
UNTRUSTED = "untrusted-"  # begins the names of what was moved out of the way


@dataclass(frozen=True)
class ClaimedDirectory:
    """A cache directory that is this user's, or that root keeps for all users and this user can only read."""

    path: Path
    owner: int
    writable: bool

    def is_private(self, status: os.stat_result) -> bool:
        """Whether only the owner of this cache can have written what the status describes."""
        return status.st_uid == self.owner and not status.st_mode & _OTHERS_WRITE


def claim(directory: Path) -> ClaimedDirectory:
    """Create the directory for this user alone; refuse a directory of another user.

    What a directory holds that others could write is removed, because any file of it may have been exchanged.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        top = os.open(directory, _FOLDER)
    except OSError as reason:
        raise BuildError(f"cannot create cache directory {directory}: {reason}; {REMEDY}") from reason
    try:
        status = os.fstat(top)
        mode = stat.S_IMODE(status.st_mode)
        writable = bool(mode & stat.S_IWUSR) and os.access(directory, os.W_OK | os.X_OK)
        kept_by_root = status.st_uid == 0 and not writable and not mode & _OTHERS_WRITE
        if status.st_uid != os.geteuid() and not kept_by_root:
            raise BuildError(f"cache directory {directory} belongs to another user (uid {status.st_uid}): {REMEDY}")
        if mode & stat.S_ISVTX and mode & _OTHERS_WRITE:
            raise BuildError(
                f"cache directory {directory} is shared by all users, as /tmp is: {REMEDY}, such as a new one in it"
            )
        if writable and mode & 0o077:
            os.fchmod(top, mode & 0o700)
            if mode & _OTHERS_WRITE:
                remove_files(directory)
    except OSError as reason:
        raise BuildError(f"cannot use cache directory {directory}: {reason}; {REMEDY}") from reason
    finally:
        os.close(top)
    return ClaimedDirectory(directory, status.st_uid, writable)


def is_intact(claimed: ClaimedDirectory, shard: str, name: str) -> bool:
    """Whether there is a finished entry that only the owner can have written; its time of last use becomes now."""
    try:
        with (
            _opened(claimed, shard) as folder,
            _opened_file(claimed, name, folder) as contents,
            _opened_file(claimed, name + SEAL, folder) as seal,
        ):
            expected, status = os.read(seal, 100), os.fstat(contents)
            with open(contents, "rb", closefd=False) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            intact = status.st_size > 0 and found.encode() == expected
            if intact and claimed.writable:
                with suppress(OSError):
                    os.utime(contents, ns=(time.time_ns(), status.st_mtime_ns))
            return intact
    except (OSError, _NotPrivate):
        return False


def prepare_shard(claimed: ClaimedDirectory, shard: str) -> None:
    """Make the folder of an entry, private; what others could have put there is removed or moved out of the way."""
    folder = claimed.path / shard
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_uid != claimed.owner):
        folder.rename(claimed.path / f"{UNTRUSTED}{secrets.token_hex(8)}")
        remove_untrusted(claimed.path)
        folder.mkdir(mode=0o700)
    elif stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS_WRITE:
        opened = os.open(folder, _FOLDER | os.O_NOFOLLOW)
        try:
            os.fchmod(opened, 0o700)
        finally:
            os.close(opened)
        remove_files(claimed.path, shard)
    elif not status.st_mode & stat.S_IWUSR:  # root could write nevertheless
        raise PermissionError(errno.EACCES, "a folder of the cache is read-only", str(folder))


def remove_untrusted(directory: Path) -> None:
    """Remove what was moved out of the way, as far as this user may."""
    with suppress(OSError):
        for path in list(directory.glob(f"{UNTRUSTED}*")):
            if path.is_symlink():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)


class _NotPrivate(Exception):
    """A folder or a file that another user owns or may write, or that is no regular file."""


@contextmanager
def _opened(claimed: ClaimedDirectory, shard: str) -> Iterator[int]:
    top = os.open(claimed.path, _FOLDER)
    try:
        folder = os.open(shard, _FOLDER | os.O_NOFOLLOW, dir_fd=top)
        try:
            if not all(claimed.is_private(os.fstat(opened)) for opened in (top, folder)):
                raise _NotPrivate
            yield folder
        finally:
            os.close(folder)
    finally:
        os.close(top)


@contextmanager
def _opened_file(claimed: ClaimedDirectory, name: str, folder: int) -> Iterator[int]:
    opened = os.open(name, _FILE, dir_fd=folder)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or not claimed.is_private(status):
            raise _NotPrivate
        yield opened
    finally:
        os.close(opened)
