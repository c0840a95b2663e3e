"""The compiler that CXX names, or none: earlier builds serve, and every failure says what to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from caches import with_host_library
from runtime.given import ADD, compiled, vector

import superkernel as sk
from superkernel import BuildError, Op
from superkernel.targets.native import loading, toolchain
from superkernel.targets.native.toolchain import find_toolchain

SOURCE = """
#include "scale.h"
extern "C" void scale(const float* x, float* y) { for (int i = 0; i < 12; ++i) y[i] = FACTOR * x[i]; }
"""


@pytest.fixture(autouse=True)
def found_anew():
    yield
    toolchain._find.cache_clear()


# --- no compiler


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """Ops that were compiled here, with a header of their own, before the compiler went."""
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(with_host_library(tmp_path / "cache")))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "scale.h").write_text("#define FACTOR 3\n")
    source = tmp_path / "scale.cpp"
    source.write_text(SOURCE)
    params = ["in:x:float32[12]", "out:y:float32[12]"]
    ops = [Op(sk.SubKernel.from_source(source, "scale", block_dim=1, params=params), ["a", "b"])]
    compiled(*ops).close()
    without_compiler(tmp_path, monkeypatch)
    return ops


def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no_programs"))
    toolchain._find.cache_clear()


def test_what_the_cache_has_runs_without_a_compiler(built: list[Op]) -> None:
    with compiled(*built) as k:
        assert (k({"a": vector(2)})["b"] == 6).all()


def test_a_read_only_cache_runs_without_a_compiler_and_is_not_written(built: list[Op], tmp_path: Path) -> None:
    folders = [tmp_path / "cache", *(path for path in (tmp_path / "cache").iterdir() if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    with compiled(*built) as k:
        assert (k({"a": vector(2)})["b"] == 6).all()
    assert all(folder.stat().st_mode & 0o777 == 0o555 for folder in folders)


def test_a_header_that_changed_is_not_taken_for_the_old_one(built: list[Op], tmp_path: Path) -> None:
    (tmp_path / "scale.h").write_text("#define FACTOR 4\n")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler.*scale\.h is not as it was.*install"):
        compiled(*built)


def test_a_source_that_the_cache_lacks(built: list[Op]) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ compiler.*the cache .* has no object of it.*install"):
        compiled(Op(ADD, ["a", "b", "c"]))


def test_a_plan_that_the_cache_lacks(built: list[Op]) -> None:
    with pytest.raises(BuildError, match=r"cannot run g\+\+.*install"):
        compiled(*built, options="debug-sync-all=1")


def test_a_cache_of_no_build_does_not_replace_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    without_compiler(tmp_path, monkeypatch)
    with pytest.raises(BuildError, match=r"a C\+\+ compiler is missing.*install"):
        find_toolchain()


# --- CXX


@pytest.mark.parametrize("chosen", ["gcc", "gcc -O1", "env gcc"])
def test_a_c_compiler_is_refused(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", chosen)
    with pytest.raises(BuildError, match=r"gcc.* does not link C\+\+.*g\+\+"):
        find_toolchain()


@pytest.mark.parametrize("chosen", ["", "  ", "g++", "g++ -pipe", "env g++", "gcc -lstdc++"])
def test_what_links_cxx_is_accepted(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", chosen)
    assert find_toolchain().cxx[0] == shutil.which((chosen.split() or ["g++"])[0])


@pytest.mark.parametrize("chosen", ["no-such-compiler", "'unclosed", '""', "/", "/etc/passwd"])
def test_what_is_no_compiler_is_refused(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", chosen)
    with pytest.raises(BuildError, match="CXX"):
        find_toolchain()


# --- loading


def test_a_mount_without_execution_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"not loadable")
    with pytest.raises(OSError, match=r"kernel\.so"):
        loading.load_shared(library)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(BuildError, match=r"noexec.*SUPERKERNEL_CACHE"):
        loading.load_shared(library)


def test_the_whole_build_names_a_mount_without_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(loading.ctypes, "CDLL", refuse)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(BuildError, match="noexec"):
        compiled(Op(ADD, ["a", "b", "c"]))
