"""The folder of a package: complete or not there, every file in checksums.json, weights aligned for huge pages."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superkernel.errors import BuildError
from superkernel.package import writer
from superkernel.package.file_names import CHECKSUMS, WEIGHTS
from superkernel.package.manifest import Manifest, read_manifest
from superkernel.package.weights_file import StoredTensor, write_weights
from superkernel.package.writer import PackageContents, write_package

MANIFEST = Manifest("tiny", "0.1.0", ())


def stored(dtype: str, *values: float, like: Any = np.float32) -> StoredTensor:
    array = np.array(values, like)
    return StoredTensor(dtype, array.shape, memoryview(array).cast("B"))


def read_weights(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def test_weights_begin_at_huge_pages_and_cache_lines(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    write_weights(file, {"a": stored("float32", 1, 2, 3), "padding.1": stored("int64", 7, like=np.int64)})
    header, data = read_weights(file)
    assert (file.stat().st_size - len(data)) % (2 << 20) == 0
    spans = sorted((entry["data_offsets"], name) for name, entry in header.items())
    assert all(begin % 64 == 0 for (begin, _), name in spans if name in ("a", "padding.1"))
    ends = [end for (_, end), _ in spans]
    assert [begin for (begin, _), _ in spans] == [0, *ends[:-1]], "safetensors allows no holes"
    begin, end = header["padding.1"]["data_offsets"]
    assert np.frombuffer(data[begin:end], np.int64) == [7]
    assert header["a"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


def test_every_file_has_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(b"code")

    def add(folder: Path) -> None:
        (folder / "torch").mkdir()
        (folder / "torch" / "forward.pt2").write_bytes(b"model")

    files = {"objects/forward_0.native.so": tmp_path / "kernel.so"}
    contents = PackageContents(MANIFEST, {"w": stored("float32", 1)}, files, "one launch\n", add)
    package = write_package(tmp_path / "deep" / "tiny.sk", contents)
    listed = json.loads((package / CHECKSUMS).read_text())["files"]
    present = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert present == {*listed, CHECKSUMS}
    assert {"manifest.json", WEIGHTS, "explain.txt", "objects/forward_0.native.so", "torch/forward.pt2"} == {*listed}
    for name, facts in listed.items():
        raw = (package / name).read_bytes()
        assert facts == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert [path.name for path in package.parent.iterdir()] == ["tiny.sk"], "nothing unfinished stays behind"


def test_only_a_package_is_replaced_and_only_when_asked(tmp_path: Path) -> None:
    package = write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    with pytest.raises(BuildError, match="exists: choose another path, or export with overwrite=True"):
        write_package(package, PackageContents(MANIFEST, {}))
    write_package(package, PackageContents(replace(MANIFEST, name="second"), {}), overwrite=True)
    assert read_manifest(package).name == "second"
    (tmp_path / "notes").mkdir()
    (tmp_path / "link.sk").symlink_to(package)
    for other, overwrite in itertools.product(("notes", "link.sk"), (False, True)):
        with pytest.raises(BuildError, match="is not a package: it is not replaced"):
            write_package(tmp_path / other, PackageContents(MANIFEST, {}), overwrite=overwrite)


def test_of_two_exports_to_a_path_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.sk"

    def faster(folder: Path) -> None:
        write_package(path, PackageContents(MANIFEST, {}), overwrite=True)

    second = PackageContents(replace(MANIFEST, name="second"), {}, add_files=faster)
    with pytest.raises(BuildError, match="exists: choose another path, or export with overwrite=True"):
        write_package(path, second)
    assert read_manifest(path).name == "tiny"
    write_package(path, second, overwrite=True)
    assert read_manifest(path).name == "second"
    assert [file.name for file in tmp_path.iterdir()] == ["a.sk"]


def test_an_interrupt_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "package":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    monkeypatch.setattr(writer, "_exchange", lambda folder, path: False)  # as on file systems that cannot
    with pytest.raises(KeyboardInterrupt):
        write_package(package, PackageContents(replace(MANIFEST, name="second"), {}), overwrite=True)
    assert read_manifest(package).name == "tiny"
    assert [path.name for path in tmp_path.iterdir()] == ["a.sk"]


def test_a_package_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    (tmp_path / "left").mkdir()
    (tmp_path / "right").mkdir()
    if not writer._exchange(tmp_path / "left", tmp_path / "right"):
        pytest.skip("this file system cannot exchange folders")
    monkeypatch.setattr(Path, "rename", None)
    write_package(package, PackageContents(replace(MANIFEST, name="second"), {}), overwrite=True)
    assert read_manifest(package).name == "second"
    assert {path.name for path in tmp_path.iterdir()} == {"a.sk", "left", "right"}


STARTED_EXPORT = """
import sys
from pathlib import Path
from superkernel.package.manifest import Manifest
from superkernel.package.writer import PackageContents, write_package

