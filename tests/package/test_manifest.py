"""manifest.json: what is written is read back; what is no manifest, or a newer one, is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import BuildError, GraphError
from superkernel.package.manifest import (
    MANIFEST,
    Manifest,
    PackagedBucket,
    PackagedCopy,
    PackagedEntry,
    PackagedLaunch,
    PackagedObject,
    PackagedPlan,
    PackagedShape,
    PackagedTensor,
    PackagePlace,
    PlaceKind,
    read_manifest,
)

PLAN = PackagedPlan(2, "sk_segment", (0, -1), (0, 2**64 - 1), 0, 1, 128, False, 0, (-1,), (0,), 3, ("call add",), 0)
SHAPE = PackagedShape(
    inputs=(PackagedTensor("x", "float32", (4, 8)),),
    outputs=(PackagedTensor("output_0", "bfloat16", (8, 4)),),
    bucket=PackagedBucket("batch", 4, ((0, 0),), ((0, 1),)),
    arena=64,
    launches=(
        PackagedLaunch(
            "forward_0",
            (
                PackagePlace(PlaceKind.INPUT, 0, 128, index=0),
                PackagePlace(PlaceKind.WEIGHT, 64, 64, name="w"),
                PackagePlace(PlaceKind.STATE, 0, 4, name="count"),
                PackagePlace(PlaceKind.ARENA, 0, 64),
            ),
            (PLAN,),
        ),
    ),
    copies=(
        PackagedCopy(
            PackagePlace(PlaceKind.OUTPUT, 0, 64, index=0),
            PackagePlace(PlaceKind.ARENA, 0, 64),
            "bfloat16",
            (8, 4),
            (4, 1),
            (1, 8),
        ),
    ),
    isa=("x86-64-v3",),
)
FULL = Manifest(
    name="policy",
    superkernel="0.1.0",
    entries=(PackagedEntry("forward", (SHAPE,), "One step."),),
    objects={"forward_0": (PackagedObject("x86-64-v3", "objects/forward_0.x86-64-v3.so", ("avx2",)),)},
    states=(PackagedTensor("count", "int32", ()),),
    needs_torch="",
    options="early-start=2",
    torch="2.13.0",
)


def written(folder: Path, **changes: Any) -> Path:
    (folder / MANIFEST).write_text(json.dumps(FULL.to_json() | changes))
    return folder


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(FULL.text())
    assert read_manifest(tmp_path) == FULL


def test_64_bit_words_are_written_as_text() -> None:
    """Readers of JSON may keep 53 bits of a number."""
    assert PLAN.to_json()["slot_literal"] == ["0", str(2**64 - 1)]


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"made by a newer SuperKernel .*export again or update"):
        read_manifest(written(tmp_path, version=2))


def test_another_file_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a package of SuperKernel"):
        read_manifest(written(tmp_path, format="something"))
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(GraphError, match="a list is not an object"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("states", 0, "dtype"), "complex64", r"states\[0\].dtype: 'complex64' is no element type"),
        (("states", 0, "shape"), [-1], r"states\[0\].shape\[0\]: -1 is negative"),
        (("entries", 0, "shapes", 0, "launches", 0, "arguments", 0, "in"), "heap", "'heap' is no kind of memory"),
        (("entries", 0, "shapes", 0, "launches", 0, "arguments", 1, "name"), None, "the field 'name' is missing"),
        (("entries", 0, "shapes", 0, "launches", 0, "plans", 0, "slot_literal"), ["x"], "'x' is not a whole number"),
        (("entries", 0, "shapes", 0, "launches", 0, "plans", 0, "slot_literal"), [str(2**64)], "more than 64 bits"),
        (("entries", 0, "shapes", 0, "bucket", "inputs"), [[0]], "not a pair of an index and an axis"),
        (("entries", 0, "shapes", 0, "arena"), None, "the field 'arena' is missing"),
        (("version",), 0, "there is no version 0"),
        (("objects", "forward_0", 0, "speed"), 1, "unknown field"),
    ],
)
def test_a_mistake_is_named_by_its_place(tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    fields = json.loads(FULL.text())
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(GraphError, match=message):
        read_manifest(tmp_path)
