"""ops.json under random content: an OpsFile, or an error of ours that names the file; nothing else."""

from __future__ import annotations

import copy
import json
import string
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superkernel.errors import SuperKernelError
from superkernel.model.graph import build_graph
from superkernel.model.opsfile import OpsFile, read_ops
from superkernel.model.subkernel import SubKernel

VALID: dict[str, Any] = {
    "name": "chain",
    "target": "cpu",
    "options": "early-start=1:stream-fusion=1",
    "kernels": {
        "add": {
            "source": "add.cpp",
            "symbol": "add",
            "block_dim": 2,
            "grid": [2, 1, 1],
            "threads": [1, 1, 1],
            "shared": 0,
            "params": ["in:x:float32[8]@block", "in:y", "out:z:float32[8]"],
            "core": "any",
            "op_type": "Add",
            "sync_all": False,
            "early_start": ["x"],
            "flags": ["-DFAST"],
        },
        "pick": {
            "object": "pick.o",
            "block_dim": 4,
            "params": ["inout:x", "scalar:by:float32", "workspace:w"],
            "variants": {"0": "small", "7": "large"},
            "libraries": ["m"],
        },
    },
    "ops": [
        {"kernel": "add", "args": ["a", "b", "t"], "send": [1, "done"]},
        {"kernel": "pick", "args": ["t", 0.5, "w"], "task": "dynamic", "name": "picked"},
        {"kernel": "add", "args": [{"name": "t", "offset": 8}, "b", "c"], "stream": 1, "recv": [1], "task": "normal"},
    ],
}
TARGETS = [
    "add",
    "pick",
    "a",
    "t",
    "in:x",
    "out:z:int8[4]",
    "early-start=0",
    "dynamic",
    "cube",
    "add.cpp",
    "name",
    "args",
]
WORDS = st.sampled_from([*TARGETS, "", "0", "-1", "\0", "\ud800", "../x", "x" * 300, "/", "é\u202e"])
NUMBERS = st.integers(-3, 5) | st.integers() | st.floats() | st.sampled_from([2**63, 10**39, 10**60, -0.0, 1e300])
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ops")
    for name in ("add.cpp", "pick.o"):
        (home / name).write_text("")
    return home


def read(folder: Path, content: bytes) -> OpsFile | None:
    """What the file says, or None if it was refused by an error that names it."""
    path = folder / "ops.json"
    path.write_bytes(content)
    try:
        return read_ops(path)
    except SuperKernelError as refused:
        assert str(refused).startswith(f"{path}: ")
        return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    """The valid file after one to three changes: a value replaced, removed, copied elsewhere, or its key renamed."""
    whole: Any = {"file": copy.deepcopy(VALID)}
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(whole)[1:]))
        holder = whole
        for key in path:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "copy", "rename"])):
            case "remove" if path:
                del holder[last]
            case "copy":
                source: Any = whole
                for key in draw(st.sampled_from(places(whole))):
                    source = source[key]
                holder[last] = copy.deepcopy(source)
            case "rename" if path and isinstance(holder, dict):
                holder[draw(WORDS)] = holder.pop(last)
            case _:
                holder[last] = draw(VALUES)
    file = whole["file"]
    return file


def test_the_file_that_is_mutated_is_valid(folder: Path) -> None:
    assert read(folder, json.dumps(VALID).encode()) is not None


@given(content=VALUES)
def test_any_json_value_is_read_or_refused(folder: Path, content: Any) -> None:
    read(folder, json.dumps(content).encode())


@given(content=mutations())
def test_any_change_of_values_is_read_or_refused(folder: Path, content: Any) -> None:
    read(folder, json.dumps(content).encode())


@given(content=mutations())
def test_what_was_read_makes_a_graph_or_is_refused(folder: Path, content: Any) -> None:
    if found := read(folder, json.dumps(content).encode()):
        with suppress(SuperKernelError):
            build_graph(found.ops, found.name, found.options.stream_fusion)


@given(st.data())
def test_any_change_of_bytes_is_read_or_refused(folder: Path, data: st.DataObject) -> None:
    content = bytearray(json.dumps(VALID, indent=1).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 6)))
        content[start:end] = data.draw(st.binary(max_size=4) | st.text(string.punctuation, max_size=3).map(str.encode))
    read(folder, bytes(content))


@given(content=st.binary(max_size=64))
@example(content=b"\xef\xbb\xbf")
@example(content=b"\xff\xfe{\x00}\x00")
def test_any_bytes_are_read_or_refused(folder: Path, content: bytes) -> None:
    read(folder, content)


@given(changes=st.dictionaries(st.sampled_from(sorted(VALID["kernels"]["add"])), VALUES, max_size=3))
def test_any_kernel_of_its_own_is_read_or_refused(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "add.json"
    path.write_text(json.dumps(VALID["kernels"]["add"] | changes))
    try:
        SubKernel.from_json(path)
    except SuperKernelError as refused:
        assert str(refused).startswith(f"{path}: ")
