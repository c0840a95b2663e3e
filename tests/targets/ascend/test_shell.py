"""superkernel compile --target ascend: an op list in, a folder out, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from targets.ascend.conftest import MIX, entry, metadata
from typer.testing import CliRunner

from superkernel.tools.cli import app

Write = Callable[..., Path]


def called(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.fixture
def ops(write: Write) -> Path:
    return write([entry("vec", args=["a", "b"]), entry("mix", args=["b", "c"])], vec=metadata(), mix=metadata(**MIX))


def test_compile_writes_source_descriptor_and_script(
    ops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    status, said = called("compile", ops, "--target", "ascend", "-o", tmp_path / "out")
    assert status == 0, said
    assert "ops_kernel.cpp" in said and "not built" in said and "build.sh" in said
    assert "auto_gen_ops_kernel" in (tmp_path / "out" / "ops_kernel.cpp").read_text()


def test_json_says_the_same(ops: Path, tmp_path: Path) -> None:
    status, said = called(
        "compile", ops, "--target", "ascend", "-o", tmp_path / "out", "--json", "--options", "early-start=0"
    )
    fields = json.loads(said)
    assert status == 0 and fields["ok"] and fields["target"] == "ascend" and fields["remarks"]
    assert fields["syncs"] == {"barrier": 1}


def test_a_chip_by_name_and_by_file(ops: Path, tmp_path: Path) -> None:
    status, said = called("compile", ops, "--target", "ascend", "--chip", "a2", "-o", tmp_path / "out")
    assert status == 0, said
    assert json.loads((tmp_path / "out" / "ops.json").read_text())["chip"] == "a2"
    small = {"cube_cores": 2, "vector_cores": 4, "name": "small"}
    from superkernel.targets.ascend.chips import FOLDER

    (tmp_path / "small.json").write_text(json.dumps(json.loads((FOLDER / "a3.json").read_text()) | small))
    status, said = called(
        "compile", ops, "--target", "ascend", "--chip", tmp_path / "small.json", "-o", tmp_path / "two"
    )
    assert status == 1 and "chip small" in said and not (tmp_path / "two").exists()


def test_an_unknown_chip(ops: Path, tmp_path: Path) -> None:
    status, said = called("compile", ops, "--target", "ascend", "--chip", "a4", "-o", tmp_path / "out")
    assert status == 1 and "known chips are a2, a3" in said and not (tmp_path / "out").exists()


def test_a_bad_list_writes_nothing(write: Write, tmp_path: Path) -> None:
    path = write([entry("vec")], vec=metadata(blockDim=None))
    status, said = called("compile", path, "--target", "ascend", "-o", tmp_path / "out")
    assert status == 1 and "blockDim" in said and not (tmp_path / "out").exists()


def test_a_list_without_a_target_says_so(ops: Path, tmp_path: Path) -> None:
    status, said = called("compile", ops, "-o", tmp_path / "out")
    assert status == 1 and "--target" in said and not (tmp_path / "out").exists()


def test_dump_shows_every_stage(ops: Path, tmp_path: Path) -> None:
    status, said = called("compile", ops, "--target", "ascend", "-o", tmp_path / "out", "--dump", tmp_path / "dump")
    assert status == 0, said
    assert "pair code" in (tmp_path / "dump" / "plan.txt").read_text()
    assert (tmp_path / "dump" / "validation.txt").read_text().startswith("valid")
    assert "BISHENG" in (tmp_path / "dump" / "commands.txt").read_text()


def test_verbose_lists_the_fields_that_were_not_read(write: Write, tmp_path: Path) -> None:
    path = write([entry("vec", kernel_name="a"), entry("vec", kernel_name="b")], vec=metadata(colour="red"))
    call = ["compile", path, "--target", "ascend", "-o", tmp_path / "out"]
    status, said = called(*call, "--verbose")
    assert status == 0, said
    assert f"not read: {path}: [].kernel_name (2 times)\nnot read: {tmp_path / 'vec.json'}: colour\n" in said
    assert "kernel_name" not in called(*call)[1]
    listed = json.loads(called(*call, "--verbose", "--json")[1])["ignored"]
    assert {"file": str(path), "field": "[1].kernel_name"} in listed and len(listed) == 3


def test_verbose_says_that_every_field_was_read(ops: Path, tmp_path: Path) -> None:
    status, said = called("compile", ops, "--target", "ascend", "-o", tmp_path / "out", "-v")
    assert status == 0 and "every field was read" in said
