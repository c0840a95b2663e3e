"""libsuperkernel: bad packages and bad arguments: a code and a sentence that names what is wrong, never a crash."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from package.c_library import CallError, OpenedModel, Options, TensorView, call, library, run, run_index, view
from package.hand_made import (
    OBJECT,
    Manifest,
    place,
    safetensors,
    tensor,
    weights,
    write_checksums,
    write_package,
)

X, Y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages") / "hand_made.sk")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[OpenedModel]:
    with OpenedModel(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def context(model: OpenedModel) -> c_void_p:
    return model.context()


def refused(status: str, *words: str) -> Any:
    pattern = "(?s)" + "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(CallError, match=f"{pattern}SK_ERROR_{status}:")


# -- packages ----------------------------------------------------------------------------------------------------------


def test_what_is_no_package(tmp_path: Path) -> None:
    with refused("IO", "nowhere.sk", "No such file"):
        OpenedModel(tmp_path / "nowhere.sk")
    with refused("NOT_A_PACKAGE", "has no manifest.json"):
        OpenedModel(tmp_path)
    (tmp_path / "file.sk").write_text("hello")
    with refused("NOT_A_PACKAGE", "is a folder"):
        OpenedModel(tmp_path / "file.sk")


def edit_manifest(change: Callable[[Manifest], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        fields = json.loads((folder / "manifest.json").read_text())
        change(fields)
        (folder / "manifest.json").write_text(json.dumps(fields))
        write_checksums(folder)

    return edit


def flip(name: str, offset: int = -1) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        contents = bytearray((folder / name).read_bytes())
        contents[offset] ^= 1
        (folder / name).write_bytes(contents)

    return edit


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1]) and None


def link_out(folder: Path) -> None:
    outside = folder.parent / f"outside of {folder.name}"
    (folder / OBJECT).rename(outside)
    (folder / OBJECT).symlink_to(outside)


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Edits the header of the weights file."""

    def edit(folder: Path) -> None:
        raw = safetensors(weights())
        fields = json.loads(raw[8:4096])
        change(fields)
        (folder / "weights.safetensors").write_bytes(raw[:8] + json.dumps(fields).encode().ljust(4088) + raw[4096:])
        write_checksums(folder)

    return edit


def first_launch(fields: Manifest) -> Manifest:
    found: Manifest = fields["entries"][0]["shapes"][0]["launches"][0]
    return found


def meet_launch(fields: Manifest) -> Manifest:
    """Its object says what it was compiled for."""
    found: Manifest = fields["entries"][-1]["shapes"][0]["launches"][0]
    return found


def first_plan(fields: Manifest) -> Manifest:
    found: Manifest = first_launch(fields)["plans"][0]
    return found


