"""cache.cache: files by key under one directory: found if intact and trusted, else built, sealed and put in place."""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError
from .files import SEAL, remove_files, seal_of, stored_files, trim, unfinished_name
from .location import REMEDY, checked_directory, default_directory, digest, size_limit
from .trusted_files import ClaimedDirectory, claim, is_intact, prepare_shard, remove_untrusted

_log = logging.getLogger("superkernel")
_HEX = re.compile(r"[0-9a-f]{16,64}")
_SUFFIX = re.compile(r"(\.[A-Za-z0-9.]+)?")
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_building: dict[Path, threading.Lock] = {}  # entries that threads of this process are building, across Cache objects
_building_lock = threading.Lock()
_in_use: set[Path] = set()  # entries that this process built or was given: never evicted by it
_use_listeners: list[Callable[[Path], None]] = []
_sizes: dict[Path, _Size] = {}  # of the cache directories that this process has written to
_sizes_lock = threading.Lock()
_overflows: dict[Path, Path] = {}  # cache directory that cannot be written -> where this process builds instead
_overflows_lock = threading.Lock()
GATE_SUFFIX = ".gate.json"  # of entries that hold what the profit gate measured on this machine
totals: Counter[str] = Counter()  # hits and misses of all caches of this process


@dataclass(frozen=True)
class CacheInfo:
    """The contents of a cache in numbers."""

    directory: Path
    entries: int
    bytes: int
    limit: int | None  # in bytes
    writable: bool


@dataclass(frozen=True)
class _Size:
    bytes: int  # estimated: what others write is not known before the next look
    unseen: int  # bytes that this process has written since the last look


