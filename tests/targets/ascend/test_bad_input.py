"""Every field of op lists and metadata missing, doubled or wrong: an error with file and field, and no file written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from targets.ascend.conftest import MIX, TILED, arch, entry, metadata, read, refused
from targets.ascend.device_lists import archive_of, device_object
from typer.testing import CliRunner

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.targets import find_target
from superkernel.tools.cli import app

Write = Callable[..., Path]
Steps = tuple[str | int, ...]  # from the top of a file to a field

NO_TEXT: tuple[Any, ...] = (3, True, [], {}, "", "  ", "a\nb")
NO_TRUTH: tuple[Any, ...] = (1, "yes", [], {})
NO_NUMBER: tuple[Any, ...] = ("8", True, 1.5, [], {})


@dataclass(frozen=True)
class Row:
    """A field: its file, its place there, values that it cannot have, and what is said when it is missing."""

    file: str
    place: Steps
    wrong: tuple[Any, ...]
    missing: str = ""  # empty: it may be

    @property
    def field(self) -> str:
        return str(self.place[-1])


FUNCTION: Steps = ("sub_operator_kernel_name", "AiCore")
KEYS: Steps = ("sub_operator_kernel_name", "dynamic_func_names")
NO_OPTIONS: tuple[Any, ...] = (3, [], "early-start", "early-start=9", '"erly-start=1"', "early-start=0")
NO_EVENTS: tuple[Any, ...] = ([1.5], [[]], [True], {}, [""])
NO_OBJECTS: tuple[Any, ...] = (*NO_TEXT, [3], ["../tiled.o"], "tilde.o")
NO_PARAMS: tuple[Any, ...] = ("x", 3, {}, [3], [""], ["in:x", "in:x"], ["inn:x"], ["in:x:float33"])
OTHER_CHIP = {"dav-c310-vec": {"func_name": "few", "obj_files": "tiled.o"}}
ROWS = (
    Row("ops.json", ("op_list",), (3, {}, "x", [], [3], [None], [[]]), "neither op_list nor kernels and ops"),
    Row("ops.json", ("name",), NO_TEXT),
    Row("ops.json", ("target",), NO_TEXT),
    Row("ops.json", ("options",), NO_OPTIONS),
    Row("ops.json", ("super_kernel_options",), NO_OPTIONS),
    Row(
        "ops.json",
        ("op_list", 0, "json_path"),
        (*NO_TEXT, "nowhere.json", "."),
        "[0]: the field 'json_path' is missing",
    ),
    Row("ops.json", ("op_list", 0, "bin_path"), (*NO_TEXT, "nowhere.a", "."), "[0]: the field 'bin_path' is missing"),
    Row("ops.json", ("op_list", 0, "stream_id"), (*NO_NUMBER, -2)),
    Row("ops.json", ("op_list", 0, "task_type"), (*NO_TEXT, "dynamik")),
    Row("ops.json", ("op_list", 0, "send_event_list"), NO_EVENTS),
    Row("ops.json", ("op_list", 0, "recv_event_list"), NO_EVENTS),
    Row("ops.json", ("op_list", 0, "name"), NO_TEXT),
    Row("ops.json", ("op_list", 0, "args"), ("ab", 3, {}, ["a"], ["a", "b", "c"], ["a", []], ["a", {"offset": 1}])),
    Row("tiled.json", ("kernelName",), (*NO_TEXT, "no good", "while", "2nd"), "'kernelName' is missing"),
    Row("tiled.json", ("blockDim",), (*NO_NUMBER, 0, -1, 70000), "'blockDim' is missing"),
    Row("tiled.json", ("sub_operator_kernel_type",), (*NO_TEXT, "KERNEL_TYPE_AIV"), "'sub_operator_kernel_type' is"),
    Row("tiled.json", ("sub_operator_kernel_name",), (3, [], "f", {}, OTHER_CHIP), "'sub_operator_kernel_name' is"),
    Row("tiled.json", FUNCTION, (3, [], {}), "no entry AiCore or dav-c220-vec for KERNEL_TYPE_AIV_ONLY on chip a3"),
    Row("tiled.json", (*FUNCTION, "func_name"), (*NO_TEXT, "2nd", "no_such_function"), "'func_name' is missing"),
    Row("tiled.json", (*FUNCTION, "obj_files"), NO_OBJECTS, "'obj_files' is missing"),
    Row("tiled.json", (*FUNCTION, "obj_files_split1"), NO_OBJECTS),
    Row("tiled.json", ("sub_operator_params",), NO_PARAMS, "'sub_operator_params' is missing"),
    Row("tiled.json", ("sub_operator_early_start_set_flag",), NO_TRUTH, "early_start_set_flag' is missing"),
    Row("tiled.json", ("sub_operator_early_start_wait_flag",), NO_TRUTH, "early_start_wait_flag' is missing"),
    Row("tiled.json", ("split_mode",), (*NO_NUMBER, 0, 65, 3), "has obj_files_split1, but the file has no split_mode"),
    Row("tiled.json", ("sub_op_with_sync_all",), NO_TRUTH),
    Row("tiled.json", ("sub_operator_op_type",), NO_TEXT),
    Row("tiled.json", ("sub_operator_call_dcci_before_kernel_start",), NO_TRUTH),
    Row("tiled.json", ("sub_operator_call_dcci_after_kernel_end",), NO_TRUTH),
    Row("tiled.json", ("sub_operator_call_dcci_disable_on_kernel",), NO_TRUTH),
    Row("tiled.json", ("debugOptions",), (3, {}, "print f!", ["a b"])),
    Row("tiled.json", ("debugBufSize",), (*NO_NUMBER, -1, 0, 2**60), "'debugBufSize' is missing"),
    Row("tiled.json", ("superkernel_call",), (*NO_TEXT, "pointer", "POINTERS")),
    Row("tiled.json", ("superkernel_protocol",), (*NO_TEXT, "can", "subkernel")),
    Row("late.json", KEYS, (3, [], {}, {"x": {}}, {"01": {}}, {"1.5": {}}, {"": {}}, {"9" * 20: {}}), "'func_name' is"),
    Row("late.json", (*KEYS, "7"), (3, [], {}, "few", OTHER_CHIP), "no tiling key at all"),
    Row(
        "late.json",
        (*KEYS, "7", "AiCore"),
        (3, [], "", "2nd", "no_such_function", {}),
        "AiCore or dav-c220-vec of tiling",
    ),
    Row("late.json", (*KEYS, "7", "kernel_type"), (*NO_TEXT, "KERNEL_TYPE_AIV", "KERNEL_TYPE_MIX_AIC_1_2")),
)
by_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.file}-{'.'.join(map(str, row.place))}")


def documents() -> dict[str, Any]:
    """A list and its metadata with every field in use."""
    copies = {"func_name": "few", "obj_files": "tiled.o", "obj_files_split1": ["tiled_copy.o"]}
    keys = {"7": {"AiCore": "few", "kernel_type": "KERNEL_TYPE_AIV_ONLY"}}
    return {
        "ops.json": {
            "op_list": [
                entry("tiled", args=["a", "b"], name="first", send_event_list=[1]),
                entry("tiled", json_path="late.json", task_type="dynamic", recv_event_list=[1]),
            ],
            "name": "whole",
            "target": "ascend",
            "options": "early-start=1",
            "super_kernel_options": '"early-start=1"',
        },
        "tiled.json": metadata(
            "tiled",
            sub_operator_kernel_name={"AiCore": copies},
            split_mode=2,
            sub_op_with_sync_all=True,
            sub_operator_op_type="Tiled",
            sub_operator_call_dcci_before_kernel_start=True,
            sub_operator_call_dcci_after_kernel_end=True,
            sub_operator_call_dcci_disable_on_kernel=False,
            debugOptions="printf",
            debugBufSize=4096,
            superkernel_call="slot_index",
            superkernel_protocol="cann",
        ),
        "late.json": metadata(
            "late",
            sub_operator_kernel_name={"AiCore": {"obj_files": "tiled.o"}, "dynamic_func_names": keys},
        ),
    }


def text_of(value: Any, twice: Steps = ()) -> str:
    """JSON in which the field at `twice` stands twice."""
    if isinstance(value, list):
        return f"[{', '.join(text_of(item, twice[1:] if twice[:1] == (i,) else ()) for i, item in enumerate(value))}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    fields = []
    for key, item in value.items():
        inside = twice[1:] if twice[:1] == (key,) else ()
        fields += [f"{json.dumps(key)}: {text_of(item, inside)}"] * (2 if twice == (key,) else 1)
    return f"{{{', '.join(fields)}}}"


def changed(files: dict[str, Any], row: Row, *value: Any) -> dict[str, Any]:
    """The documents with one field changed, or taken out."""
    inside = files[row.file]
    for step in row.place[:-1]:
        inside = inside[step]
    if value:
        inside[row.place[-1]] = value[0]
    else:
        del inside[row.place[-1]]
    return files


@pytest.fixture
def put(write: Write, tmp_path: Path) -> Callable[..., Path]:
    """Writes the documents beside the archives; gives the list's path."""

    def written(files: dict[str, Any], twice: Row | None = None) -> Path:
        write([])
        for name, value in files.items():
            place = twice.place if twice is not None and twice.file == name else ()
            (tmp_path / name).write_text(text_of(value, place))
        return tmp_path / "ops.json"

    return written


