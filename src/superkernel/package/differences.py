"""package.differences: two packages -> what differs: entries, states, code, and weights tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .file_names import WEIGHTS, is_torch_file
from .manifest import PackagedEntry
from .one_folder import HeldFolder, read_one_folder
from .return_structure import plain_structure, structure_to_json
from .summary import PackageSummary, read_verified
from .weights_header import StoredRange, parse_weights_header

T = TypeVar("T")
_CHUNK = 1 << 20
_FIELDS = ("name", "superkernel", "torch", "options", "needs_torch")


@dataclass(frozen=True)
class PackageDifference:
    """Something that is in one package only, or not the same in both."""

    kind: str  # field, entry, state, code, torch, weight
    name: str
    what: str  # only in the first, only in the second, or what differs

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.what}"


@dataclass(frozen=True)
class PackageComparison:
    """What `superkernel package diff` answers."""

    first: Path
    second: Path
    differences: tuple[PackageDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        listed = [vars(difference) for difference in self.differences]
        return {"ok": True, "same": not listed, "a": str(self.first), "b": str(self.second), "differences": listed}

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.first} and {self.second} hold the same model"
        return "\n".join(map(str, self.differences))


def compare_packages(first: Path, second: Path) -> PackageComparison:
    """Both packages must be what was exported: their files are compared with their checksums first."""
    return read_one_folder(first, lambda before: read_one_folder(second, partial(_compare, before)))


def _compare(first: HeldFolder, second: HeldFolder) -> PackageComparison:
    before, after = read_verified(first), read_verified(second)
    found = [
        *_different_fields(before, after),
        *_different("entry", _entries(before), _entries(after), _changed_entry),
        *_different("state", _states(before), _states(after), _changed_value),
        *_different("code", _code(before), _code(after), lambda a, b: "the objects differ"),
        *_different("torch", _torch_files(before), _torch_files(after), lambda a, b: "code or weights differ"),
        *_different_weights(first, second),
    ]
    return PackageComparison(first.path, second.path, tuple(found))


def _different_fields(before: PackageSummary, after: PackageSummary) -> list[PackageDifference]:
    pairs = [(name, getattr(before.manifest, name), getattr(after.manifest, name)) for name in _FIELDS]
    return [PackageDifference("field", name, _changed_value(a, b)) for name, a, b in pairs if a != b]


def _different(
    kind: str, before: Mapping[str, T], after: Mapping[str, T], changed: Callable[[T, T], str]
) -> list[PackageDifference]:
    found = []
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            found.append(PackageDifference(kind, name, "only in the first"))
        elif name not in before:
            found.append(PackageDifference(kind, name, "only in the second"))
        elif before[name] != after[name]:
            found.append(PackageDifference(kind, name, changed(before[name], after[name])))
    return found


def _entries(summary: PackageSummary) -> dict[str, Any]:
    """Without names of objects and steps, which may change with every export of the same model."""
    fields = summary.to_dict()["entries"]
    return {
        field["name"]: {**field, "returns": _returned(entry)}
        for field, entry in zip(fields, summary.manifest.entries, strict=True)
    }


def _returned(entry: PackagedEntry) -> dict[str, Any]:
    """The containers and constants around the outputs; a package that says nothing means what it would say."""
    count = len(entry.shapes[0].outputs) if entry.shapes else 0
    described: dict[str, Any] = structure_to_json(entry.returns or plain_structure(count))
    return described


def _changed_entry(before: dict[str, Any], after: dict[str, Any]) -> str:
    if len(before["shapes"]) != len(after["shapes"]):
        return f"shapes: {len(before['shapes'])}, then {len(after['shapes'])}"
    for first, second in zip(before["shapes"], after["shapes"], strict=True):
        for name, value in first.items():
            if value != second[name]:
                return f"{name}: {_changed_value(value, second[name])}"
    name = "returns" if before["returns"] != after["returns"] else "doc"
    return f"{name}: {_changed_value(before[name], after[name])}"


def _states(summary: PackageSummary) -> dict[str, str]:
    return {state.name: f"{state.dtype}{list(state.shape)}" for state in summary.manifest.states}


def _code(summary: PackageSummary) -> dict[str, str]:
    """The hash of every object by its launch and instruction set."""
    return {
        f"{launch} {stored.isa}": summary.files[stored.file].sha256
        for launch, objects in summary.manifest.objects.items()
        for stored in objects
    }


def _torch_files(summary: PackageSummary) -> dict[str, str]:
    """The hash of what torch runs, weights included, by its file."""
    return {name: file.sha256 for name, file in summary.files.items() if is_torch_file(name)}


def _different_weights(first: HeldFolder, second: HeldFolder) -> list[PackageDifference]:
    with first.open(WEIGHTS) as old, second.open(WEIGHTS) as new:
        before = parse_weights_header(old, first.path / WEIGHTS)
        after = parse_weights_header(new, second.path / WEIGHTS)
        found = _different(
            "weight",
            {name: _type_text(stored) for name, stored in before.items()},
            {name: _type_text(stored) for name, stored in after.items()},
            _changed_value,
        )
        differing = {difference.name for difference in found}
        for name in before:
            if name not in differing and not _same_bytes(old, before[name], new, after[name]):
                found.append(PackageDifference("weight", name, "values differ"))
    return found


def _type_text(stored: StoredRange) -> str:
    return f"{stored.dtype}{list(stored.shape)}"


def _same_bytes(old: Any, before: StoredRange, new: Any, after: StoredRange) -> bool:
    old.seek(before.begin)
    new.seek(after.begin)
    left = before.end - before.begin
    if left != after.end - after.begin:
        return False
    while left:
        size = min(left, _CHUNK)
        if old.read(size) != new.read(size):
            return False
        left -= size
    return True


def _changed_value(before: Any, after: Any) -> str:
    return f"{before!r}, then {after!r}"
