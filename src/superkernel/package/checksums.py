"""package.checksums: the folder of a package -> the sizes and hashes of its files; what differs is refused by name.

Nothing here loads code. The list finds files that were cut short, damaged, exchanged or left out. It does not prove who
wrote them: a user who may write the folder may write the list as well.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..errors import BuildError, GraphError, shown
from ..model.json_value import JsonValue
from .file_names import CHECKSUMS, CODE_FOLDERS, MANIFEST
from .one_folder import AGAIN, HeldFolder

CHECKSUMS_VERSION = 1
_CHUNK = 1 << 20
_IN_NO_PATH = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class FileSum:
    """What checksums.json says of one file."""

    path: str  # relative to the folder, with slashes
    size: int  # bytes
    sha256: str

    @property
    def is_checked_when_opened(self) -> bool:
        """The manifest and code are hashed whenever a package is opened; weights, which may be large, by verify."""
        return self.path == MANIFEST or self.path.split("/")[0] in CODE_FOLDERS


def read_checksums(folder: HeldFolder) -> Mapping[str, FileSum]:
    """checksums.json of a package, by path; a BuildError where the folder is not a package."""
    try:
        for name in (MANIFEST, CHECKSUMS):
            if not folder.has_file(name):
                raise BuildError(
                    f"{folder.path} is not a package: {name} is missing; sk.export writes it, {CHECKSUMS} last. "
                    "A super kernel that k.save has saved is opened by sk.load, in the shell by superkernel run"
                )
    except OSError as reason:  # no permission
        raise BuildError(f"{folder.path} cannot be opened: {reason.strerror}") from reason
    try:
        return _read(folder.read_json(CHECKSUMS))
    except GraphError as error:
        raise BuildError(f"{error}; {AGAIN}") from error


def _read(value: JsonValue) -> Mapping[str, FileSum]:
    fields = value.fields(("version", "files"), ("version", "files"))
    if fields["version"].whole() > CHECKSUMS_VERSION:
        raise fields["version"].error(
            f"version {fields['version'].value} is of a newer SuperKernel, this one reads version {CHECKSUMS_VERSION}: "
            "update SuperKernel"
        )
    if fields["version"].value != CHECKSUMS_VERSION:
        raise fields["version"].error(f"there is no version {fields['version'].value}")
    files = {}
    for path, entry in fields["files"].entries().items():
        sums = entry.fields(("bytes", "sha256"), ("bytes", "sha256"))
        size, sha256 = sums["bytes"].whole(), sums["sha256"].text()
        if size < 0:
            raise sums["bytes"].error(f"{size} is no size")
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise sums["sha256"].error(f"{shown(sha256)} is no SHA-256 in lower-case hexadecimal digits")
        if not is_relative_path(path) or path == CHECKSUMS:
            raise entry.error(f"{shown(path)} is no path inside the package")
        files[path] = FileSum(path, size, sha256)
    if MANIFEST not in files:
        raise fields["files"].error(f"{MANIFEST} is not listed")
    return files


def is_relative_path(path: str) -> bool:
    """Whether a path of a manifest stays inside the folder by its words; links are found where files are opened."""
    return (
        bool(path)
        and "\\" not in path
        and not _IN_NO_PATH.search(path)
        and str(PurePosixPath(path)) == path
        and not (path.startswith("/") or {"..", "."} & set(path.split("/")))
    )


def check_files(folder: HeldFolder, files: Mapping[str, FileSum], everything: bool) -> None:
    """A BuildError that names the first file that is missing, has another size, or another hash.

    `everything`: all files are hashed, and files that are not listed are refused; otherwise the manifest and code.
    """
    for entry in files.values():
        with folder.open(entry.path) as stream:
            _check_size(folder, entry, stream)
    for entry in files.values():
        if everything or entry.is_checked_when_opened:
            check_hash(folder, entry)
    if everything:
        _refuse_unlisted(folder, files)


def check_hash(folder: HeldFolder, entry: FileSum) -> Path:
    """The file, whose content is what the list says; otherwise a BuildError with both hashes."""
    path = folder.path / entry.path
    with folder.open(entry.path) as stream:
        _check_size(folder, entry, stream)
        found = _sha256(path, stream)
    if found != entry.sha256:
        raise BuildError(f"{path} was changed: its SHA-256 is {found}, {CHECKSUMS} says {entry.sha256}; {AGAIN}")
    return path


def _check_size(folder: HeldFolder, entry: FileSum, stream: BinaryIO) -> None:
    size = os.fstat(stream.fileno()).st_size
    if size != entry.size:
        path, word = folder.path / entry.path, "cut short" if size < entry.size else "changed"
        raise BuildError(f"{path} was {word}: it has {size} bytes, {CHECKSUMS} says {entry.size}; {AGAIN}")


def _refuse_unlisted(folder: HeldFolder, files: Mapping[str, FileSum]) -> None:
    for relative in folder.files():
        if relative not in files and relative != CHECKSUMS:
            path = folder.path / relative
            raise BuildError(f"{path} is no part of the package, {CHECKSUMS} does not list it: remove it")


def _sha256(path: Path, stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    try:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    except OSError as reason:
        raise BuildError(f"{path} cannot be read: {reason}") from reason
    return digest.hexdigest()