def test_the_documents_are_right_before_they_are_changed(put: Callable[..., Path]) -> None:
    described = read(put(documents()))
    assert len(described.ops) == 2 and described.name == "whole" and not described.ignored


@by_row
def test_a_field_is_missing(put: Callable[..., Path], row: Row) -> None:
    path = put(changed(documents(), row))
    if row.missing:
        refused(path, row.file, row.missing)
    else:
        assert read(path).ops


@by_row
def test_a_field_stands_twice(put: Callable[..., Path], row: Row) -> None:
    refused(put(documents(), row), row.file, f"'{row.field}' stands twice")


@by_row
def test_a_field_is_wrong(put: Callable[..., Path], row: Row) -> None:
    for value in row.wrong:
        refused(put(changed(documents(), row, value)), row.file, row.field)


@pytest.mark.parametrize(
    ("top", "words"),
    [
        ([], "the list of ops is empty"),
        (3, "ops.json"),
        ({"op_lsit": []}, "did you mean 'op_lsit'?"),
        ([{"json_pth": "x", "bin_path": "y"}], "'json_path' is missing (did you mean 'json_pth'?)"),
    ],
)
def test_the_list_itself_is_wrong(write: Write, top: object, words: str) -> None:
    refused(write(top), "ops.json", words)


def test_an_archive_without_the_object(write: Write) -> None:
    path = write([entry("vec", bin_path="empty.a")], vec=metadata())
    refused(path, "vec.json", "sub_operator_kernel_name.AiCore", "no object 'vec.o'", "it holds nothing")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("KERNEL_TYPE_MIX_AIC_1_1", "dav-c220-cube"),
        ("KERNEL_TYPE_MIX_AIC_1_0", "dav-c220-cube"),
        ("KERNEL_TYPE_MIX_AIV_1_0", "dav-c220-vec"),
    ],
)
def test_a_mix_kernel_has_no_function_for_any_core(write: Write, kind: str, wanted: str) -> None:
    path = write([entry("vec")], vec=metadata(sub_operator_kernel_type=kind))
    refused(path, "vec.json", "sub_operator_kernel_name", f"no entry {wanted} for {kind}", "it has AiCore")


