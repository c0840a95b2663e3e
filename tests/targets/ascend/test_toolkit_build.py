"""What a toolkit's data change of a build: names, the meta section, include folders; and objects with COMDAT groups."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from targets.ascend.conftest import archive

import superkernel as sk
from superkernel.errors import OptionError
from superkernel.targets import find_target
from superkernel.targets.ascend.build import Stage
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import CUBE, VECTOR
from superkernel.targets.ascend.meta_section import meta_section
from superkernel.targets.ascend.tools import find_tools

TEXT = '#include "kernel_operator.h"\nextern "C" __aicore__ void mixed(uint64_t) {}\n'
TEMPLATES = """
template <class T> inline __attribute__((noinline)) T twice(T x) { static T sum; sum += x; return sum * 2; }
extern "C" void first(unsigned long slot) { *(volatile int*)slot = twice(int(slot)); }
extern "C" void second(unsigned long slot) { *(volatile int*)slot = twice(int(slot) + 1); }
"""
FIELDS, CORE_TYPES = ["2:1", "2:core_type", "4:0x102", "1:cubes", "1:vectors"], ["4", "5", "6"]


def chip(toolkit: Mapping[str, Any]) -> dict[str, Any]:
    return {**(find_target("ascend").chip_fields() or {}), "toolkit": dict(toolkit)}


def mixed(folder: Path, toolkit: Mapping[str, Any]) -> sk.SuperKernel:
    (folder / "mixed.cpp").write_text(TEXT)
    kernel = sk.SubKernel.from_source(folder / "mixed.cpp", "mixed", block_dim=2, params=["in:x", "out:y"], core="mix")
    (folder / "chip.json").write_text(json.dumps(chip(toolkit)))
    options = "split-mode=1:compile-options=-O0"
    return sk.compile([sk.Op(kernel, ["a", "b"])], "few", options, "ascend", chip=folder / "chip.json")


def sections(path: Path) -> dict[str, bytes]:
    with path.open("rb") as file:
        return {section.name: section.data() for section in ELFFile(file).iter_sections()}


def test_names_begin_as_the_run_time_of_cann_wants_them(tmp_path: Path) -> None:
    with mixed(tmp_path, {"kernel_name": "te_superkernel_{name}"}) as k:
        folder = k.save(tmp_path / "saved")
    descriptor = json.loads((folder / "te_superkernel_few.json").read_text())
    assert descriptor["kernelName"] == "auto_gen_te_superkernel_few_kernel"
    assert descriptor["binFileName"] == "te_superkernel_few"
    assert "void auto_gen_te_superkernel_few_kernel()" in (folder / "te_superkernel_few_kernel.cpp").read_text()
    with sk.load(folder) as again:
        assert again.name == "few" and again.executable.emitted.name == "te_superkernel_few"


def test_without_data_there_is_no_meta_section(tmp_path: Path) -> None:
    with mixed(tmp_path, {}) as k:
        assert not k.executable.build.data_files and "--add-section" not in k.executable.build.script()


def test_the_meta_section_of_each_entry_is_what_the_toolkit_says(tmp_path: Path, cann: Path) -> None:
    """Built at once, and by build.sh."""
    wanted = bytes([1, 0, 6, 0, 2, 1, 0, 0, 1, 2])
    with mixed(tmp_path, {"meta_fields": FIELDS, "meta_core_types": CORE_TYPES}) as k:
        folder = k.save(tmp_path / "saved")
    for _ in range(2):
        found = {name: data for name, data in sections(folder / "few.o").items() if name.startswith(".ascend.meta")}
        entry = "auto_gen_few_kernel_mix"
        assert found == {f".ascend.meta.{entry}_aic": wanted, f".ascend.meta.{entry}_aiv": wanted}
        (folder / "few.o").unlink()
        subprocess.run(["sh", "build.sh"], cwd=folder, check=True)


def test_the_core_type_is_that_of_the_launch() -> None:
    types = [
        meta_section(["1:core_type"], CORE_TYPES, classes, 1, 1) for classes in ((CUBE,), (VECTOR,), (CUBE, VECTOR))
    ]
    assert types == [b"\4", b"\5", b"\6"]


@pytest.mark.parametrize(
    ("toolkit", "words"),
    [
        ({"meta_fields": ["3:1"]}, r"meta_fields\[0\] is '3:1'; it must be <bytes>:<value>"),
        ({"meta_fields": ["4:7", "1:256"]}, r"meta_fields\[1\] is '256', which 1 bytes do not hold"),
        ({"meta_fields": ["4:core_type"]}, "meta_core_types does not say"),
        (
            {"meta_fields": ["4:ratio"]},
            r"'ratio'; a number is needed, or in meta_fields one of core_type, cubes, vectors",
        ),
        ({"meta_core_types": ["1", "2"]}, "meta_core_types has 2 numbers; three are needed"),
        ({"meta_core_types": ["1", "2", "x"]}, r"meta_core_types\[2\] is 'x'"),
        ({"meta_section": ".meta"}, "meta_section is '.meta'; it must contain {entry}"),
        ({"kernel_name": "te_superkernel_"}, "kernel_name is 'te_superkernel_'; it must contain {name}"),
    ],
)
def test_data_that_cannot_be_used(toolkit: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        find_chip(chip(toolkit))


def test_newer_toolkits_have_their_headers_elsewhere(tmp_path: Path, cann: Path) -> None:
    header = cann / "compiler" / "tikcpp" / "tikcfw" / "kernel_operator.h"
    (cann / "asc" / "include").mkdir(parents=True)
    header.rename(cann / "asc" / "include" / header.name)
    assert f"-I{cann}/asc/include" in find_tools().compiler_flags
    with mixed(tmp_path, {"architecture_flag": "--cce-npu-arch=dav-2201"}) as k:
        assert k.executable.built.binary is not None
        assert "-I$ASCEND_HOME_PATH/asc/include" in k.executable.build.script()


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """An archive whose object has inline functions and their static variables in COMDAT groups."""
    (tmp_path / "templates.cpp").write_text(TEMPLATES)
    command = ["g++", "-c", "-O1", "-fno-gnu-unique", "-ffunction-sections", "templates.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert ".group" in sections(tmp_path / "templates.o")
    return archive(tmp_path, "templates.a", tmp_path / "templates.o")


@pytest.mark.parametrize("editor", ["objcopy", "llvm-objcopy"])
def test_copies_of_an_object_with_comdat_groups(templates: Path, cann: Path, tmp_path: Path, editor: str) -> None:
    """Each copy of each function keeps the inline functions that it calls; the two editors look for other names."""
    if shutil.which(editor) is None:
        pytest.skip(f"{editor} is not installed")
    tool = cann / "compiler" / "ccec_compiler" / "bin" / "llvm-objcopy"
    tool.unlink()
    tool.symlink_to(str(shutil.which(editor)))
    kernels = [
        sk.SubKernel.from_object(templates, name, block_dim=2, params=["in:x", "out:y"], core="vector")
        for name in ("first", "second")
    ]
    ops = [sk.Op(kernels[0], ["a", "b"]), sk.Op(kernels[1], ["b", "c"])]
    with sk.compile(ops, "grouped", "split-mode=3:compile-options=-O0", "ascend") as k:
        built = k.executable.built.binary
    assert built is not None
    nm = subprocess.run(["nm", str(built)], capture_output=True, text=True, check=True).stdout
    defined = [line.split()[-1] for line in nm.splitlines() if line.split()[-2] in "tT"]
    copies = [f"{name}{suffix}" for name in ("first", "second") for suffix in ("", "_split1", "_split2")]
    assert sorted(name for name in defined if name.startswith(("first", "second"))) == copies
    assert sum("twice" in name for name in defined) == 6


def test_each_copy_is_renamed_for_either_editor(templates: Path) -> None:
    kernel = sk.SubKernel.from_object(templates, "first", block_dim=2, params=["in:x", "out:y"], core="vector")
    with sk.compile([sk.Op(kernel, ["a", "b"])], "grouped", "split-mode=2", "ascend") as k:
        renames = [one.arguments for one in k.executable.build.commands if one.stage is Stage.RENAME]
    assert all("--remove-section=.group" in arguments for arguments in renames)
    kept = [[word for word in arguments if word.startswith("--keep")] for arguments in renames]
    assert kept == [
        ["--keep-global-symbol=first"],
        ["--keep-global-symbol=first", "--keep-global-symbol=first_split1"],
    ]
