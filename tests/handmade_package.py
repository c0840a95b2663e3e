"""A package written by hand, whose code is a few functions in C++: for tests that need neither torch nor an export."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from superkernel.package.library import library_path
from superkernel.package.manifest import (
    Manifest,
    PackagedBucket,
    PackagedEntry,
    PackagedLaunch,
    PackagedObject,
    PackagedPlan,
    PackagedShape,
    PackagedTensor,
    PackagePlace,
    PlaceKind,
)
from superkernel.package.weights_file import StoredTensor
from superkernel.package.writer import PackageContents, write_package
from superkernel.targets.cpu import build

SOURCE = """\
#include <superkernel/state.h>

template <class T> static T* slot(sk::Launch* launch, int index) { return reinterpret_cast<T*>(launch->slots[index]); }

extern "C" {
// output = x + y * w
void forward(sk::Launch* launch, int) {
    const float *x = slot<float>(launch, 0), *y = slot<float>(launch, 1), *w = slot<float>(launch, 2);
    float* output = slot<float>(launch, 3);
    for (int i = 0; i < 8; ++i) output[i] = x[i] + y[i] * w[i % 4];
}
// counter += step; output = counter
void count(sk::Launch* launch, int) {
    const int64_t* step = slot<int64_t>(launch, 0);
    int64_t *counter = slot<int64_t>(launch, 1), *output = slot<int64_t>(launch, 2);
    *counter += *step;
    *output = *counter;
}
// total += x; output = total
void add(sk::Launch* launch, int) {
    for (int i = 0; i < 4; ++i) {
        slot<float>(launch, 2)[i] = slot<float>(launch, 1)[i] += slot<float>(launch, 0)[i];
    }
}
// doubled = 2 * x, as the rows of a batch; bits = the bfloat16 input
void rows_4(sk::Launch* launch, int) {
    for (int i = 0; i < 4 * 3; ++i) slot<float>(launch, 1)[i] = 2 * slot<float>(launch, 0)[i];
}
void rows_8(sk::Launch* launch, int) {
    for (int i = 0; i < 8 * 3; ++i) slot<float>(launch, 1)[i] = 2 * slot<float>(launch, 0)[i];
}
void both(sk::Launch* launch, int) {
    for (int i = 0; i < 2; ++i) slot<uint16_t>(launch, 1)[i] = slot<uint16_t>(launch, 0)[i];
    for (int i = 0; i < 2; ++i) slot<bool>(launch, 2)[i] = slot<uint16_t>(launch, 0)[i] != 0;
}
}
"""
WEIGHT = np.arange(4, dtype=np.float32)
INSTRUCTION_SET = "aarch64" if platform.machine() == "aarch64" else "x86-64-v3"
OBJECT = f"objects/code.{INSTRUCTION_SET}.so"


def write_handmade(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """The package; `change` gets the JSON of the manifest before it is written."""
    code = compiled_code(path.parent)
    contents = PackageContents(
        _manifest(path.stem), _weights(), {OBJECT: code, "lib/libsuperkernel.so.1": library_path()}, "handmade\n"
    )
    package = write_package(path, contents)
    if change is not None:
        change_manifest(package, change)
    return package


def write_counter(path: Path) -> Path:
    """A package with the entry `add`, which adds its input to the state `total`."""
    shape = _shape(
        [_tensor("x", "float32", (4,))],
        [_tensor("output_0", "float32", (4,))],
        "add",
        [PackagePlace(PlaceKind.STATE, 0, 16, name="total")],
    )

    def change(fields: dict[str, Any]) -> None:
        fields["entries"] = [PackagedEntry("add", (shape,)).to_json()]
        fields["states"] = [_tensor("total", "float32", (4,)).to_json()]

    return write_handmade(path, change)


def compiled_code(folder: Path) -> Path:
    code, source = folder / "handmade.so", folder / "handmade.cpp"
    if not code.exists():
        source.write_text(SOURCE)
        include = Path(build.__file__).parent / "include"
        command = ["g++", "-shared", "-fPIC", "-O1", f"-I{include}", str(source), "-o", str(code)]
        subprocess.run(command, check=True, timeout=800)
    return code


def change_manifest(package: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes the manifest anew, and the checksums of all files."""
    manifest = package / "manifest.json"
    fields = json.loads(manifest.read_text())
    change(fields)
    manifest.write_text(json.dumps(fields))
    write_sums(package)