def test_a_static_op_of_a_kernel_with_tiling_keys_only(write: Write) -> None:
    path = write([entry("tiled")], tiled=metadata(**TILED))
    refused(path, "tiled.json", "sub_operator_kernel_name", "its op needs task_type 'dynamic'")


def test_one_tiling_key_in_two_spellings(write: Write) -> None:
    keys = {key: {"AiCore": {"func_name": "few", "obj_files": "tiled.o"}} for key in ("-1", str(2**64 - 1))}
    names = {"sub_operator_kernel_name": {"dynamic_func_names": keys}}
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata(**TILED | names))
    refused(path, "tiled.json", str(2**64 - 1), "tiling key -1 stands twice")


def test_a_function_by_name_without_objects(write: Write) -> None:
    names = {"sub_operator_kernel_name": {"dynamic_func_names": {"1": {"AiCore": "few"}}}}
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata(**TILED | names))
    refused(path, "tiled.json", "dynamic_func_names.1.AiCore", "sub_operator_kernel_name.AiCore has no obj_files")


def test_a_copy_is_left_out(write: Write) -> None:
    names = arch(func_name="few", obj_files="tiled.o", obj_files_split2="tiled_copy.o")
    path = write([entry("tiled")], tiled=metadata("tiled", split_mode=3, sub_operator_kernel_name=names))
    refused(path, "tiled.json", "AiCore", "has obj_files_split2: obj_files_split1 is missing")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (["in:x", "y"], ("sub_operator_params[1]", "'y' has no kind", "as in 'in:y'")),
        (["in:x", "scalar:n:int32"], ("sub_operator_params", "'n' is a scalar")),
    ],
)
def test_a_plain_kernel_says_the_kinds_of_its_pointers(write: Write, params: list[str], words: tuple[str, ...]) -> None:
    path = write([entry("vec")], vec=metadata(superkernel_call="pointers", sub_operator_params=params))
    refused(path, "vec.json", *words)


