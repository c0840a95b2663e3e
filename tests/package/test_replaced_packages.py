"""A package that is replaced while it is opened: all of what is opened is of one folder."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_package import change_manifest, write_handmade
from package.c_library import CallError, OpenedModel, run
from package.hand_made import Manifest, safetensors, weights, write_checksums, write_package

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.package import model as model_module
from superkernel.package import summary
from superkernel.package.checksums import read_checksums
from superkernel.package.writer import _exchange

OPENED = 200


@pytest.fixture
def packages(tmp_path: Path) -> tuple[Path, Path]:
    first = write_handmade(tmp_path / "first.sk")
    second = Path(shutil.copytree(first, tmp_path / "second.sk"))
    change_manifest(second, lambda fields: fields.update(name="second"))
    return first, second


def exchange(first: Path, second: Path) -> None:
    if not _exchange(first, second):
        pytest.skip("this file system cannot exchange folders")


@pytest.mark.parametrize("read", [sk.load_model, summary.summarise, summary.verify])
def test_what_was_read_of_a_replaced_folder_is_read_again(
    packages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]
) -> None:
    reads = []

    def replaced_once(folder: Path) -> Any:
        reads.append(folder)
        found = read_checksums(folder)
        if len(reads) == 1:
            exchange(*packages)
        return found

    for module in (model_module, summary):
        monkeypatch.setattr(module, "read_checksums", replaced_once)
    found = read(packages[0])
    assert (found.description if read is sk.load_model else found.manifest).name == "second"
    assert len(reads) > 1


def test_a_folder_that_is_replaced_again_and_again_is_refused(
    packages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(folder: Path) -> Any:
        exchange(*packages)
        return read_checksums(folder)

    monkeypatch.setattr(model_module, "read_checksums", replaced)
    with pytest.raises(BuildError, match=r"first\.sk was replaced 16 times while it was read; open it again"):
        sk.load_model(packages[0])


def test_the_library_opens_one_folder(tmp_path: Path) -> None:
    def rename(fields: Manifest) -> None:
        fields["entries"][0]["name"] = "sum"

    opened, beside = write_package(tmp_path / "x.sk"), write_package(tmp_path / "y.sk", rename)
    tensors = weights()
    (beside / "weights.safetensors").write_bytes(safetensors({**tensors, "w": tensors["w"] * 2}))
    write_checksums(beside)
    exchange(opened, beside)
    ended = threading.Event()

    def replace_often() -> None:
        """As exports do: a folder that was there is removed, and does not come back."""
        while not ended.is_set():
            exchange(opened, beside)
            shutil.copytree(beside, fresh := tmp_path / "fresh.sk")
            shutil.rmtree(beside)
            fresh.rename(beside)

    thread = threading.Thread(target=replace_often)
    thread.start()
    x, found = np.zeros(8, np.float32), set()
    try:
        for _ in range(OPENED):
            try:
                with OpenedModel(opened, threads=1) as model:
                    found.add(named_sum(model, x))
            except CallError as refused:
                assert "was replaced 16 times while it was read" in refused.sentence
    finally:
        ended.set()
        thread.join()
    assert found <= {("add", float(tensors["w"].sum())), ("sum", float(tensors["w"].sum() * 2))}


def named_sum(model: OpenedModel, x: Any) -> tuple[str, float]:
    """The name of the first entry, and the sum of its outputs."""
    context, y = model.context(), np.zeros(8, np.float32)
    try:
        run(context, "add", [x], [y])
        return "add", float(y.sum())
    except CallError:
        run(context, "sum", [x], [y])
        return "sum", float(y.sum())
