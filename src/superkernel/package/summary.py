"""package.summary: the folder of a package -> what is in it, for people and as JSON; no code is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildError, GraphError
from .checksums import FileSum, check_files, is_relative_path, read_checksums
from .file_names import MANIFEST, WEIGHTS
from .manifest import Manifest, PackagedShape, PackagedTensor, parse_manifest
from .one_folder import HeldFolder, read_one_folder


@dataclass(frozen=True)
class PackageSummary:
    """A package, as its manifest and its list of files describe it."""

    path: Path
    manifest: Manifest
    files: Mapping[str, FileSum]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def weight_bytes(self) -> int:
        return self.files[WEIGHTS].size if WEIGHTS in self.files else 0

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Of the objects, in the order in which the library tries them."""
        found = (stored.isa for objects in self.manifest.objects.values() for stored in objects)
        return tuple(dict.fromkeys(found))

    def to_dict(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "ok": True,
            "path": str(self.path),
            "name": manifest.name,
            "superkernel": manifest.superkernel,
            "torch": manifest.torch,
            "options": manifest.options,
            "needs_torch": manifest.needs_torch,
            "instruction_sets": list(self.instruction_sets),
            "bytes": self.total_bytes,
            "weight_bytes": self.weight_bytes,
            "states": [state.to_json() for state in manifest.states],
            "entries": [
                {"name": entry.name, "doc": entry.doc, "shapes": [_shape_fields(shape) for shape in entry.shapes]}
                for entry in manifest.entries
            ],
            "files": {name: file.size for name, file in self.files.items()},
        }

    def __str__(self) -> str:
        manifest = self.manifest
        code = ", ".join(self.instruction_sets) or "none"
        lines = [
            f"{manifest.name}: {self.total_bytes / 1e6:.1f} MB, weights {self.weight_bytes / 1e6:.1f} MB; "
            f"code for {code}; exported by SuperKernel {manifest.superkernel} with torch {manifest.torch}"
        ]
        lines += [f"options: {manifest.options}"] if manifest.options else []
        lines += [f"needs torch: {manifest.needs_torch}"] if manifest.needs_torch else []
        for entry in manifest.entries:
            lines.append(f"  {entry.name}" + (f": {entry.doc}" if entry.doc else ""))
            lines += [f"    {_shape_line(shape)}" for shape in entry.shapes]
        if manifest.states:
            lines.append("  states: " + ", ".join(_tensor_text(state) for state in manifest.states))
        return "\n".join(lines)


def summarise(folder: Path) -> PackageSummary:
    """Reads the manifest and the list of files; a BuildError where one of them cannot be what was exported."""
    return read_one_folder(folder, read_summary)


def read_summary(folder: HeldFolder) -> PackageSummary:
    files = read_checksums(folder)
    try:
        manifest = parse_manifest(folder.read_json(MANIFEST), folder.path)
    except GraphError as error:
        raise BuildError(str(error)) from error
    summary = PackageSummary(folder.path, manifest, files)
    _check_objects(summary)
    return summary


def verify(folder: Path) -> PackageSummary:
    """Compares every file with its checksum, and the manifest with the files; loads no code."""
    return read_one_folder(folder, read_verified)


def read_verified(folder: HeldFolder) -> PackageSummary:
    check_files(folder, read_checksums(folder), everything=True)
    return read_summary(folder)


def _check_objects(summary: PackageSummary) -> None:
    for launch, objects in summary.manifest.objects.items():
        for stored in objects:
            if not is_relative_path(stored.file):
                raise BuildError(
                    f"{summary.path}: the object of {launch!r}, {stored.file!r}, is no path inside the package"
                )
            if stored.file not in summary.files:
                raise BuildError(f"{summary.path}: {stored.file} of {launch!r} is not in the package; export it again")


def _shape_fields(shape: PackagedShape) -> dict[str, Any]:
    return {
        "inputs": [kind.to_json() for kind in shape.inputs],
        "outputs": [kind.to_json() for kind in shape.outputs],
        "bucket": None if shape.bucket is None else shape.bucket.to_json(),
        "launches": len(shape.launches),
        "cores": max((plan.cores for launch in shape.launches for plan in launch.plans), default=1),
        "arena": shape.arena,
    }


def _shape_line(shape: PackagedShape) -> str:
    inputs, outputs = (", ".join(map(_tensor_text, kinds)) for kinds in (shape.inputs, shape.outputs))
    text = f"{inputs or 'no inputs'} -> {outputs or 'no outputs'}"
    if shape.bucket is not None:
        text += f" ({shape.bucket.name} up to {shape.bucket.size})"
    launches = len(shape.launches)
    return f"{text}; {launches} {'launch' if launches == 1 else 'launches'}"


def _tensor_text(kind: PackagedTensor) -> str:
    return f"{kind.name} {kind.dtype}{list(kind.shape)}"
