"""Packages made without torch: launches of hand_made.cpp, a manifest that a test may change, checksums."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.cache import Cache, digest
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.cpu.package_link import CHECKS, EXCEPTIONS
from superkernel.targets.native.objects import CXX_FLAGS, text_key
from superkernel.targets.native.toolchain import find_toolchain, run

SOURCE = Path(__file__).with_name("hand_made.cpp")
Manifest = dict[str, Any]
Array = NDArray[Any]
DTYPES = {"float32": "F32", "int32": "I32", "uint8": "U8"}
OBJECT = "objects/code.x86-64.so"
WEIGHT = np.arange(8, dtype=np.float32) * 10
DATA_BEGIN = 4096  # of the weights file; a multiple of 2 MiB in packages that are exported


@cache
def code(*more_flags: str) -> Path:
    """The shared object with all entries of hand_made.cpp."""
    tools, store = find_toolchain(), Cache()
    flags = [*CXX_FLAGS, "-O1", "-march=x86-64", "-shared", f"-I{INCLUDE}", *more_flags]
    key = digest("hand-made package", text_key([SOURCE, CHECKS, EXCEPTIONS], [INCLUDE]), *flags, tools.identity)
    return store.make(
        key,
        ".so",
        lambda path: run(
            [*tools.cxx, *flags, str(SOURCE), str(CHECKS), str(EXCEPTIONS), "-o", str(path)], what="hand-made code"
        ),
    )


def tensor(name: str, dtype: str, *shape: int) -> Manifest:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def place(memory: str, nbytes: int, offset: int = 0, **which: Any) -> Manifest:
    return {"in": memory, **which, "offset": offset, "bytes": nbytes}


def plan(entry: str, cores: int, sources: int, **changes: Any) -> Manifest:
    fields = {
        "cores": cores, "entry": entry, "slot_source": list(range(sources)), "slot_literal": ["0"] * sources,
        "rendezvous": 0, "counters": 0, "copies_bytes": 0, "needs_team": False, "arena_bytes": 0,
        "source_offset": [-1] * sources, "source_bytes": [0] * sources, "blocking_steps": cores - 1,
        "steps": [f"call {entry}", "barrier"], "stamp_room": 0,
    }  # fmt: skip
    return {**fields, **changes}


def shape(inputs: list[Manifest], outputs: list[Manifest], **fields: Any) -> Manifest:
    return {"inputs": inputs, "outputs": outputs, "bucket": None, "arena": 0, "launches": [], "copies": [], **fields}


def launch(arguments: list[Manifest | None], *plans: Manifest) -> Manifest:
    return {"object": "code", "arguments": arguments, "plans": list(plans)}


def entry(name: str, *shapes: Manifest) -> Manifest:
    return {"name": name, "doc": "", "shapes": list(shapes)}


def manifest() -> Manifest:
    """Entries add, count, rows (a bucket), turned (a strided copy), check, work, wait, threads (two), meet (two)."""
    x, y = place("input", 32, index=0), place("output", 32, index=0)
    add = [x, place("weight", 32, name="w"), place("arena", 32, 64), y]
    inside = [x, place("weight", 32, name="w"), None, y]
    in_launch = {"arena_bytes": 64, "source_offset": [-1, -1, 32, -1], "source_bytes": [0, 0, 32, 0]}
    rows_in, rows_out = place("input", 96, index=0), place("output", 32, index=0)
    bucket = {"name": "batch", "size": 4, "inputs": [[0, 1]], "outputs": [[0, 1]]}
    turned = {
        "to": y, "from": place("arena", 32, 64), "dtype": "float32", "shape": [4, 2], "to_strides": [2, 1],
        "from_strides": [1, 4],
    }  # fmt: skip
    vector = [tensor("x", "float32", 8)]
    entries = [
        entry("add", shape(vector, [tensor("y", "float32", 8)], arena=96, launches=[
            launch(add, plan("add_reversed", 2, 4), plan("add_reversed", 1, 4))])),
        entry("inside", shape(vector, [tensor("y", "float32", 8)], launches=[
            launch(inside, plan("add_reversed", 2, 4, **in_launch))])),
        entry("count", shape([], [tensor("y", "float32", 2)], launches=[
            launch([place("state", 8, name="counter"), place("output", 8, index=0)], plan("count_up", 1, 2))])),
        entry("rows", shape([tensor("x", "float32", 2, 4, 3)], [tensor("y", "float32", 2, 4)], bucket=bucket,
                            launches=[launch([rows_in, rows_out], plan("sum_rows", 1, 2))])),
        entry("turned", shape(vector, [tensor("y", "float32", 4, 2)], arena=96, copies=[turned], launches=[
            launch([x, place("weight", 32, name="w"), place("arena", 32, 64), place("arena", 32)],
                   plan("add_reversed", 1, 4))])),
        entry("check", shape([tensor("x", "float32")], [tensor("y", "float32")], launches=[
            launch([place("input", 4, index=0), place("output", 4, index=0)], plan("check_positive", 1, 2))])),
        entry("work", shape([tensor("x", "float32")], [tensor("y", "float32")], launches=[
            launch([place("input", 4, index=0), place("output", 4, index=0)], plan("work", 1, 2))])),
        entry("wait", shape([tensor("go", "int32", 1)], [tensor("started", "int32", 1)], launches=[
            launch([place("input", 4, index=0), place("output", 4, index=0)], plan("wait_for_flag", 1, 2))])),
        entry("threads", shape([], [tensor("y", "int32", 2)], launches=[
            launch([place("output", 8, index=0)], plan("tell_threads", 2, 1), plan("tell_threads", 1, 1))])),
        entry("meet", shape([tensor("x", "int32", 2)], [tensor("y", "int32", 2)], launches=[
            launch([place("input", 8, index=0), place("output", 8, index=0)],
                   plan("meet", 2, 2, rendezvous=1, needs_team=True))])),
    ]  # fmt: skip
    return {
        "format": "superkernel package", "version": 1, "superkernel": "0.1.0", "name": "hand-made", "needs_torch": "",
        "options": "", "torch": "", "states": [tensor("counter", "float32", 2)],
        "objects": {"code": [{"isa": "x86-64", "file": OBJECT, "features": []}]}, "entries": entries,
    }  # fmt: skip


def weights() -> dict[str, Array]:
    return {"w": WEIGHT, "counter": np.array([5, -1], np.float32)}


def safetensors(tensors: Mapping[str, Array], data_begin: int = DATA_BEGIN) -> bytes:
    header, data = {}, bytearray()
    for name, array in tensors.items():
        raw = array.tobytes()
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": ends}
        data += raw
    text = json.dumps(header).encode().ljust(data_begin - 8)
    return struct.pack("<Q", len(text)) + text + data


def write_checksums(folder: Path) -> None:
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "checksums.json"
    }
    files = {name: {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()} for name, raw in contents.items()}
    (folder / "checksums.json").write_text(json.dumps({"version": 1, "files": files}))


def write_package(
    folder: Path,
    change: Callable[[Manifest], object] = lambda fields: None,
    tensors: Mapping[str, Array] | None = None,
    flags: Sequence[str] = (),
    data_begin: int = DATA_BEGIN,
) -> Path:
    """A package in a new folder; `change` edits the manifest before its checksum is taken; `flags` compile the code."""
    (folder / "objects").mkdir(parents=True)
    (folder / OBJECT).write_bytes(code(*flags).read_bytes())
    fields = copy.deepcopy(manifest())
    change(fields)
    (folder / "manifest.json").write_text(json.dumps(fields))
    contents = safetensors(weights() if tensors is None else tensors, data_begin)
    (folder / "weights.safetensors").write_bytes(contents)
    write_checksums(folder)
    return folder


def expected_sum(x: Array) -> Array:
    return (x + WEIGHT)[::-1]