class Cache:
    """Files by key under one directory that only its owner can read.

    Each entry is sealed by a checksum beside it, so that a file cut short or overwritten is built again, not served.
    Entries that another user owns or may write are not served either. A directory that cannot be written serves what
    it has; what it lacks is built in a temporary directory of this process.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = default_directory() if directory is None else checked_directory(directory)
        self._lock = threading.Lock()
        self.hits = self.misses = 0
        self._claimed = claim(self.directory)

    def path(self, key: str, suffix: str) -> Path:
        """Where the entry of `key` is, or would be."""
        return _place(self.directory, key, suffix)

    def get(self, key: str, suffix: str) -> Path | None:
        """The finished, intact entry of `key`, if there is one."""
        found = self._find(key, suffix)
        with self._lock:
            self.hits += found is not None
            self.misses += found is None
            totals["misses" if found is None else "hits"] += 1
        return found

    def make(self, key: str, suffix: str, build: Callable[[Path], object]) -> Path:
        """The entry of `key`; if it is missing, `build` writes it into the path it is given, and it is put in place.

        Threads of one process build a key once. Processes may build it twice; the last one wins, and readers
        see a whole file either way.
        """
        with self._building(key, suffix):
            return self.get(key, suffix) or self._build(key, suffix, build)

    def read_text(self, key: str, suffix: str) -> str | None:
        """The text of an entry, if there is one; not counted among hits and misses."""
        entry = self._find(key, suffix)
        try:
            return None if entry is None else entry.read_text()
        except (OSError, ValueError):
            return None

    def write_text(self, key: str, suffix: str, text: str) -> None:
        """Put a text in the place of an entry, whatever was there; does nothing where the cache cannot be written."""
        if self._claimed.writable:
            with suppress(BuildError), self._building(key, suffix):
                self._build(key, suffix, lambda path: path.write_text(text), overflow=False)

    def add(self, key: str, suffix: str, contents: bytes) -> None:
        """Put an entry in place unless there is one; not counted among hits and misses."""
        with self._building(key, suffix):
            if self._find(key, suffix) is None:
                self._build(key, suffix, lambda path: path.write_bytes(contents))

    def info(self) -> CacheInfo:
        """How many entries there are, and how many bytes they take."""
        sizes = [file.bytes for file in stored_files(self.directory) if file.is_entry]
        return CacheInfo(self.directory, len(sizes), sum(sizes), size_limit(), self._claimed.writable)

    def clear(self, suffix: str = "") -> int:
        """Remove all entries, or those of one suffix, and what crashed builds left; how many entries went.

        Foreign files stay.
        """
        remove_untrusted(self.directory)
        with _sizes_lock:
            _sizes.pop(self.directory, None)
        return remove_files(self.directory, suffix=suffix)

    def _building(self, key: str, suffix: str) -> threading.Lock:
        with _building_lock:
            return _building.setdefault(self.path(key, suffix), threading.Lock())

    def _find(self, key: str, suffix: str) -> Path | None:
        for claimed in (self._claimed, self._overflow()):
            if claimed is not None:
                entry = _place(claimed.path, key, suffix)
                if is_intact(claimed, entry.parent.name, entry.name):
                    if entry not in _in_use:
                        _note_use(entry)
                    return entry
        return None

    def _overflow(self) -> ClaimedDirectory | None:
        if (directory := _overflows.get(self.directory)) is None:
            return None
        return ClaimedDirectory(directory, os.geteuid(), writable=True)

    def _build(self, key: str, suffix: str, build: Callable[[Path], object], overflow: bool = True) -> Path:
        entry = self.path(key, suffix)
        try:
            if self._claimed.writable:
                self._claimed = claim(self.directory)  # again: it may have been removed meanwhile
            unfinished = _new_file(self._claimed, entry) if self._claimed.writable else None
            if unfinished is None and overflow:
                entry = _place(_open_overflow(self.directory), key, suffix)
                unfinished = _new_file(ClaimedDirectory(entry.parents[1], os.geteuid(), writable=True), entry)
            if unfinished is None:
                raise BuildError(f"cache directory {self.directory} cannot be written: {REMEDY}")
            size = _fill(unfinished, entry, build)
        except OSError as reason:
            raise BuildError(
                f"cannot write cache entry {entry}: {reason}; free some space there or {REMEDY}"
            ) from reason
        _note_use(entry)
        if entry.is_relative_to(self.directory):
            _keep_to_limit(self.directory, size)
        return entry


def listen_to_uses(listener: Callable[[Path], None]) -> None:
    """Call `listener` with every entry that this process has used or uses later, once per content."""
    _use_listeners.append(listener)
    for entry in sorted(_in_use):
        listener(entry)


def _note_use(entry: Path) -> None:
    _in_use.add(entry)
    for listener in _use_listeners:
        listener(entry)


def split_name(name: str) -> tuple[str, str] | None:
    """The key and the suffix of the file name of an entry; None: no entry is called so."""
    key, dot, rest = name.partition(".")
    suffix = dot + rest
    if not _HEX.fullmatch(key) or not _SUFFIX.fullmatch(suffix) or suffix.endswith(SEAL):
        return None
    return key, suffix


def _place(directory: Path, key: str, suffix: str) -> Path:
    if not _SUFFIX.fullmatch(suffix) or suffix.endswith(SEAL):
        raise ValueError(f"{suffix!r} is not a suffix such as '.o'")
    name = key if _HEX.fullmatch(key) else digest(key)
    return directory / name[:2] / (name + suffix)


def _new_file(claimed: ClaimedDirectory, entry: Path) -> Path | None:
    """An empty file beside the place of an entry; None: nothing can be written there."""
    try:
        prepare_shard(claimed, entry.parent.name)
        unfinished = entry.with_name(unfinished_name(entry.suffix))
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as reason:
        if reason.errno in _READ_ONLY:
            return None
        raise
    return unfinished


def _fill(unfinished: Path, entry: Path, build: Callable[[Path], object]) -> int:
    """Build a file and move it to its place; returns its size.

    The seal goes first: an entry without a seal does not count as finished.
    """
    seal = unfinished.with_name(unfinished.name + SEAL)
    try:
        build(unfinished)
        try:
            built = unfinished.open("rb+")
        except FileNotFoundError:
            raise BuildError(f"the build of cache entry {entry} wrote nothing") from None
        with built:
            if not (size := os.fstat(built.fileno()).st_size):
                raise BuildError(f"the build of cache entry {entry} wrote nothing")
            os.fchmod(built.fileno(), 0o600)  # linkers give files the permissions that the umask allows
            os.fsync(built.fileno())  # a power cut must not leave a renamed file without its contents
            checksum = hashlib.file_digest(built, "sha256").hexdigest()
        with open(os.open(seal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as sealed:
            sealed.write(checksum)
        os.replace(seal, seal_of(entry))
        os.replace(unfinished, entry)
    finally:
        for path in (unfinished, seal):
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return size


def _keep_to_limit(directory: Path, written: int) -> None:
    """Look at the whole cache at this process's first build, when it may be too large, and now and then."""
    if (limit := size_limit()) is None:
        return
    with _sizes_lock:
        known = _sizes.get(directory)
        size = None if known is None else _Size(known.bytes + written, known.unseen + written)
        if size is None or size.bytes > limit or size.unseen > limit // 16:
            size = _Size(trim(directory, limit, _in_use), 0)
        _sizes[directory] = size


def _open_overflow(directory: Path) -> Path:
    """The temporary directory in which this process builds what a read-only cache lacks; said once."""
    with _overflows_lock:
        if directory not in _overflows or not _overflows[directory].is_dir():  # a parent process may have removed it
            try:
                temporary = Path(tempfile.mkdtemp(prefix="superkernel-cache-")).absolute()
            except OSError as reason:
                raise BuildError(
                    f"cache directory {directory} cannot be written, and neither can a temporary directory: {reason}; "
                    f"{REMEDY}"
                ) from reason
            _overflows[directory] = temporary
            atexit.register(_remove_overflow, temporary, os.getpid())
            _log.warning(
                f"cache directory {directory} cannot be written: what it lacks is built in {temporary}, for this "
                f"process only; {REMEDY}"
            )
        return _overflows[directory]


def _remove_overflow(temporary: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process leaves it to its parent
        shutil.rmtree(temporary, ignore_errors=True)