def write_sums(package: Path) -> None:
    """checksums.json as if the files had been exported as they are."""
    sums = package / "checksums.json"
    files = {}
    for path in sorted(package.rglob("*")):
        if path.is_file() and path != sums:
            raw = path.read_bytes()
            sha256 = hashlib.sha256(raw).hexdigest()
            files[path.relative_to(package).as_posix()] = {"bytes": len(raw), "sha256": sha256}
    sums.write_text(json.dumps({"version": 1, "files": files}))


def _weights() -> dict[str, StoredTensor]:
    total = np.zeros(4, np.float32)
    return {
        "w": _stored(WEIGHT, "float32"),
        "counter": _stored(np.array([10]), "int64"),
        "total": _stored(total, "float32"),
    }


def _stored(array: np.ndarray[Any, Any], dtype: str) -> StoredTensor:
    return StoredTensor(dtype, array.shape, memoryview(array).cast("B"))


def _manifest(name: str) -> Manifest:
    square = (2, 4)
    forward = _shape(
        [_tensor("x", "float32", square), _tensor("y", "float32", square)],
        [_tensor("output_0", "float32", square)],
        "forward",
        [PackagePlace(PlaceKind.WEIGHT, 0, 16, name="w")],
    )
    count = _shape(
        [_tensor("step", "int64", ())],
        [_tensor("output_0", "int64", (1,))],
        "count",
        [PackagePlace(PlaceKind.STATE, 0, 8, name="counter")],
    )
    rows = [
        _shape(
            [_tensor("x", "float32", (size, 3))],
            [_tensor("doubled", "float32", (size, 3))],
            f"rows_{size}",
            bucket=PackagedBucket("batch", size, ((0, 0),), ((0, 0),)),
        )
        for size in (4, 8)
    ]
    both = _shape(
        [_tensor("x", "bfloat16", (2,))], [_tensor("bits", "bfloat16", (2,)), _tensor("is_set", "bool", (2,))], "both"
    )
    return Manifest(
        name,
        "0.1.0",
        (
            PackagedEntry("forward", (forward,), "x + y * w"),
            PackagedEntry("count", (count,)),
            PackagedEntry("rows", tuple(rows)),
            PackagedEntry("both", (both,)),
        ),
        {"code": (PackagedObject(INSTRUCTION_SET, OBJECT),)},
        (_tensor("counter", "int64", (1,)),),
        torch="2.13.0",
    )


def _tensor(name: str, dtype: str, shape: tuple[int, ...]) -> PackagedTensor:
    return PackagedTensor(name, dtype, shape)


def _shape(
    inputs: list[PackagedTensor],
    outputs: list[PackagedTensor],
    symbol: str,
    between: list[PackagePlace] | None = None,
    bucket: PackagedBucket | None = None,
) -> PackagedShape:
    """A launch whose arguments are the inputs, then `between`, then the outputs."""
    arguments = [
        *(PackagePlace(PlaceKind.INPUT, 0, kind.nbytes, index) for index, kind in enumerate(inputs)),
        *(between or []),
        *(PackagePlace(PlaceKind.OUTPUT, 0, kind.nbytes, index) for index, kind in enumerate(outputs)),
    ]
    count = len(arguments)
    plan = PackagedPlan(
        cores=1,
        entry=symbol,
        slot_source=tuple(range(count)),
        slot_literal=(0,) * count,
        rendezvous=0,
        counters=0,
        copies_bytes=0,
        needs_team=False,
        arena_bytes=0,
        source_offset=(-1,) * count,
        source_bytes=(0,) * count,
        blocking_steps=0,
        steps=(f"call {symbol}",),
        stamp_room=0,
    )
    launch = PackagedLaunch("code", tuple(arguments), (plan,))
    return PackagedShape(tuple(inputs), tuple(outputs), bucket, 0, (launch,), ())