def code(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """The object is another one, as checksums.json says."""

    def edit(folder: Path) -> None:
        raw = (folder / OBJECT).read_bytes()
        (folder / OBJECT).unlink()
        (folder / OBJECT).write_bytes(change(raw))
        write_checksums(folder)

    return edit


DAMAGES: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "another format": (edit_manifest(lambda m: m.update(format="zip")), "NOT_A_PACKAGE", ("is not a package",)),
    "a newer version": (edit_manifest(lambda m: m.update(version=2)), "VERSION", ("newer SuperKernel", "update")),
    "needs torch": (edit_manifest(lambda m: m.update(needs_torch="eig: why")), "UNSUPPORTED", ("torch", "eig: why")),
    "no checksums": (lambda f: (f / "checksums.json").unlink(), "CORRUPT", ("not finished",)),
    "a changed manifest": (flip("manifest.json"), "CORRUPT", ("manifest.json", "SHA-256")),
    "changed code": (flip(OBJECT), "CORRUPT", (OBJECT, "SHA-256 is [0-9a-f]{64}", "lists [0-9a-f]{64}")),
    "truncated weights": (cut("weights.safetensors"), "CORRUPT", ("weights.safetensors", "bytes instead of")),
    "no weights": (lambda f: (f / "weights.safetensors").unlink(), "IO", ("weights.safetensors",)),
    "a folder as weights": (
        lambda f: ((f / "weights.safetensors").unlink(), (f / "weights.safetensors").mkdir()), "IO", ("regular file",)
    ),
    "a link out of the folder": (link_out, "PATH", ("symbolic link out",)),
    "a path out of the folder": (
        edit_manifest(lambda m: m["objects"]["code"][0].update(file="../code.so")), "PATH", (r"\.\./code\.so",)
    ),
    "an absolute path": (edit_manifest(lambda m: m["objects"]["code"][0].update(file="/bin/sh")), "PATH", ("/bin/sh",)),
    "an unlisted file": (
        lambda f: (edit_manifest(lambda m: m["objects"]["code"][0].update(file="explain.txt"))(f),
                   (f / "explain.txt").write_text("")), "CORRUPT", ("does not list", "explain.txt")
    ),
    "not a shared object": (
        lambda f: ((f / OBJECT).write_text("text"), write_checksums(f)), "LOAD", (OBJECT, "cannot be loaded")
    ),
    "a missing symbol": (
        edit_manifest(lambda m: first_plan(m).update(entry="gone")), "LOAD", ("gone", "has no function")
    ),
    "another processor": (
        edit_manifest(lambda m: m["objects"]["code"][0].update(features=["warp_drive"])), "UNSUPPORTED", ("warp_drive",)
    ),
    "another architecture": (
        edit_manifest(lambda m: m["objects"]["code"][0].update(isa="vax")), "UNSUPPORTED", ("vax",)
    ),
    "a place outside": (
        edit_manifest(lambda m: first_launch(m)["arguments"][0].update(offset=4)), "CORRUPT",
        (r"entries\[0\]\.shapes\[0\]\.launches\[0\]\.arguments\[0\]", "do not lie in the 32 bytes")
    ),
    "an unknown weight": (
        edit_manifest(lambda m: first_launch(m)["arguments"][1].update(name="v")), "CORRUPT", ("no tensor 'v'",)
    ),
    "an unknown object": (
        edit_manifest(lambda m: first_launch(m).update(object="other")), "CORRUPT", ("no object 'other'",)
    ),
    "a slot behind its argument": (
        edit_manifest(lambda m: first_plan(m).update(slot_literal=["0", "0", "33", "0"])), "CORRUPT", ("slot 2",)
    ),
    "a slot without argument": (
        edit_manifest(lambda m: first_plan(m).update(slot_source=[0, 1, 2, 4])), "CORRUPT", ("slot_source",)
    ),
    "a dynamic op": (
        edit_manifest(lambda m: first_plan(m).update(slot_source=[0, 1, 2, -2])), "CORRUPT", ("slot_source",)
    ),
    "fewer cores than the code was compiled for": (
        edit_manifest(lambda m: meet_launch(m)["plans"][0].update(cores=1)), "CORRUPT", ("numbers of 'meet' differ",)
    ),
    "another slot than that of the code": (
        edit_manifest(lambda m: meet_launch(m)["plans"][0].update(slot_source=[1, 0])), "CORRUPT", ("numbers",)
    ),
    "no rendezvous for the code": (
        edit_manifest(lambda m: meet_launch(m)["plans"][0].update(rendezvous=0)), "CORRUPT", ("numbers",)
    ),
    "an argument that is too small for the code": (
        edit_manifest(lambda m: meet_launch(m)["arguments"][0].update(bytes=4)), "CORRUPT", ("sizes of arguments",)
    ),
    "a weight that the code writes to": (
        edit_manifest(lambda m: meet_launch(m)["arguments"].__setitem__(1, place("weight", 8, name="w"))), "CORRUPT",
        ("outputs of 'meet'",)
    ),
    "a copy that reaches too far": (
        edit_manifest(lambda m: m["entries"][4]["shapes"][0]["copies"][0].update(from_strides=[1, 5])), "CORRUPT",
        ("from_strides", "behind its place")
    ),
    "a copy that writes one element again and again": (
        edit_manifest(lambda m: m["entries"][4]["shapes"][0]["copies"][0].update(
            shape=[2**40], to_strides=[0], from_strides=[0])), "CORRUPT", ("writes more than its place has",)
    ),
    "inputs that no memory holds": (
        edit_manifest(lambda m: m["entries"][0]["shapes"][0].update(inputs=[tensor("x", "uint8", 2**45)] * 3)),
        "CORRUPT", ("the tensors are too large",)
    ),
    "a copy into an input": (
        edit_manifest(lambda m: m["entries"][4]["shapes"][0]["copies"][0]["to"].update({"in": "input"})), "CORRUPT",
        ("not written",)
    ),
    "a bucket of another size": (
        edit_manifest(lambda m: m["entries"][3]["shapes"][0]["bucket"].update(size=3)), "CORRUPT", ("bucket",)
    ),
    "a text as number": (
        edit_manifest(lambda m: first_plan(m).update(cores="two")), "CORRUPT", ("cores", "whole number")
    ),
    "a huge arena": (
        edit_manifest(lambda m: m["entries"][0]["shapes"][0].update(arena=2**62)), "CORRUPT", ("arena", "not between")
    ),
    "two entries of one name": (
        edit_manifest(lambda m: m["entries"][1].update(name="add")), "CORRUPT", ("two entries",)
    ),
    "a state without initial value": (header(lambda h: h.pop("counter")), "CORRUPT", ("counter", "initial value")),
    "offsets behind the weights": (
        header(lambda h: h["w"].update(data_offsets=[16, 48])), "CORRUPT", ("w.data_offsets", "not between")
    ),
    "a weight whose shape is not its size": (header(lambda h: h["w"].update(shape=[9])), "CORRUPT", ("contradict",)),
    "code that is cut short": (code(lambda raw: raw[:5000]), "LOAD", (OBJECT, "is cut short")),
    "a text as code": (code(lambda raw: b"text" * 100), "LOAD", (OBJECT, "invalid ELF header")),
    "an unknown dtype": (header(lambda h: h["w"].update(dtype="F8")), "CORRUPT", ("F8",)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_package_is_refused(tmp_path: Path, damage: str) -> None:
    edit, status, words = DAMAGES[damage]
    folder = write_package(tmp_path / "damaged.sk")
    edit(folder)
    with refused(status, *words) as refusal:
        OpenedModel(folder)
    assert str(folder) in refusal.value.sentence, "the package is named"


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1,}', "[1 2]", '{"a": 1, "a": 2}', '"\\u12"', "[" * 100000, "nul", '"\x01"', "01", "-", "{}}"],
)
def test_text_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_package(tmp_path / "text.sk")
    (folder / "manifest.json").write_text(text)
    write_checksums(folder)
    with refused("CORRUPT", "manifest.json, line 1"):
        OpenedModel(folder)


