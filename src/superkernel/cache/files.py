"""cache.files: a cache directory -> its files by kind; what is old, unfinished or too much is removed."""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SEAL = ".sha256"
_UNFINISHED = "unfinished-"
_ABANDONED_AFTER_S = 3600.0
_RECENT_S = 60.0  # another process may be about to link or load what was used so recently
_SHARD = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{16,64}(\.[A-Za-z0-9.]+)?")
_BUILDER = re.compile(r"unfinished-([0-9a-f]{8})-([0-9]+)-")


@dataclass(frozen=True)
class StoredFile:
    path: Path
    bytes: int
    used: float  # when it was last used
    changed: float

    @property
    def is_unfinished(self) -> bool:
        return self.path.name.startswith(_UNFINISHED)

    @property
    def is_entry(self) -> bool:
        return not self.is_unfinished and not self.path.name.endswith(SEAL)


def stored_files(directory: Path, shard: str | None = None) -> Iterator[StoredFile]:
    """Every file that a cache wrote there, or in one of its shards; files of other names are not listed."""
    for folder in [directory / shard] if shard else _folders(directory):
        try:
            with os.scandir(folder) as listed:
                entries = [
                    entry for entry in listed if _ENTRY.fullmatch(entry.name) or entry.name.startswith(_UNFINISHED)
                ]
        except OSError:  # not a directory, or removed meanwhile
            continue
        for entry in entries:
            with suppress(OSError):  # removed meanwhile
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    yield StoredFile(Path(entry.path), status.st_size, status.st_atime, status.st_mtime)


def remove_files(directory: Path, shard: str | None = None, suffix: str = "") -> int:
    """Remove all entries, or those of one suffix, and what dead builds left; returns how many entries went."""
    removed = 0
    for file in stored_files(directory, shard):
        is_named = file.path.name.removesuffix(SEAL).endswith(suffix)
        if _is_abandoned(file) if file.is_unfinished else is_named:
            removed += _unlink(file.path) and file.is_entry
    return removed


def trim(directory: Path, limit: int, spared: Collection[Path]) -> int:
    """Sweep what dead builds left, then remove the least recently used entries until the rest fits the limit.

    Entries in `spared`, and those that were used a moment ago, stay. Returns the bytes that are left.
    """
    total = 0
    entries, seals = list[StoredFile](), dict[Path, StoredFile]()
    for file in stored_files(directory):
        if file.is_unfinished and _is_abandoned(file):
            _unlink(file.path)
            continue
        total += file.bytes
        if file.is_entry:
            entries.append(file)
        elif not file.is_unfinished:
            seals[file.path] = file
    for entry in sorted(entries, key=lambda entry: entry.used):
        if total <= limit or time.time() - entry.used < _RECENT_S:
            break
        if entry.path not in spared and _unlink(entry.path):
            total -= entry.bytes
            seal = seal_of(entry.path)
            if seal in seals and _unlink(seal):
                total -= seals[seal].bytes
    return total


def seal_of(entry: Path) -> Path:
    return entry.with_name(entry.name + SEAL)


def unfinished_name(suffix: str) -> str:
    """The name of a file that this process is about to build; it says which process that is."""
    return f"{_UNFINISHED}{_process_space()}-{os.getpid()}-{secrets.token_hex(6)}{suffix}"


def _is_abandoned(file: StoredFile) -> bool:
    """Its builder is dead; of a builder on another machine or in another container, that nothing came for an hour."""
    if time.time() - file.changed > _ABANDONED_AFTER_S:
        return True
    builder = _BUILDER.match(file.path.name)
    if builder is None or builder[1] != _process_space():
        return False
    try:
        os.kill(int(builder[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


@cache
def _process_space() -> str:
    """Names the set of processes in which a process id means the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{zlib.crc32((boot + os.readlink('/proc/self/ns/pid')).encode()):08x}"
    except OSError:
        return secrets.token_hex(4)  # unlike any other


def _folders(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as listed:
            return [entry.path for entry in listed if _SHARD.fullmatch(entry.name) and not entry.is_symlink()]
    except OSError:
        return []


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
