"""package.writer: a manifest, weights, objects and a library -> the folder of a package, complete or not at all."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BuildError
from .checksums import CHECKSUMS_VERSION
from .file_names import CHECKSUMS, EXPLANATION, MANIFEST, WEIGHTS
from .manifest import Manifest, read_manifest
from .unfinished_exports import locked, remove_left_over, unfinished_export
from .weights_file import StoredTensor, write_weights

_READ_BYTES = 1 << 20
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


@dataclass(frozen=True)
class PackageContents:
    """Everything that goes into a package."""

    manifest: Manifest
    weights: Mapping[str, StoredTensor]
    files: Mapping[str, Path] = field(default_factory=dict)  # path in the package -> the file to copy
    explanation: str = ""
    add_files: Callable[[Path], None] = lambda folder: None  # writes further files into the folder
    revise: Callable[[Path], Manifest] | None = None  # the complete folder -> the manifest that replaces the first


def write_package(path: Path, contents: PackageContents, overwrite: bool = False) -> Path:
    """The folder, put in place when it is complete. Only a package is ever replaced."""
    check_free(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_export(path) as unfinished:
            folder = unfinished / "package"
            folder.mkdir()
            _write_files(folder, contents)
            with locked(path.parent):
                check_free(path, overwrite)  # another export to this path may have been faster
                _put_in_place(folder, path, unfinished / "replaced")
            remove_left_over(path)
    except OSError as reason:
        raise BuildError(f"{path}: the package cannot be written: {reason}") from reason
    return path


def _put_in_place(folder: Path, path: Path, replaced: Path) -> None:
    """If the new package cannot take its place, the old one is put back."""
    if path.exists() and _exchange(folder, path):
        return
    try:
        if path.exists():
            path.rename(replaced)
        folder.rename(path)
    except BaseException:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        raise


def _exchange(folder: Path, path: Path) -> bool:
    """Whether both have changed places, at once, so that there is always a package; not all file systems can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = [ctypes.c_char_p(os.fsencode(name)) for name in (folder, path)]
    return int(rename(_HERE, names[0], _HERE, names[1], ctypes.c_uint(_EXCHANGE))) == 0


def check_free(path: Path, overwrite: bool) -> None:
    """Refuses a path that holds something that must not be replaced."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not (path / MANIFEST).is_file():
        raise BuildError(f"{path} exists and is not a package: it is not replaced; choose another path")
    if not overwrite:
        raise BuildError(f"{path} exists: choose another path, or export with overwrite=True (--overwrite)")
    read_manifest(path)


def _write_files(folder: Path, contents: PackageContents) -> None:
    write_weights(folder / WEIGHTS, contents.weights)
    for name, file in contents.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)
    contents.add_files(folder)
    (folder / EXPLANATION).write_text(contents.explanation, encoding="utf-8")
    files = {str(file.relative_to(folder)): _facts(file) for file in sorted(folder.rglob("*")) if file.is_file()}
    _write_manifest(folder, contents.manifest, files)
    if contents.revise is not None:
        _write_manifest(folder, contents.revise(folder), files)


def _write_manifest(folder: Path, manifest: Manifest, files: Mapping[str, dict[str, int | str]]) -> None:
    """The manifest, and the checksums of it and of all other files."""
    (folder / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    listed = dict(sorted({**files, MANIFEST: _facts(folder / MANIFEST)}.items()))
    text = json.dumps({"version": CHECKSUMS_VERSION, "files": listed}, indent=1) + "\n"
    (folder / CHECKSUMS).write_text(text, encoding="utf-8")


def _facts(file: Path) -> dict[str, int | str]:
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}