def wait(folder):
    print("started", flush=True)
    sys.stdin.read()

write_package(Path(sys.argv[1]), PackageContents(Manifest("child", "0.1.0", ()), {}, add_files=wait), overwrite=True)
"""


@contextmanager
def started_export(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to write the package, and goes on when its input ends."""
    command = [sys.executable, "-c", STARTED_EXPORT, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        yield child


def killed_export(path: Path) -> Path:
    """The folder that it leaves beside the package."""
    before = set(path.parent.iterdir())
    with started_export(path) as child:
        child.kill()
    (left,) = set(path.parent.iterdir()) - before
    return left


def test_what_a_killed_export_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    left = killed_export(tmp_path / "a.sk")
    other = killed_export(tmp_path / "b.sk")
    assert (left / "package" / WEIGHTS).is_file()
    write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    assert set(tmp_path.iterdir()) == {tmp_path / "a.sk", other}


def test_the_folder_of_an_export_that_goes_on_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.sk"
    with started_export(path) as child:
        write_package(path, PackageContents(MANIFEST, {}))
        child.communicate()
    assert child.returncode == 0
    assert read_manifest(path).name == "child"
    assert list(tmp_path.iterdir()) == [path]


def change_boot(left: Path) -> None:
    (left / "export.lock").write_text("superkernel export of another system")


def link_lock(left: Path) -> None:
    (left / "export.lock").rename(left.parent / "lock")
    (left / "export.lock").symlink_to(left.parent / "lock")


@pytest.mark.parametrize("change", [change_boot, link_lock, lambda left: (left / "export.lock").unlink()])
def test_a_folder_that_may_be_of_another_system_is_kept(tmp_path: Path, change: Callable[[Path], None]) -> None:
    left = killed_export(tmp_path / "a.sk")
    change(left)
    write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    assert (left / "package" / WEIGHTS).is_file()


@pytest.mark.parametrize("name", ["n" * 250, "\N{GRINNING FACE}" * 63, "a b\nc", "[a-z]*.sk", "-", "caf\xe9.sk"])
def test_names_that_file_systems_allow(tmp_path: Path, name: str) -> None:
    try:
        (tmp_path / name).mkdir()
    except OSError as reason:
        pytest.skip(f"this file system has no such names: {reason.strerror}")
    (tmp_path / name).rmdir()
    for overwrite in (False, True):
        write_package(tmp_path / name, PackageContents(MANIFEST, {}), overwrite)
    assert read_manifest(tmp_path / name).name == "tiny"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_failure_leaves_the_old_package(tmp_path: Path) -> None:
    package = write_package(tmp_path / "a.sk", PackageContents(MANIFEST, {}))
    missing = {"objects/x.so": tmp_path / "missing.so"}
    with pytest.raises(BuildError, match="the package cannot be written"):
        write_package(package, PackageContents(replace(MANIFEST, name="second"), {}, missing), overwrite=True)
    assert read_manifest(package).name == "tiny"
    assert [path.name for path in tmp_path.iterdir()] == ["a.sk"]
