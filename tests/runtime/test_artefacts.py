"""A saved super kernel runs again; a folder that is half of one, of another version, or none, is refused in words."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, child, compiled, kernel, vector

import superkernel as sk
from superkernel import BuildError, Op, targets
from superkernel.runtime.checksums import CHECKSUMS, write_checksums

MANIFEST = "superkernel.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    number = kernel("store_float64", "scalar:value:float64", "out:out:int64[1]")
    ops = [Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"], name="second"), Op(number, [float("nan"), "n"])]
    with compiled(*ops) as k:
        yield k.save(tmp_path_factory.mktemp("saved") / "artefact")


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def refusal(folder: Path | str, *words: str) -> None:
    with pytest.raises(BuildError) as caught:
        sk.load(folder)
    for word in words:
        assert word in str(caught.value)


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    reseal(folder)


def reseal(folder: Path) -> None:
    """As if the files that are there now had been saved."""
    write_checksums(folder, {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CHECKSUMS})


def test_a_saved_kernel_runs_in_a_process_without_a_compiler(saved: Path, tmp_path: Path) -> None:
    code = f"""
        import numpy as np, superkernel as sk
        a, b = np.ones(12, np.float32), np.full(12, 2, np.float32)
        with sk.load({str(saved)!r}) as k:
            made = k({{"a": a, "b": b}})
        assert (made["c"] == 5).all() and np.isnan(made["n"].view(np.float64)).all()
        print(k.name, len(k.graph.nodes))
    """
    done = child(code, PATH=str(tmp_path), CXX="", SUPERKERNEL_CACHE=str(tmp_path / "cache"))
    assert done.stdout == "inputs 3\n", done.stderr


def test_a_loaded_kernel_refuses_bad_buffers_like_any_other(saved: Path) -> None:
    with sk.load(saved) as k, pytest.raises(sk.LaunchError, match=r"super_kernel_scope 'inputs'.*'a'.*float64"):
        k({"a": np.ones(12), "b": vector()})


def test_saving_again_over_a_loaded_artefact_leaves_it_running(copy: Path) -> None:
    with sk.load(copy) as first:
        with compiled(Op(ADD, ["a", "b", "c"])) as k:
            k.save(copy)
        with sk.load(copy) as second:
            assert len(second.graph.nodes) == 1
            assert (second({"a": vector(), "b": vector(2)})["c"] == 3).all()
        assert (first({"a": vector(), "b": vector(2)})["c"] == 5).all()
    assert not list(copy.glob("unfinished*"))


@pytest.mark.parametrize(
    "name", [MANIFEST, CHECKSUMS, "kernel.so", "runtime.so", "source.cpp", "processor.txt", "plan.txt"]
)
def test_a_file_that_is_missing(copy: Path, name: str) -> None:
    (copy / name).unlink()
    refusal(copy, str(copy), name)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize(
    "name", [MANIFEST, CHECKSUMS, "kernel.so", "runtime.so", "source.cpp", "processor.txt", "plan.txt"]
)
def test_a_file_that_is_half_written(copy: Path, name: str, share: float) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[: int(len(whole) * share)])
    refusal(copy, str(copy / name))


def test_a_file_that_was_changed(copy: Path) -> None:
    raw = bytearray((copy / "kernel.so").read_bytes())
    raw[len(raw) // 2] ^= 1
    (copy / "kernel.so").write_bytes(raw)
    refusal(copy, "kernel.so", "not what was saved")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda manifest: manifest.update(version=1), ("version 1", "reads version 9", "compile it again")),
        (lambda manifest: manifest.pop("version"), ("version None",)),
        (
            lambda manifest: manifest.update(package="0.0.0"),
            ("superkernel 0.0.0", "compile it again with this package"),
        ),
        (lambda manifest: manifest.update(plan="0" * 64), ("plans differently", "again")),
        (lambda manifest: manifest.update(name="other"), ("plans differently",)),
        (lambda manifest: manifest.update(target="gpu"), ("target 'gpu'",)),
        (lambda manifest: manifest.update(options="early-strat=1"), ("early-strat",)),
        (lambda manifest: manifest.update(cores="many"), ("many",)),
        (lambda manifest: manifest.update(cores=0), ("cores: 0",)),
        (lambda manifest: manifest.update(cores=10**9), ("cores: 1000000000",)),
        (lambda manifest: manifest.update(smaller=["0" * 64]), ("plans differently",)),
        (lambda manifest: manifest.update(ops=[]), ("empty",)),
        (lambda manifest: manifest["ops"][0].update(kernel=9), ("manifest",)),
        (lambda manifest: manifest["ops"][0].pop("args"), ("args",)),
        (lambda manifest: manifest["kernels"][0].update(params=["in"]), ("'in'",)),
        (lambda manifest: manifest["kernels"][0].update(block_dim=0), ("block_dim",)),
        (lambda manifest: manifest["kernels"][0].update(form="text"), ("text",)),
    ],
)
def test_a_manifest_of_another_version_or_none(
    copy: Path, edit: Callable[[dict[str, Any]], object], words: tuple[str, ...]
) -> None:
    change(copy, edit)
    refusal(copy, str(copy), *words)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000], ids=lambda text: str(text[:5])
)
def test_a_manifest_that_is_no_json_object(copy: Path, text: bytes) -> None:
    (copy / MANIFEST).write_bytes(text)
    refusal(copy, str(copy / MANIFEST))


def test_a_target_that_this_version_lacks(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_MODULES", {"cpu": "superkernel.targets.cpu.target"})
    change(copy, lambda manifest: manifest.update(target="cuda"))
    with pytest.raises(sk.UnsupportedError, match="'cuda'"):
        sk.load(copy)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    refusal(tmp_path, str(tmp_path), "no saved super kernel")
    refusal(tmp_path / "nowhere", "nowhere", "no saved super kernel")
    (tmp_path / "file").write_text("")
    refusal(str(tmp_path / "file"), "no saved super kernel")


def test_a_place_where_nothing_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with compiled(Op(ADD, ["a", "b", "c"])) as k:
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(BuildError, match=r"super_kernel_scope 'inputs'.*cannot be saved in .*file"):
                k.save(place)
        k({"a": vector(), "b": vector()})


def test_a_kernel_compiled_for_another_processor(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from superkernel.targets.cpu import executable

    monkeypatch.setattr(executable, "cpu_features", lambda: "fpu")
    with pytest.raises(sk.UnsupportedError, match=r"compiled for native.*which this one lacks.*march="):
        sk.load(saved)


def test_a_place_where_nothing_can_be_dumped(saved: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    with sk.load(saved) as k, pytest.raises(sk.BuildError, match="cannot be dumped"):
        k.dump(taken)


# --- integrity


def mutations(saved: Path, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Files with one byte changed, cut off, added or left out, every file in turn."""
    dice = random.Random(seed)
    contents = {path.name: path.read_bytes() for path in sorted(saved.iterdir())}
    for number in range(count):
        name = list(contents)[number % len(contents)]
        raw = contents[name]
        place, other = dice.randrange(len(raw)), dice.randrange(1, 256)
        yield (
            name,
            dice.choice(
                (
                    raw[:place] + bytes([raw[place] ^ other]) + raw[place + 1 :],
                    raw[:place] + bytes([raw[place] ^ 1 << other % 8]) + raw[place + 1 :],
                    raw[:place],
                    raw[:place] + raw[place + 1 :],
                    raw[:place] + bytes([other]) + raw[place:],
                )
            ),
        )


