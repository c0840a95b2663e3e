"""runtime.checksums: the files of a saved super kernel -> a list of their SHA-256; a folder that differs is refused.

The list finds files that were cut short, damaged, exchanged or left behind. It does not prove who wrote them: a
user who may write the folder may write the list as well. `sha256sum -c superkernel.sha256` reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import BuildError

CHECKSUMS = "superkernel.sha256"
_LINE = re.compile(rb"([0-9a-f]{64})  ([^/\r\n]+)\n")
_AGAIN = "save the kernel again"


def write_checksums(folder: Path, contents: Mapping[str, bytes]) -> None:
    """`contents`: every file of the folder that belongs to the saved kernel."""
    (folder / CHECKSUMS).write_bytes(_text({name: _sha256(raw) for name, raw in contents.items()}))


def listed_files(folder: Path) -> set[str]:
    """The files that a list in the folder names, and the list; none where there is no list."""
    try:
        found = _LINE.findall((folder / CHECKSUMS).read_bytes())
    except OSError:
        return set()
    return {CHECKSUMS, *(name.decode("utf-8", "replace") for _, name in found)}


def check_files(folder: Path) -> None:
    """A BuildError unless the folder holds what was saved, byte for byte, and nothing else."""
    try:
        raw = (folder / CHECKSUMS).read_bytes()
        present = {path.name: path for path in folder.iterdir() if path.name != CHECKSUMS}
    except OSError as reason:
        raise BuildError(f"{folder} is no saved super kernel: {CHECKSUMS} cannot be read: {reason}") from reason
    expected = {name.decode("utf-8", "surrogateescape"): sha256.decode() for sha256, name in _LINE.findall(raw)}
    if not expected or _text(expected) != raw:
        raise BuildError(f"{folder / CHECKSUMS} is not what was saved: cut short or changed; {_AGAIN}")
    for name in expected:
        if name not in present:
            raise BuildError(f"{folder} is no saved super kernel: {name} is missing; {_AGAIN}")
    for name, path in sorted(present.items()):
        if name not in expected:
            raise BuildError(
                f"{path} is no part of the saved super kernel, {CHECKSUMS} does not list it: remove it, or {_AGAIN}"
            )
        try:
            found = _sha256(path.read_bytes())
        except OSError as reason:
            raise BuildError(f"{folder} is no saved super kernel: {name} cannot be read: {reason}") from reason
        if found != expected[name]:
            raise BuildError(f"{path} is not what was saved: cut short or changed; {_AGAIN}")


def _text(sums: Mapping[str, str]) -> bytes:
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
