"""Folders that are no package, and damaged packages: a sentence names the file, and no code of it runs."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from handmade_package import OBJECT, change_manifest, write_handmade, write_sums

import superkernel as sk
from superkernel.errors import BuildError, SuperKernelError, UnsupportedError
from superkernel.package.checksums import read_checksums
from superkernel.package.differences import compare_packages
from superkernel.package.library_functions import LibraryFunctions, loaded_library
from superkernel.package.one_folder import hold
from superkernel.package.summary import summarise, verify

WEIGHTS = "weights.safetensors"
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handmade(tmp_path_factory.mktemp("package") / "hand.sk")


@pytest.fixture
def package(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "hand.sk"))


def remove(name: str) -> Damage:
    return lambda package: (package / name).unlink()


def cut(name: str) -> Damage:
    return lambda package: os.truncate(package / name, (package / name).stat().st_size - 8)


def flip(name: str) -> Damage:
    def change(package: Path) -> None:
        raw = bytearray((package / name).read_bytes())
        raw[-1] ^= 1
        (package / name).write_bytes(raw)

    return change


def replace(name: str, text: str) -> Damage:
    return lambda package: (package / name).write_text(text) and None


def manifest(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda package: change_manifest(package, lambda fields: change(fields) and None)


def sums(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(package: Path) -> None:
        fields = json.loads((package / "checksums.json").read_text())
        change(fields)
        (package / "checksums.json").write_text(json.dumps(fields))

    return damage


def link_out(name: str) -> Damage:
    """The file is a link to an equal file beside the package."""

    def damage(package: Path) -> None:
        outside = package.parent / Path(name).name
        shutil.move(package / name, outside)
        (package / name).symlink_to(outside)

    return damage


def listed_outside(package: Path) -> None:
    """checksums.json names a file beside the package."""
    (package.parent / "outside").write_text("secret")

    def change(fields: dict[str, Any]) -> None:
        fields["files"]["../outside"] = {"bytes": 6, "sha256": "0" * 64}

    sums(change)(package)


def object_fields(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = fields["objects"]["code"][0]
    return found


def plan_fields(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = fields["entries"][0]["shapes"][0]["launches"][0]["plans"][0]
    return found


FAULTS = [
    pytest.param(shutil.rmtree, r"hand\.sk does not exist", True, id="not there"),
    pytest.param(lambda p: (shutil.rmtree(p), p.write_text("x")), "it is not a folder", True, id="a file"),
    pytest.param(lambda p: (shutil.rmtree(p), p.mkdir()), r"manifest\.json is missing", True, id="empty folder"),
    pytest.param(remove("manifest.json"), r"manifest\.json is missing", True, id="no manifest"),
    pytest.param(remove("checksums.json"), r"checksums\.json is missing", True, id="no checksums"),
    pytest.param(replace("checksums.json", "{"), r"checksums\.json: line 1, column 2: not JSON", True, id="no JSON"),
    pytest.param(replace("checksums.json", "[]"), "a list is not an object", True, id="a list of checksums"),
    pytest.param(sums(lambda s: s.update(version=2)), "newer SuperKernel", True, id="newer checksums"),
    pytest.param(sums(lambda s: s["files"].pop("manifest.json")), "not listed", True, id="manifest not listed"),
    pytest.param(sums(lambda s: s["files"][OBJECT].update(sha256="x")), "is no SHA-256", True, id="no hash"),
    pytest.param(listed_outside, r"'\.\./outside' is no path inside the package", True, id="listed outside"),
    pytest.param(
        sums(lambda s: s["files"].update({"\ud800": s["files"][OBJECT]})), r"JSON|no path inside", True, id="no text"
    ),
    pytest.param(
        replace("manifest.json", "{}"), r"manifest\.json.*(cut short|truncated)", True, id="manifest replaced"
    ),
    pytest.param(flip("manifest.json"), r"manifest\.json.*its SHA-256", True, id="manifest changed"),
    pytest.param(cut(OBJECT), rf"{OBJECT}", True, id="object cut"),
    pytest.param(flip(OBJECT), rf"{OBJECT}.*its SHA-256", True, id="object changed"),
    pytest.param(remove(OBJECT), rf"{OBJECT}", True, id="object missing"),
    pytest.param(cut(WEIGHTS), WEIGHTS, True, id="weights cut"),
    pytest.param(remove(WEIGHTS), WEIGHTS, True, id="weights missing"),
    pytest.param(link_out(OBJECT), OBJECT, True, id="object linked out"),
    pytest.param(link_out(WEIGHTS), WEIGHTS, True, id="weights linked out"),
    pytest.param(link_out("manifest.json"), r"manifest\.json", True, id="manifest linked out"),
    pytest.param(manifest(lambda m: m.update(version=2)), "newer SuperKernel", True, id="newer version"),
    pytest.param(manifest(lambda m: m.update(format="zip")), "not a package", True, id="other format"),
    pytest.param(manifest(lambda m: m.update(entries=[])), "entr", False, id="no entries"),
    pytest.param(
        manifest(lambda m: object_fields(m).update(file="../code.so")), r"\.\./code\.so", True, id="object outside"
    ),
    pytest.param(
        manifest(lambda m: object_fields(m).update(file="/lib/code.so")), "/lib/code.so", True, id="absolute object"
    ),
    pytest.param(manifest(lambda m: plan_fields(m).update(entry="absent")), "absent", False, id="symbol missing"),
    pytest.param(
        lambda p: ((p / OBJECT).write_bytes(b"no code"), write_sums(p)), OBJECT, False, id="object that is no code"
    ),
    pytest.param(
        lambda p: ((p / WEIGHTS).write_bytes(b"\xff" * 64), write_sums(p)), WEIGHTS, False, id="weights that are none"
    ),
]


@pytest.mark.parametrize(("damage", "message", "found_by_verify"), FAULTS)
def test_damaged_packages_are_refused(package: Path, damage: Damage, message: str, found_by_verify: bool) -> None:
    damage(package)
    with pytest.raises(BuildError, match=message):
        sk.load_model(package)
    if found_by_verify:
        with pytest.raises(BuildError, match=message):
            verify(package)


def test_changed_weights_are_found_by_verify(package: Path) -> None:
    flip(WEIGHTS)(package)
    sk.load_model(package).close()  # weights are not read when a package is opened
    for check in (verify, lambda path: sk.load_model(path, verify=True)):
        with pytest.raises(BuildError, match=rf"{WEIGHTS} was changed: its SHA-256 is [0-9a-f]{{64}}"):
            check(package)


def test_a_file_that_is_not_listed_is_found_by_verify(package: Path) -> None:
    (package / "objects" / "extra.so").write_bytes(b"code")
    with pytest.raises(BuildError, match=r"extra\.so is no part of the package"):
        verify(package)


def test_a_processor_without_the_instructions(package: Path) -> None:
    change_manifest(package, lambda fields: object_fields(fields).update(isa="native-future", features=["avx4096"]))
    with pytest.raises(UnsupportedError, match="avx4096"):
        sk.load_model(package)


def test_a_changed_library_is_not_loaded(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from superkernel.package import library_functions

    monkeypatch.setattr(library_functions, "_loaded", [])  # as in a new process
    flip("lib/libsuperkernel.so.1")(package)
    with pytest.raises(BuildError, match=r"libsuperkernel\.so\.1 was changed"):
        sk.load_model(package)
    (package / "lib/libsuperkernel.so.1").write_bytes(b"no library")
    write_sums(package)
    with pytest.raises(BuildError, match=r"libsuperkernel\.so\.1 cannot be loaded"):
        sk.load_model(package)


def test_a_library_on_a_file_system_without_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "lib/libsuperkernel.so.1").write_bytes(b"no library")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(BuildError, match="its file system is mounted noexec: copy the package to another one"):
        LibraryFunctions(package / "lib/libsuperkernel.so.1")


def test_info_verify_and_diff_load_no_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / OBJECT).write_bytes(b"no code")
    write_sums(package)

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("code was loaded")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert verify(package).manifest == summarise(package).manifest
    assert not compare_packages(package, package).differences


def test_a_read_only_folder(package: Path) -> None:
    for path in (*package.rglob("*"), package):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        with sk.load_model(package, verify=True) as model:
            assert model.count(1).tolist() == [11]
    finally:
        for path in (package, *package.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.parametrize("path", ["", "a\0b", None, 7])
def test_paths_that_are_none(path: Any) -> None:
    with pytest.raises(SuperKernelError, match="path"):
        sk.load_model(path)


def test_a_path_that_is_too_long() -> None:
    with pytest.raises(BuildError, match="cannot be opened: File name too long"):
        summarise(Path("x" * 300))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, and go on as root elsewhere")
def test_a_folder_of_another_user_is_refused_with_the_reason(package: Path) -> None:
    with hold(package) as folder:
        library = loaded_library(folder, read_checksums(folder))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(package.parent)
        package.chmod(0)
        os.setgroups([])
        os.setuid(65534)
        found = []
        for use in (summarise, verify, sk.load_model, lambda path: library.open(path, 1, "sleep", (), c_void_p())):
            try:
                use(Path(package.name))
            except BaseException as error:
                found.append(f"{type(error).__name__}: {error}")
        os.write(write, "\n".join(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    package.chmod(0o755)
    os.close(write)
    with os.fdopen(read) as answers:
        found = answers.read().splitlines()
    assert len(found) == 4
    for line in found:
        assert line.startswith("BuildError: ") and line.endswith(": Permission denied"), line


FEW_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.package.summary import verify

package = Path(sys.argv[1])
sk.load_model(package).close()
before = len(os.listdir("/proc/self/fd"))
for more in range(6):
    for use in (verify, lambda path: sk.load_model(path).close()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, 4096))  # one of them listed the others
        try:
            use(package)
            print("opened")
        except SuperKernelError as error:
            print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
assert len(os.listdir("/proc/self/fd")) == before
"""


