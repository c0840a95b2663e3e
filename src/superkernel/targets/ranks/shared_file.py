"""targets.ranks.shared_file: a file in shared memory that the ranks of one user map: made, opened, swept.

Each rank holds a record lock on a byte of the file while it lives. The kernel releases it when the process ends,
however it ends, and a forked child does not have it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import struct
import threading
from pathlib import Path

from ...errors import LaunchError
from .process_identity import SHARED_MEMORY

_PREFIX = "superkernel-"
_FLOCK = "hhqqi4x"  # struct flock
_busy_names: set[str] = set()  # that this process has open: closing a second descriptor would release its locks
_busy_lock = threading.Lock()


class SharedFile:
    """An open file of one area. `close` releases this rank's lock."""

    def __init__(self, descriptor: int, path: Path, created: bool) -> None:
        self.descriptor, self.path, self._created = descriptor, path, created

    @classmethod
    def create(cls, nbytes: int, folder: Path = SHARED_MEMORY) -> SharedFile:
        """A new file that only this user can open, of that size; no memory is taken yet."""
        _sweep(folder)
        for _ in range(16):
            path = folder / f"{_PREFIX}{os.getuid()}-{secrets.token_hex(8)}"
            with _busy_lock:
                _busy_names.add(path.name)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as reason:
                _forget(path)
                raise LaunchError(
                    f"shared memory between ranks: {reason}. {folder} must be a tmpfs that this user may write to"
                ) from reason
            shared = cls(descriptor, path, True)
            # A sweep of another process may come between the creation and the lock.
            _lock(descriptor, _CREATOR)
            if os.fstat(descriptor).st_nlink == 0:
                shared.release_name()
                shared.close()
                continue
            os.fchmod(descriptor, 0o600)  # whatever the umask
            try:
                os.ftruncate(descriptor, nbytes)
            except OSError as reason:
                shared.release_name()
                shared.close()
                raise _no_room(nbytes, folder, reason) from reason
            return shared
        raise LaunchError(f"shared memory between ranks: {folder} is swept by another program as soon as it is used")

    @classmethod
    def open(cls, name: str, nbytes: int, folder: Path = SHARED_MEMORY) -> SharedFile:
        """The file that another rank has made."""
        path = folder / name
        where = f"shared memory between ranks: {path}"
        with _busy_lock:
            _busy_names.add(name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as reason:
            _forget(path)
            raise LaunchError(f"{where} cannot be opened: {reason}") from reason
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o600
        if not private or found.st_size != nbytes:
            os.close(descriptor)
            _forget(path)
            raise LaunchError(
                f"{where} is not what the first rank has made: it must be a file of user {os.getuid()} alone, of "
                f"{nbytes} bytes; found user {found.st_uid}, mode {stat.filemode(found.st_mode)}, {found.st_size} bytes"
            )
        return cls(descriptor, path, False)

    def lock(self, rank: int) -> None:
        """Held until the end of this process, or close."""
        _lock(self.descriptor, rank)

    def is_locked(self, rank: int) -> bool:
        """Whether another process holds the lock of a rank; the locks of this process do not count."""
        return _locked(self.descriptor, rank, 1)

    def allocate(self, offset: int, nbytes: int) -> None:
        """Takes memory for a range now, near this process's processors: later it could only be a SIGBUS."""
        try:
            os.posix_fallocate(self.descriptor, offset, nbytes)
        except OSError as reason:
            whole = os.fstat(self.descriptor).st_size  # what the user must make room for
            raise _no_room(whole, self.path.parent, reason) from reason

    def release_name(self) -> None:
        """When all ranks have opened it. The rank that created the file removes the name; the memory stays."""
        if self._created:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            _forget(self.path)  # not sooner: the creator may be late in removing the name


_CREATOR = 1 << 20  # the byte that the creator locks until all ranks have their own; behind those of all ranks


def _no_room(nbytes: int, folder: Path, reason: OSError) -> LaunchError:
    size = os.statvfs(folder)
    free = size.f_bavail * size.f_frsize
    return LaunchError(
        f"shared memory between ranks: no room for {nbytes} bytes in {folder} ({free} bytes are free): {reason}. Make "
        "it larger (docker run --shm-size=1g; mount -o remount,size=1g /dev/shm)"
    )


def _lock(descriptor: int, byte: int) -> None:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)


def _locked(descriptor: int, first: int, count: int) -> bool:
    """`count` 0: to the end."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return int(answer[0]) != fcntl.F_UNLCK


def _forget(path: Path) -> None:
    with _busy_lock:
        _busy_names.discard(path.name)


def _sweep(folder: Path) -> None:
    """Removes files that ranks of this user have left behind: no process holds a lock on them."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(f"{_PREFIX}{os.getuid()}-")]
    except OSError:
        return  # the creation, which follows, says what is wrong
    for name in names:
        with _busy_lock:
            if name in _busy_names:
                continue
            path = folder / name
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:  # gone, or not ours
                continue
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and not _locked(descriptor, 0, 0):
                    path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