def test_a_dynamic_op_on_a_chip_without_its_cores(write: Write) -> None:
    chip = find_target("ascend").chip_fields()
    assert chip is not None
    path = write([entry("mix", task_type="dynamic")], mix=metadata(**MIX))
    refused(path, "mix.json", "blockDim", "has not the cores of one block", chip={**chip, "vector_cores": 1})


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ("split-mode=4", {"split_mode": 2}, ("split-mode=4", "split_mode 2")),
        (
            "early-start=0",
            {"sub_operator_early_start_set_flag": True},
            ("early-start=0", "says sub_operator_early_start_set_flag:", "use early-start=1"),
        ),
        (
            "early-start=2",
            {"sub_operator_early_start_wait_flag": True},
            ("early-start=2", "says sub_operator_early_start_wait_flag:", "use early-start=1"),
        ),
        (
            "stream-fusion=1",
            {"sub_operator_early_start_set_flag": True, "sub_operator_early_start_wait_flag": True},
            ("stream-fusion=1", "set_flag and sub_operator_early_start_wait_flag:", "use stream-fusion=0"),
        ),
        ("feed-sync-all=0", {"sub_op_with_sync_all": True, "blockDim": 2}, ("calls sync_all", "Set feed-sync-all=1")),
        ("debug-aiv-num=4", {}, ("debug-aiv-num=4", "needs 0 cube and 8 vector cores")),
    ],
)
def test_options_beside_the_list_that_contradict_metadata(
    write: Write, tmp_path: Path, options: str, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    listed = [entry("vec", args=["a", "b"]), entry("mix", args=["c", "d"], stream_id=1)]
    path = write(
        {"super_kernel_options": f'"{options}"', "op_list": listed}, vec=metadata(**changes), mix=metadata(**MIX)
    )
    called = CliRunner().invoke(app, ["compile", str(path), "--target", "ascend", "-o", str(tmp_path / "out")])
    assert called.exit_code == 1 and not (tmp_path / "out").exists()
    for word in ("vec_0", *words):
        assert word in called.output, called.output
    assert "vec.json" in called.output or options.startswith("debug")


def test_a_device_object_is_not_launched_without_cann(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.a").write_bytes(archive_of({"vec.o": device_object(["vec_func"])}))
    described = read(write([entry("vec", bin_path="mine.a", args=["a", "b"])], vec=metadata()))
    given = {name: np.zeros(16, np.int32) for name in ("a", "b")}
    kernel = sk.compile(described.ops, described.name, described.options, "ascend")
    with kernel, pytest.raises(sk.LaunchError, match=r"CANN.*k\.emulate"):
        kernel(given)
    assert not any(array.any() for array in given.values())


CHANGES = 100
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 2**70, 1.5, "", "x", "in:x", "KERNEL_TYPE_AIC_ONLY", "\u00fc", "a" * 5000),
    *([], [[]], ["few"], [1, 2], {}, {"": {}}, {"1": "few"}, {"AiCore": "few"}),
)


def places_in(value: Any, place: Steps = ()) -> Iterator[Steps]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in pairs:
        yield (*place, key)
        yield from places_in(inside, (*place, key))


def test_any_value_anywhere_is_read_or_refused(put: Callable[..., Path]) -> None:
    random, outcomes = Random(16), Counter[bool]()
    for _ in range(CHANGES):
        files = documents()
        for _ in range(random.randrange(1, 4)):
            name = random.choice(list(files))
            place = random.choice(list(places_in(files[name])))
            changed(files, Row(name, place, ()), *deepcopy(random.choice([(), *((junk,) for junk in JUNK)])))
        try:
            read(put(files))
            outcomes[True] += 1
        except SuperKernelError as error:
            assert any(name in str(error) for name in (*files, "tiled.a")), str(error)
            outcomes[False] += 1
    assert outcomes[True] and outcomes[False]
