"""package.writer: a manifest, weights, objects and a library -> the folder of a package, complete or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BuildError
from .manifest import MANIFEST, Manifest, read_manifest
from .weights_file import WEIGHTS, StoredTensor, write_weights

CHECKSUMS = "checksums.json"
CHECKSUMS_VERSION = 1
EXPLANATION = "explain.txt"
PACKAGED_LIBRARY = "lib/libsuperkernel.so.1"  # of the version that exported
_READ_BYTES = 1 << 20


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
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as fresh:
            folder = Path(fresh, "package")
            folder.mkdir()
            _write_files(folder, contents)
            if path.exists():
                path.rename(Path(fresh, "replaced"))
            folder.rename(path)
    except OSError as reason:
        raise BuildError(f"{path}: the package cannot be written: {reason}") from reason
    return path


def check_free(path: Path, overwrite: bool) -> None:
    """Refuses a path that holds something that must not be replaced."""
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise BuildError(f"{path} exists: choose another path, or export with overwrite=True")
    if path.is_symlink() or not (path / MANIFEST).is_file():
        raise BuildError(f"{path} exists and is not a package: it is not replaced; choose another path")
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
