"""cache.location: the environment and the caller -> the directory of the cache and its size limit; digests of keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..configuration import config
from ..errors import BuildError, OptionError, shown

REMEDY = "set SUPERKERNEL_CACHE to a directory that you own and can write"
LIMIT = "SUPERKERNEL_CACHE_LIMIT"
DEFAULT_LIMIT = "8G"
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_chosen: ContextVar[Path | None] = ContextVar("superkernel_cache", default=None)


def digest(*parts: str | bytes) -> str:
    """The SHA-256 of the parts and their lengths."""
    total = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(raw).to_bytes(8, "little"))
        total.update(raw)
    return total.hexdigest()


@contextmanager
def cache_in(directory: str | os.PathLike[str] | None) -> Iterator[None]:
    """Inside, `directory` is the default; None changes nothing."""
    if directory is None:
        yield
        return
    token = _chosen.set(checked_directory(directory))
    try:
        yield
    finally:
        _chosen.reset(token)


def default_directory() -> Path:
    """What `cache_in` says, else the setting `cache`, else the user's cache directory."""
    if (inside := _chosen.get()) is not None:
        return inside
    if chosen := config.cache:
        return checked_directory(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore a relative path
        try:
            base = Path.home() / ".cache"
        except RuntimeError as reason:
            raise BuildError(f"no home directory to keep a cache in: {REMEDY}") from reason
    return checked_directory(base / "superkernel")


def checked_directory(directory: object) -> Path:
    """An absolute path that every tool of a build can be given: compilers print it, and records of commands hold it."""
    if not isinstance(directory, str | os.PathLike) or not isinstance(text := os.fspath(directory), str):
        raise BuildError(f"cache directory {shown(directory)} is not a path: {REMEDY}")
    if "\0" in text:
        raise BuildError(f"cache directory {shown(text)} contains a NUL character: {REMEDY}")
    try:
        text.encode()
    except UnicodeEncodeError as reason:
        raise BuildError(f"cache directory {shown(text)} is not UTF-8: {REMEDY}, with a name that is UTF-8") from reason
    return Path(text).absolute()


def size_limit() -> int | None:
    """The bytes that a cache may take; None: any number."""
    text = config.cache_limit or DEFAULT_LIMIT
    if text == "0":
        return None
    found = _SIZE.fullmatch(text.upper())
    if found is None:
        raise OptionError(
            f"{LIMIT}={shown(text)} is no size: give bytes, with K, M, G or T as in 2G, or 0 for no limit"
        )
    return int(found[1]) * _UNITS[found[2]]
