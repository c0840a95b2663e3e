"""targets.cpu: sub-kernels that need libraries: linked, found again by a saved kernel, or missed in words."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.conftest import build_shim
from targets.cpu.small import child, compile_ops

from superkernel import BuildError, Op, SubKernel

LIBRARY = """
#include <stdint.h>
extern "C" int64_t {name}_of(int64_t x) {{ return x * {factor} + 1; }}
"""
KERNEL = """
#include <stdint.h>
#include <superkernel/kernel.h>
extern "C" int64_t {name}_of(int64_t x);
extern "C" void {name}(const int64_t* x, int64_t* z) {{ z[sk::block_idx()] = {name}_of(x[sk::block_idx()]); }}
"""
PARAMS = ["in:x:int64[2]", "inout:z:int64[2]"]


def library(folder: Path, name: str, factor: int) -> Path:
    folder.mkdir(exist_ok=True)
    source = folder / f"{name}.cpp"
    source.write_text(LIBRARY.format(name=name, factor=factor))
    return build_shim(source, folder / f"lib{name}.so", "-Wl,-soname", f"-Wl,lib{name}.so")


def kernel(folder: Path, name: str, *libraries: Any) -> SubKernel:
    source = folder / f"uses_{name}.cpp"
    source.write_text(KERNEL.format(name=name))
    return SubKernel.from_source(source, name, block_dim=2, params=PARAMS, libraries=libraries)


def right(k: Any) -> bool:
    given = {"x": np.array([1, 2]), "y": np.zeros(2, np.int64), "z": np.zeros(2, np.int64)}
    k(given)
    return bool((given["z"] == 7 * (3 * given["x"] + 1) + 1).all())


@pytest.fixture
def pair(tmp_path: Path) -> list[Op]:
    """Two ops, each of which needs a library of its own, in a folder of its own."""
    three, seven = library(tmp_path / "three", "three", 3), library(tmp_path / "seven", "seven", 7)
    return [
        Op(kernel(tmp_path, "three", three), ["x", "y"]),
        Op(kernel(tmp_path, "seven", str(seven), "m"), ["y", "z"]),
    ]


def test_the_libraries_of_all_sub_kernels_are_linked(pair: list[Op], tmp_path: Path) -> None:
    assert pair[1].kernel.libraries == (str(tmp_path / "seven/libseven.so"), "m")
    with compile_ops(pair, "linked") as k:
        assert right(k) and right(k.unfused())
        assert any(str(tmp_path / "three") in command for command in k.executable.commands)


def test_an_object_may_need_a_library_too(tmp_path: Path) -> None:
    shared = library(tmp_path / "seven", "seven", 7)
    with compile_ops([Op(kernel(tmp_path, "seven", shared), ["x", "z"])], "from_source") as k:
        (compiled,) = k._prepared.compiled.values()  # type: ignore[union-attr]
        again = SubKernel.from_object(compiled.object, "seven", block_dim=2, params=PARAMS, libraries=[shared])
        assert again != SubKernel.from_object(compiled.object, "seven", block_dim=2, params=PARAMS)
        with compile_ops([Op(again, ["x", "z"])], "from_object") as other:
            given = {"x": np.array([1, 2]), "z": np.zeros(2, np.int64)}
            other(given)
            assert given["z"].tolist() == [8, 15]


def test_a_relative_path_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = library(tmp_path / "seven", "seven", 7)
    monkeypatch.chdir(tmp_path)
    assert kernel(tmp_path, "seven", "seven/libseven.so").libraries == (str(shared),)
    assert kernel(tmp_path, "seven", Path("seven", "libseven.so")).libraries == (str(shared),)


def test_without_the_library_the_symbol_is_undefined(tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match=r"'lacks': undefined: seven_of \(used by .*uses_seven.cpp\).*link the library"
    ):
        compile_ops([Op(kernel(tmp_path, "seven"), ["x", "z"])], "lacks")


@pytest.mark.parametrize("one", ["no_such_library_anywhere", "./libgone.so"])
def test_a_library_that_is_not_there(tmp_path: Path, one: str) -> None:
    with pytest.raises(BuildError, match=r"no_such_library_anywhere|library file './libgone.so' does not exist"):
        compile_ops([Op(kernel(tmp_path, "seven", one), ["x", "z"])], "gone")


def test_an_archive_that_was_written_anew_is_linked_anew(tmp_path: Path) -> None:
    archive, found = tmp_path / "libseven.a", list[int]()
    for factor in (7, 11):
        library(tmp_path, "seven", factor)
        archive.unlink(missing_ok=True)
        assert os.system(f"ar rcs {archive} {tmp_path / 'libseven.o'}") == 0
        with compile_ops([Op(kernel(tmp_path, "seven", archive), ["x", "z"])], "archived") as k:
            given = {"x": np.array([1, 2]), "z": np.zeros(2, np.int64)}
            k(given)
            found.append(int(given["z"][0]))
    assert found == [8, 12]


def test_a_saved_kernel_finds_its_libraries_in_another_process(pair: list[Op], tmp_path: Path) -> None:
    with compile_ops(pair, "kept") as k:
        k.save(tmp_path / "kept")
    code = """
