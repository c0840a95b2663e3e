"""cache: a key and a way to build in, the path of a finished file out; built once, kept across processes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from superkernel.errors import BuildError

_HEX = re.compile(r"[0-9a-f]{16,64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{16,64}(\.[A-Za-z0-9.]+)?")
_SUFFIX = re.compile(r"(\.[A-Za-z0-9.]+)?")
_UNFINISHED = "unfinished-"
_SEAL = ".sha256"
_ABANDONED_AFTER_S = 3600.0
_chosen: ContextVar[Path | None] = ContextVar("superkernel_cache", default=None)
_building: dict[Path, threading.Lock] = {}  # entries that threads of this process are building, across Cache objects
_building_lock = threading.Lock()
totals: Counter[str] = Counter()  # hits and misses of all caches of this process
_REMEDY = "set SUPERKERNEL_CACHE to a directory that you own and can write"


@dataclass(frozen=True)
class CacheInfo:
    """The contents of a cache in numbers."""

    directory: Path
    entries: int
    bytes: int


def digest(*parts: str | bytes) -> str:
    """The SHA-256 of the parts and their lengths."""
    total = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(raw).to_bytes(8, "little"))
        total.update(raw)
    return total.hexdigest()


@contextmanager
def cache_in(directory: str | None) -> Iterator[None]:
    """Inside, `directory` is the default; None changes nothing."""
    if directory is None:
        yield
        return
    token = _chosen.set(Path(directory).absolute())
    try:
        yield
    finally:
        _chosen.reset(token)


def default_directory() -> Path:
    """What `cache_in` says, else SUPERKERNEL_CACHE, else the user's cache directory."""
    if (inside := _chosen.get()) is not None:
        return inside
    if chosen := os.environ.get("SUPERKERNEL_CACHE"):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore a relative path
        try:
            base = Path.home() / ".cache"
        except RuntimeError as reason:
            raise BuildError(f"no home directory to keep a cache in: {_REMEDY}") from reason
    return base / "superkernel"


class Cache:
    """Files by key under one directory that only its owner can read.

    Each entry is sealed by a checksum beside it, so that a file cut short or overwritten is built again, not served.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = default_directory() if directory is None else Path(directory).absolute()
        self._lock = threading.Lock()
        self.hits = self.misses = 0
        _claim(self.directory)

    def path(self, key: str, suffix: str) -> Path:
        """Where the entry of `key` is, or would be."""
        if not _SUFFIX.fullmatch(suffix) or suffix.endswith(_SEAL):
            raise ValueError(f"{suffix!r} is not a suffix such as '.o'")
        name = key if _HEX.fullmatch(key) else digest(key)
        return self.directory / name[:2] / (name + suffix)

    def get(self, key: str, suffix: str) -> Path | None:
        """The finished, intact entry of `key`, if there is one."""
        entry = self.path(key, suffix)
        found = _intact(entry)
        with self._lock:
            self.hits += found
            self.misses += not found
            totals["hits" if found else "misses"] += 1
        return entry if found else None

    def make(self, key: str, suffix: str, build: Callable[[Path], object]) -> Path:
        """The entry of `key`; if it is missing, `build` writes it into the path it is given, and it is put in place.

        Threads of one process build a key once. Processes may build it twice; the last one wins, and readers
        see a whole file either way.
        """
        entry = self.path(key, suffix)
        with _building_lock:
            building = _building.setdefault(entry, threading.Lock())
        with building:
            if self.get(key, suffix) is None:
                self._build(entry, build)
        return entry

    def info(self) -> CacheInfo:
        """How many entries there are, and how many bytes they take."""
        sizes = [file.st_size for path in self._files() if not _is_support(path) and (file := _status(path))]
        return CacheInfo(self.directory, len(sizes), sum(sizes))

    def clear(self) -> int:
        """Remove all entries and what crashed builds left; how many entries went. Foreign files stay."""
        removed = 0
        for path in self._files():
            if path.name.startswith(_UNFINISHED):
                file = _status(path)
                if file is None or time.time() - file.st_mtime <= _ABANDONED_AFTER_S:
                    continue  # another thread or process is building it
            with suppress(OSError):
                path.unlink()
                removed += not _is_support(path)
        return removed

    def _files(self) -> Iterator[Path]:
        for shard in _listing(self.directory):
            if _SHARD.fullmatch(shard.name):
                for path in _listing(shard):
                    if _ENTRY.fullmatch(path.name) or path.name.startswith(_UNFINISHED):
                        yield path

    def _build(self, entry: Path, build: Callable[[Path], object]) -> None:
        unfinished: Path | None = None
        try:
            _claim(self.directory)  # again: it may have been removed meanwhile
            entry.parent.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_UNFINISHED, suffix=entry.suffix, dir=entry.parent)
            os.close(handle)
            unfinished = Path(name)
            build(unfinished)
            if (built := _status(unfinished)) is None or not built.st_size:
                raise BuildError(f"the build of cache entry {entry} wrote nothing")
            _publish(unfinished, entry)
        except OSError as reason:
            raise BuildError(
                f"cannot write cache entry {entry}: {reason}; free some space there or {_REMEDY}"
            ) from reason
        finally:
            if unfinished is not None:
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)


def _claim(directory: Path) -> None:
    """Create the directory for this user alone; refuse a directory of another user."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise BuildError(f"cache directory {directory} belongs to another user (uid {status.st_uid}): {_REMEDY}")
        if stat.S_IMODE(status.st_mode) & 0o077:
            directory.chmod(0o700)
    except OSError as reason:
        raise BuildError(f"cannot create cache directory {directory}: {reason}; {_REMEDY}") from reason
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise BuildError(f"cache directory {directory} is not writable: {_REMEDY}")


def _publish(unfinished: Path, entry: Path) -> None:
    """Move a built file to its place. The seal goes first: an entry without a seal does not count as finished."""
    with unfinished.open("rb+") as built:
        os.fsync(built.fileno())  # a power cut must not leave a renamed file without its contents
    seal = unfinished.with_name(unfinished.name + _SEAL)
    try:
        seal.write_text(_checksum(unfinished))
        os.replace(seal, _seal_of(entry))
    finally:
        seal.unlink(missing_ok=True)
    os.replace(unfinished, entry)


def _intact(entry: Path) -> bool:
    try:
        return entry.stat().st_size > 0 and _seal_of(entry).read_text() == _checksum(entry)
    except (OSError, UnicodeDecodeError):
        return False


def _seal_of(entry: Path) -> Path:
    return entry.with_name(entry.name + _SEAL)


def _checksum(path: Path) -> str:
    with path.open("rb") as contents:
        return hashlib.file_digest(contents, "sha256").hexdigest()


def _is_support(path: Path) -> bool:
    return path.name.endswith(_SEAL) or path.name.startswith(_UNFINISHED)


def _status(path: Path) -> os.stat_result | None:
    """None: the file was removed meanwhile."""
    try:
        return path.stat()
    except OSError:
        return None


def _listing(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # not a directory, or removed meanwhile
        return []
