"""package.checksums: the folder of a package -> the sizes and hashes of its files; what differs is refused by name.

Nothing here loads code. The list finds files that were cut short, damaged, exchanged or left out. It does not prove who
wrote them: a user who may write the folder may write the list as well.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import BuildError, GraphError, shown
from ..model.json_value import JsonValue, parse_json
from .file_names import CHECKSUMS, CODE_FOLDERS, MANIFEST

CHECKSUMS_VERSION = 1
_CHUNK = 1 << 20
_AGAIN = "export the model again, or copy the package again"


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


def read_checksums(folder: Path) -> Mapping[str, FileSum]:
    """checksums.json of a package, by path; a BuildError where the folder is no package."""
    try:
        if not folder.exists():
            raise BuildError(f"{folder} does not exist; a package is a folder that sk.export has written")
        if not folder.is_dir():
            raise BuildError(f"{folder} is no package: it is no folder; sk.export writes packages")
        for name in (MANIFEST, CHECKSUMS):
            if not (folder / name).is_file():
                raise BuildError(
                    f"{folder} is no package: {name} is missing; sk.export writes it, {CHECKSUMS} last. A super kernel "
                    "that k.save has saved is opened by sk.load, in the shell by superkernel run"
                )
    except OSError as reason:  # no permission, or a path that is too long
        raise BuildError(f"{folder} cannot be opened: {reason.strerror}") from reason
    try:
        return _read(parse_json(_inside(folder, CHECKSUMS)))
    except GraphError as error:
        raise BuildError(f"{error}; {_AGAIN}") from error


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
    """Whether a path of a manifest stays inside the folder by its words; links are found by `check_files`."""
    return (
        bool(path)
        and "\\" not in path
        and "\0" not in path
        and str(PurePosixPath(path)) == path
        and not (path.startswith("/") or {"..", "."} & set(path.split("/")))
    )


def check_files(folder: Path, files: Mapping[str, FileSum], everything: bool) -> None:
    """A BuildError that names the first file that is missing, has another size, or another hash.

    `everything`: all files are hashed, and files that are not listed are refused; otherwise the manifest and code.
    """
    for entry in files.values():
        _check_size(_inside(folder, entry.path), entry)
    for entry in files.values():
        if everything or entry.is_checked_when_opened:
            check_hash(folder, entry)
    if everything:
        _refuse_unlisted(folder, files)


def check_hash(folder: Path, entry: FileSum) -> Path:
    """The file, whose content is what the list says; otherwise a BuildError with both hashes."""
    path = _inside(folder, entry.path)
    _check_size(path, entry)
    found = _sha256(path)
    if found != entry.sha256:
        raise BuildError(f"{path} was changed: its SHA-256 is {found}, {CHECKSUMS} says {entry.sha256}; {_AGAIN}")
    return path


def _check_size(path: Path, entry: FileSum) -> None:
    size = path.stat().st_size
    if size != entry.size:
        word = "cut short" if size < entry.size else "changed"
        raise BuildError(f"{path} was {word}: it has {size} bytes, {CHECKSUMS} says {entry.size}; {_AGAIN}")


def _refuse_unlisted(folder: Path, files: Mapping[str, FileSum]) -> None:
    for path in _files_below(folder):
        relative = path.relative_to(folder).as_posix()
        if relative not in files and relative != CHECKSUMS:
            raise BuildError(f"{path} is no part of the package, {CHECKSUMS} does not list it: remove it")


def _files_below(folder: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    except OSError as reason:
        raise BuildError(f"{folder} cannot be read: {reason}") from reason


def _inside(folder: Path, relative: str) -> Path:
    """A regular file of the package; links that lead out of the folder are refused."""
    path = folder / relative
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise BuildError(f"{path} is a symbolic link that leads out of the package; copy the file in its place")
        if not stat.S_ISREG(path.stat().st_mode):
            raise BuildError(f"{path} is no regular file")
    except FileNotFoundError as missing:
        raise BuildError(f"{path} is missing; {_AGAIN}") from missing
    except (OSError, RuntimeError) as reason:  # no permission, or a loop of links
        raise BuildError(f"{path} cannot be read: {reason}") from reason
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError as reason:
        raise BuildError(f"{path} cannot be read: {reason}") from reason
    return digest.hexdigest()
