"""A package that is replaced while it is opened: all of what is opened is of one folder."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_package import change_manifest, write_handmade
from package.c_library import CallError, OpenedModel, run
from package.hand_made import Manifest, weights, write_package

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.package import model as model_module
from superkernel.package import opened_package, summary
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


def test_a_folder_that_comes_back_is_read_alone(packages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """While the library opens the package and Python reads its manifest, another one is in its place."""
    change_manifest(packages[1], lambda fields: fields.update(entries=fields["entries"][:1]))
    read, described = read_checksums, opened_package._with_structures

    def goes(folder: Any) -> Any:
        found = read(folder)
        exchange(*packages)
        return found

    def comes_back(*arguments: Any) -> Any:
        found = described(*arguments)
        exchange(*packages)
        return found

    monkeypatch.setattr(model_module, "read_checksums", goes)
    monkeypatch.setattr(opened_package, "_with_structures", comes_back)
    with sk.load_model(packages[0]) as model:
        assert model.description.name == "first"
        assert len(model.entries) > 1


def test_files_of_a_folder_that_comes_back_are_compared_alone(
    packages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages[1] / "more").write_text("a file that no list names")
    read, check = read_checksums, summary.check_files

    def goes(folder: Any) -> Any:
        found = read(folder)
        exchange(*packages)
        return found

    def comes_back(*arguments: Any, everything: bool) -> None:
        try:
            check(*arguments, everything=everything)
        finally:
            exchange(*packages)

    monkeypatch.setattr(summary, "read_checksums", goes)
    monkeypatch.setattr(summary, "check_files", comes_back)
    monkeypatch.setattr(summary, "read_summary", lambda folder: folder.read_json("manifest.json"))
    assert summary.verify(packages[0]).entries()["name"].text() == "first"


def test_what_a_path_leads_to_by_now_is_not_read(opened_and_beside: tuple[Path, Path]) -> None:
    paths = opened_and_beside
    found = []
    for path, other in (paths, paths[::-1]):
        descriptor = os.open(other, os.O_PATH)
        try:
            with OpenedModel(path, 1, descriptor=descriptor) as model, OpenedModel(path, 1) as of_path:
                found.append((named_sum(model, np.zeros(8, np.float32)), named_sum(of_path, np.zeros(8, np.float32))))
        finally:
            os.close(descriptor)
    assert found == [(ADD, SUM), (SUM, ADD)]


@pytest.fixture
def opened_and_beside(tmp_path: Path) -> tuple[Path, Path]:
    """They differ in the manifest, the weights and the code."""
    opened = write_package(tmp_path / "x.sk")

    def rename(fields: Manifest) -> None:
        fields["entries"][0]["name"] = "sum"

    beside = write_package(tmp_path / "y.sk", rename, {**weights(), "w": weights()["w"] * 2}, flags=("-DADDED=1",))
    exchange(opened, beside)
    return opened, beside


ADD, SUM = ("add", float(weights()["w"].sum())), ("sum", float(weights()["w"].sum() * 2 + 8))


def test_the_library_opens_one_folder(opened_and_beside: tuple[Path, Path], tmp_path: Path) -> None:
    opened, beside = opened_and_beside

    def replace() -> None:
        """As exports do: a folder that was there is removed, and does not come back."""
        exchange(opened, beside)
        shutil.copytree(beside, fresh := tmp_path / "fresh.sk")
        shutil.rmtree(beside)
        fresh.rename(beside)

    open_while(replace, opened)


def test_the_library_opens_one_folder_of_two_that_change_places(opened_and_beside: tuple[Path, Path]) -> None:
    def replace() -> None:
        exchange(*opened_and_beside)
        exchange(*opened_and_beside)

    open_while(replace, opened_and_beside[0])


def test_the_library_opens_one_folder_of_those_that_a_link_names(
    opened_and_beside: tuple[Path, Path], tmp_path: Path
) -> None:
    link, next_link = tmp_path / "current.sk", tmp_path / "next"

    def replace() -> None:
        for folder in opened_and_beside:
            next_link.symlink_to(folder)
            next_link.rename(link)

    replace()
    open_while(replace, link)


def open_while(replace: Callable[[], None], opened: Path) -> None:
    """Opens the package again and again while a thread replaces it; each time, all of it is of one folder."""
    ended = threading.Event()

    def replace_often() -> None:
        while not ended.is_set():
            replace()

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
    assert found <= {ADD, SUM}


def named_sum(model: OpenedModel, x: Any) -> tuple[str, float]:
    """The name of the first entry, and the sum of its outputs."""
    context, y = model.context(), np.zeros(8, np.float32)
    try:
        run(context, "add", [x], [y])
        return "add", float(y.sum())
    except CallError:
        run(context, "sum", [x], [y])
        return "sum", float(y.sum())