def test_verify_reads_everything_and_loads_nothing(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "verified.sk", lambda fields: first_plan(fields).update(entry="gone"))
    call("sk_package_verify", str(folder).encode())
    flip("weights.safetensors")(folder)
    with refused("CORRUPT", "weights.safetensors", "SHA-256"):
        call("sk_package_verify", str(folder).encode())


def mutate(value: Any, random_numbers: random.Random) -> Any:
    """One value somewhere inside is replaced, removed or repeated."""
    if isinstance(value, dict) and value:
        name = random_numbers.choice(list(value))
        changed = dict(value)
        if random_numbers.random() < 0.1:
            del changed[name]
        else:
            changed[name] = mutate(value[name], random_numbers)
        return changed
    if isinstance(value, list) and value:
        index = random_numbers.randrange(len(value))
        if random_numbers.random() < 0.15:
            return value[:index] + value[index + 1 :] if random_numbers.random() < 0.5 else [*value, value[index]]
        return [*value[:index], mutate(value[index], random_numbers), *value[index + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and random_numbers.random() < 0.6:
        return value + random_numbers.choice([-1, 1, 7, 64, 2**31, 2**63, -(2**63)])
    return random_numbers.choice([None, True, -1, 0, 1, 2**40, 1.5, "", "x", "../x", [], {}, [[]], "9" * 30])


def open_mutated(folder: Path, seeds: range) -> tuple[int, int]:
    """Opens mutated manifests; returns how many were refused and how many were opened."""
    original, counts = json.loads((folder / "manifest.json").read_text()), [0, 0]
    for seed in seeds:
        fields = mutate(original, random.Random(seed))
        edit_manifest(lambda old, new=fields: (old.clear(), old.update(new)))(folder)
        try:
            with OpenedModel(folder) as opened:
                opened.context()
            counts[1] += 1
        except CallError as error:
            assert error.sentence and error.status != "SK_ERROR_INTERNAL", (seed, error)
            counts[0] += 1
    return counts[0], counts[1]


def test_mutated_manifests_are_refused_with_a_sentence(tmp_path: Path) -> None:
    refusals, opened = open_mutated(write_package(tmp_path / "mutated.sk"), range(150))
    assert refusals > opened


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_a_call_beyond_every_bucket_is_told_the_largest(tmp_path: Path) -> None:
    def smaller_buckets(fields: Manifest) -> None:
        (largest,) = fields["entries"][3]["shapes"]
        fields["entries"][3]["shapes"] = [in_a_bucket(largest, 1), largest, in_a_bucket(largest, 2)]

    with OpenedModel(write_package(tmp_path / "three.sk", smaller_buckets)) as opened:
        context = opened.context()
        with refused("SHAPE", "input 'x'", r"must be float32\[2, 1 to 4 \(batch\), 3\]", "none of the entry's 3"):
            run(context, "rows", [np.zeros((2, 5, 3), np.float32)], [np.zeros((2, 5), np.float32)])
        with refused("SHAPE", "output 'y'", r"must be float32\[2, 3 \(batch\)\]"):
            run(context, "rows", [np.zeros((2, 3, 3), np.float32)], [np.zeros((2, 2), np.float32)])


def in_a_bucket(shape: Manifest, size: int) -> Manifest:
    arrays = {
        kind: [{**array, "shape": [2, size, *array["shape"][2:]]} for array in shape[kind]]
        for kind in ("inputs", "outputs")
    }
    return {**shape, **arrays, "bucket": {**shape["bucket"], "size": size}, "launches": []}


def test_arguments_of_another_dtype_or_shape_are_refused(context: c_void_p) -> None:
    with refused("DTYPE", "input 'x' is float64", r"must be float32\[8\]"):
        run(context, "add", [X.astype(np.float64)], [Y])
    with refused("SHAPE", r"input 'x' is float32\[7\]"):
        run(context, "add", [X[:7]], [Y])
    with refused("SHAPE", "output 'y'"):
        run(context, "add", [X], [Y.reshape(2, 4)])
    with refused("SHAPE", "batch", "1 to 4"):
        run(context, "rows", [np.zeros((2, 5, 3), np.float32)], [np.zeros((2, 5), np.float32)])
    with refused("SHAPE", "output 'y'"):
        run(context, "rows", [np.zeros((2, 2, 3), np.float32)], [np.zeros((2, 3), np.float32)])
    with refused("SHAPE", "output 'y' is", r"must be float32\[2, 2 \(batch\)\]"):
        run(context, "rows", [np.zeros((2, 2, 3), np.float32)], [np.zeros((2, 1), np.float32)])
    with refused("SHAPE", "size 5", "4"):
        run_index(context, 3, [X], [Y], 5)
    with refused("DTYPE", "which does not exist"):
        call("sk_run", context, b"add", byref(TensorView(X.ctypes.data, 77, 1, view(X).shape)), byref(view(Y)))
    with refused("SHAPE", "rank 40"):
        call("sk_run", context, b"add", byref(TensorView(X.ctypes.data, 0, 40, view(X).shape)), byref(view(Y)))


def test_outputs_that_overlap_are_refused(context: c_void_p) -> None:
    room = np.zeros(16, np.float32)
    with refused("ALIAS", "output 'y' overlaps input 'x'"):
        run(context, "add", [room[:8]], [room[7:15]])
    run(context, "add", [room[:8]], [room[8:]])


def test_null_and_misaligned_memory_is_refused(context: c_void_p) -> None:
    nowhere = TensorView(None, 0, 1, view(X).shape)
    with refused("ARGUMENT", "input 'x' has no memory"):
        call("sk_run", context, b"add", byref(nowhere), byref(view(Y)))
    with refused("ARGUMENT", "takes 1 inputs and 1 outputs; null"):
        call("sk_run", context, b"add", None, byref(view(Y)))
    odd = np.zeros(33, np.uint8)[1:].view(np.float32)
    with refused("ARGUMENT", "not aligned"):
        run(context, "add", [odd], [Y])
    for function, arguments in (("sk_run", (None, None, None)), ("sk_run_index", (0, 0, None, None))):
        with refused("ARGUMENT", "null"):
            call(function, context, *arguments)


def test_names_that_are_not_there(model: OpenedModel, context: c_void_p) -> None:
    with refused("NO_SUCH_ENTRY", "'ad'", "did you mean 'add'", "add, inside, count"):
        run(context, "ad", [X], [Y])
    with refused("NO_SUCH_ENTRY", "no entry 99; the package has 10"):
        run_index(context, 99, [X], [Y])
    with refused("NO_SUCH_STATE", "'count'", "its states are counter"):
        call("sk_state_get", context, b"count", c_void_p(Y.ctypes.data), c_size_t(8))
    with refused("SHAPE", "state 'counter' has 8 bytes; 4 were given"):
        call("sk_state_set", context, b"counter", c_void_p(Y.ctypes.data), c_size_t(4))
    index = c_int32()
    call("sk_entry_index", model.handle, b"rows", byref(index))
    assert index.value == 3


def test_closed_and_foreign_handles_are_refused(folder: Path, context: c_void_p) -> None:
    with OpenedModel(folder) as other:
        foreign = other.context()
        with refused("WRONG_MODEL", "one model"):
            call("sk_context_copy", foreign, context)
        with refused("IN_USE", "1 contexts"):
            call("sk_model_close", other.handle)
        closed = foreign
    with refused("ARGUMENT", "context is closed"):
        run(closed, "add", [X], [Y])
    with refused("ARGUMENT", "model is closed"):
        call("sk_model_close", other.handle)
    with refused("ARGUMENT", "context is null"):
        run(c_void_p(), "add", [X], [Y])
    with refused("ARGUMENT", "not a context"):
        run(other.handle, "add", [X], [Y])
    call("sk_model_close", None)


def test_a_check_inside_the_model_fails_the_call_only(context: c_void_p) -> None:
    y = np.zeros((), np.float32)
    with refused("KERNEL", "'check'", "index out of range in self", "call check_positive"):
        run(context, "check", [np.full((), -1, np.float32)], [y])
    with refused("KERNEL", "far below zero"):
        run(context, "check", [np.full((), -5, np.float32)], [y])
    with refused("KERNEL", "a kernel threw an exception", "call check_positive"):
        run(context, "check", [np.full((), -50, np.float32)], [y])
    run(context, "check", [np.full((), 5, np.float32)], [y])
    assert y == 5
    assert ctypes.CDLL("libstdc++.so.6")["_ZSt19uncaught_exceptionsv"]() == 0


def test_options_out_of_range_are_refused(folder: Path) -> None:
    for fields, words in (
        ({"threads": -1}, "threads is -1"),
        ({"wait": 9}, "wait is 9"),
        ({"cpus": [4095]}, "processor 4095"),
    ):
        with refused("ARGUMENT", words):
            OpenedModel(folder, **fields)  # type: ignore[arg-type]
    handle = c_void_p()
    with refused("ARGUMENT", "sizeof"):
        call("sk_model_open_with", str(folder).encode(), byref(Options(0)), byref(handle))
    later = (ctypes.c_uint8 * 256)()  # the options of a newer header
    ctypes.cast(later, ctypes.POINTER(ctypes.c_uint32))[0] = 256
    call("sk_model_open_with", str(folder).encode(), later, byref(handle))
    call("sk_model_close", handle)
    later[255] = 1
    with refused("ARGUMENT", "does not know"):
        call("sk_model_open_with", str(folder).encode(), later, byref(handle))


def test_names_of_codes_and_the_version() -> None:
    assert library().sk_status_name(14) == b"SK_ERROR_BUSY"
    assert library().sk_status_name(-3) == b"unknown status"
    assert library().sk_version().count(b".") == 2
    assert c_int64(library().sk_dtype_bytes(8)).value == 8
