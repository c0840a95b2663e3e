"""libsuperkernel and the code of a package for several processors: the best that this one can run is loaded."""

from __future__ import annotations

import ctypes
import shutil
from ctypes import byref, c_int32, c_size_t
from pathlib import Path

import numpy as np
import pytest
from package.c_library import CallError, OpenedModel, call, run_index
from package.hand_made import OBJECT, Manifest, expected_sum, write_checksums, write_package

X = np.arange(8, dtype=np.float32)


class ModelInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("exported_by", ctypes.c_char_p), ("instruction_set", ctypes.c_char_p),
        ("counts", c_int32 * 3), ("weight_bytes", c_size_t),
    )  # fmt: skip


def test_the_code_of_the_most_demanding_instruction_set_is_taken(tmp_path: Path) -> None:
    def variants(fields: Manifest) -> None:
        first, shapes = fields["objects"]["code"][0], fields["entries"][0]["shapes"]
        fields["objects"]["code"] = [
            {**first, "isa": "native-other", "features": ["warp_drive"], "file": "objects/other.so"},
            first,
            {**first, "isa": "x86-64-v2", "file": "objects/v2.so"},
        ]
        shapes.insert(0, {**shapes[0], "isa": ["native-other"]})

    folder = write_package(tmp_path / "sets.sk", variants)
    (folder / "objects/v2.so").write_bytes((folder / OBJECT).read_bytes())
    (folder / "objects/other.so").write_bytes(b"never loaded")
    write_checksums(folder)
    with OpenedModel(folder) as opened:
        info, y = ModelInfo(), np.zeros(8, np.float32)
        call("sk_model_describe", opened.handle, byref(info))
        assert (info.name, info.instruction_set, list(info.counts[:2])) == (b"hand-made", b"x86-64-v2", [10, 1])
        run_index(opened.context(), 0, [X], [y])  # by shape -1: of the two shapes one is for this processor
        np.testing.assert_array_equal(y, expected_sum(X))


def test_native_code_of_another_architecture_is_not_taken(tmp_path: Path) -> None:
    """Its needed flags alone do not tell: code that uses nothing special needs none."""

    def variants(fields: Manifest) -> None:
        first = fields["objects"]["code"][0]
        fields["objects"]["code"] = [
            {**first, "isa": "native-other", "features": [], "file": "objects/other.so"},
            first,
        ]

    folder = write_package(tmp_path / "sets.sk", variants)
    code = bytearray((folder / OBJECT).read_bytes())
    code[18:20] = (0xF3, 0)  # e_machine: RISC-V
    (folder / "objects/other.so").write_bytes(code)
    write_checksums(folder)
    with OpenedModel(folder) as opened:
        info = ModelInfo()
        call("sk_model_describe", opened.handle, byref(info))
        assert info.instruction_set != b"native-other"

    def alone(fields: Manifest) -> None:
        variants(fields)
        fields["objects"]["code"].pop()

    shutil.rmtree(folder)
    folder = write_package(tmp_path / "sets.sk", alone)
    (folder / "objects/other.so").write_bytes(code)
    write_checksums(folder)
    sentence = r"SK_ERROR_UNSUPPORTED: .*native-other \(this processor lacks the instructions of its architecture\)"
    with pytest.raises(CallError, match=sentence):
        OpenedModel(folder)