def test_a_process_that_may_open_no_more_files(package: Path) -> None:
    """The sentence says so, and does not advise another copy of the package."""
    ran = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, str(package)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    refused = [line for line in lines if line != "opened"]
    assert len(lines) == 12 and refused and lines[-2:] == ["opened", "opened"]
    assert all("Too many open files" in line and "again" not in line for line in refused), refused


def test_differences_are_listed(package: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(package, tmp_path / "other.sk"))

    def change(fields: dict[str, Any]) -> None:
        fields["options"] = "profiling=1"
        fields["entries"][3]["name"] = "bits"
        fields["entries"][0]["shapes"][0]["inputs"][0]["name"] = "z"

    change_manifest(other, change)
    raw = np.fromfile(other / WEIGHTS, np.uint8)
    raw[2 << 20] ^= 1  # the first byte of "w"
    raw.tofile(other / WEIGHTS)
    write_sums(other)
    found = {(each.kind, each.name): each.what for each in compare_packages(package, other).differences}
    assert list(found) == [
        ("field", "options"), ("entry", "forward"), ("entry", "both"), ("entry", "bits"), ("weight", "w")
    ]  # fmt: skip
    assert found["field", "options"] == "'', then 'profiling=1'"
    assert found["entry", "both"] == "only in the first" and found["weight", "w"] == "values differ"
    assert found["entry", "forward"].startswith("inputs: ")