import sys
import superkernel as sk
from targets.cpu.test_run_libraries import right
with sk.load(sys.argv[1]) as k:
    assert right(k)
    assert [len(node.kernel.libraries) for node in k.graph.nodes] == [1, 2]
print("done")
"""
    assert "done" in child(code, args=[str(tmp_path / "kept")]).stdout


def test_a_saved_kernel_says_which_library_is_missing(pair: list[Op], tmp_path: Path) -> None:
    with compile_ops(pair, "moved") as k:
        k.save(tmp_path / "kept")
    (tmp_path / "seven/libseven.so").unlink()
    code = """
import sys
import superkernel as sk
try:
    sk.load(sys.argv[1])
except sk.UnsupportedError as error:
    print(error)
"""
    told = child(code, args=[str(tmp_path / "kept")]).stdout
    assert told.startswith("super_kernel_scope 'moved': ")
    assert "libseven.so" in told and str(tmp_path / "seven/libseven.so") in told


# large libraries


@pytest.fixture
def every_library_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.targets.native.import_library._LARGE_BYTES", 0)


def link_command(k: Any) -> str:
    (command,) = (command for command in k.executable.commands if "--no-undefined" in command)
    return str(command)


def needed_by(k: Any) -> list[str]:
    shown = subprocess.run(["readelf", "-d", str(k.executable.binary)], capture_output=True, text=True, check=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", shown.stdout)


@pytest.mark.usefixtures("every_library_is_large")
def test_import_libraries_stand_in_for_large_libraries(pair: list[Op], tmp_path: Path) -> None:
    with compile_ops(pair, "imported") as k:
        assert right(k) and right(k.unfused())
        assert {"libthree.so", "libseven.so"} <= set(needed_by(k))  # the loader is told of the libraries themselves
        link = link_command(k)
        assert str(tmp_path / "three/libthree.so") not in link and str(tmp_path / "three") in link


@pytest.mark.usefixtures("every_library_is_large")
@pytest.mark.parametrize(
    ("declared", "flags"), [("thread_local int64_t", ()), ("int64_t", ("-Wl,--hash-style=sysv",))], ids=["tls", "sysv"]
)
def test_where_no_import_library_can_be_made_the_library_is_linked(
    tmp_path: Path, declared: str, flags: tuple[str, ...]
) -> None:
    (tmp_path / "offset.cpp").write_text(f'#include <stdint.h>\nextern "C" {{ {declared} offset = 5; }}\n')
    shared = build_shim(tmp_path / "offset.cpp", tmp_path / "liboffset.so", *flags)
    source = tmp_path / "uses_offset.cpp"
    body = "z[sk::block_idx()] = x[sk::block_idx()] + offset;"
    source.write_text(
        f'#include <stdint.h>\n#include <superkernel/kernel.h>\nextern "C" {{ extern {declared} offset; }}\n'
        f'extern "C" void plus(const int64_t* x, int64_t* z) {{ {body} }}\n'
    )
    plus = SubKernel.from_source(source, "plus", block_dim=2, params=PARAMS, libraries=[shared])
    with compile_ops([Op(plus, ["x", "z"])], f"offset_{len(flags)}") as k:
        given = {"x": np.array([1, 2]), "z": np.zeros(2, np.int64)}
        k(given)
        assert given["z"].tolist() == [6, 7]
        assert str(shared) in link_command(k)


@pytest.mark.usefixtures("every_library_is_large")
def test_what_no_large_library_defines_is_named(tmp_path: Path) -> None:
    wrong = library(tmp_path / "three", "three", 3)
    with pytest.raises(BuildError, match="undefined: seven_of"):
        compile_ops([Op(kernel(tmp_path, "seven", wrong), ["x", "z"])], "undefined")