def test_every_mutation_of_a_byte_is_refused(copy: Path) -> None:
    refused = 0
    for name, raw in mutations(copy, seed=1, count=700):
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(raw)
        try:
            with pytest.raises(BuildError, match=r"copy.*(again|not JSON|no saved super kernel)"):
                sk.load(copy).close()
            refused += raw != whole
        finally:
            (copy / name).write_bytes(whole)
    assert refused == 700
    sk.load(copy).close()


def test_white_space_in_manifest_and_checksums_counts(copy: Path) -> None:
    for name in (MANIFEST, CHECKSUMS):
        whole = (copy / name).read_bytes()
        for raw in (whole + b"\n", b" " + whole, whole.replace(b"\n", b"\r\n")):
            (copy / name).write_bytes(raw)
            refusal(copy, name, "not what was saved")
        (copy / name).write_bytes(whole)


@pytest.mark.parametrize("name", ["notes.txt", "kernel.so.bak", ".hidden", "folder"])
def test_a_file_that_was_added(copy: Path, name: str) -> None:
    (copy / name).mkdir() if name == "folder" else (copy / name).write_text("new")
    refusal(copy, str(copy / name), "no part of the saved super kernel", "remove it")


def test_files_that_changed_places(copy: Path) -> None:
    for name, other in (("kernel.so", "runtime.so"), ("plan.txt", "source.cpp")):
        for first, second in ((name, other), (other, name)):
            contents = {path: (copy / path).read_bytes() for path in (first, second)}
            (copy / first).write_bytes(contents[second])
            refusal(copy, first, "not what was saved")
            (copy / first).write_bytes(contents[first])


def test_the_checksums_are_those_of_sha256sum(saved: Path) -> None:
    subprocess.run(["sha256sum", "--strict", "-c", CHECKSUMS], cwd=saved, check=True, capture_output=True)
    listed = {line.split()[1] for line in (saved / CHECKSUMS).read_text().splitlines()}
    assert listed == {path.name for path in saved.iterdir()} - {CHECKSUMS}


def test_a_folder_with_other_files_is_not_saved_into(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with compiled(Op(ADD, ["a", "b", "c"])) as k, pytest.raises(BuildError, match=r"notes\.txt.*choose another"):
        k.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_save_removes_what_an_older_version_saved_there(copy: Path) -> None:
    (copy / CHECKSUMS).unlink()
    files = {"kernel.so": "", "older.bin": ""}
    change_text = json.dumps({"version": 4, "package": "0.1", "files": files, "plan": "", "kernels": [], "ops": []})
    (copy / MANIFEST).write_text(change_text)
    (copy / "older.bin").write_text("of version 4")
    for name in ("runtime.so", "source.cpp", "processor.txt"):
        (copy / name).unlink()
    refusal(copy, "version 4", "superkernel 0.1", "compile it again")
    (copy / "unfinished-dead").mkdir()
    with compiled(Op(ADD, ["a", "b", "c"])) as k:
        k.save(copy)
    assert not (copy / "older.bin").exists() and not (copy / "unfinished-dead").exists()
    sk.load(copy).close()


def test_a_loaded_kernel_saves_what_it_was_loaded_from(copy: Path, tmp_path: Path) -> None:
    with sk.load(copy) as k:
        k.save(tmp_path / "again")
    for name in ("kernel.so", "runtime.so", "processor.txt", "plan.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (copy / name).read_bytes()
