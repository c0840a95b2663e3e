"""The build as data, and run: all that needs no device compiler on host objects, the whole with one that stands in."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from targets.ascend.conftest import MIX, TILED, entry, metadata
from targets.ascend.test_metadata import compiled

import superkernel as sk
from superkernel.errors import BuildError, LaunchError
from superkernel.targets import find_target
from superkernel.targets.ascend.archive import code_bytes, members
from superkernel.targets.ascend.build import BuildPlan, Command, Stage
from superkernel.targets.ascend.objects import execute
from superkernel.targets.ascend.tools import Tool, find_tools
from superkernel.targets.native.elf import read_object

Write = Callable[..., Path]


@pytest.fixture
def mixed(write: Write) -> Path:
    """A vector op, a mix op, and the vector op again."""
    ops = [entry("vec", args=["a", "b"]), entry("mix", args=["b", "c"]), entry("vec", args=["c", "d"])]
    return write(ops, vec=metadata(), mix=metadata(**MIX))


def visible(path: Path) -> set[str]:
    return {function.name for function in read_object(path).functions}


def test_the_commands_in_order(mixed: Path) -> None:
    with compiled(mixed, "split-mode=2:compile-options=-g") as k:
        build = k.executable.build
        stages = [command.stage for command in build.commands]
        assert stages == sorted(stages, key=list(Stage).index)
        assert {*stages} == {*Stage}
        compiles = [command for command in build.commands if command.tool is Tool.COMPILER]
        assert [c.arguments[c.arguments.index("--cce-aicore-only") + 1] for c in compiles] == [
            "--cce-aicore-arch=dav-c220-cube",
            "--cce-aicore-arch=dav-c220-vec",
        ]
        assert all("-g" in command.arguments for command in compiles)
        merge = next(command for command in build.commands if command.stage is Stage.MERGE)
        assert merge.reads == (
            "work/cube_entry.o",
            "work/cube_objects.o",
            "work/vector_entry.o",
            "work/vector_objects.o",
        )
        assert build.entries == ("auto_gen_ops_kernel_mix_aic", "auto_gen_ops_kernel_mix_aiv")


def without_compiler(build: BuildPlan) -> list[Command]:
    """The commands that need nothing a compiler would have to make first."""
    present = {file.name for file in build.inputs}
    chosen = []
    for command in build.commands:
        if command.tool is not Tool.COMPILER and present.issuperset(command.reads):
            chosen.append(command)
            present.update(command.makes)
    return chosen


def prepared_objects(build: BuildPlan, source: str, folder: Path) -> list[Command]:
    """Everything that needs no device compiler, done in `folder`: unpacked, measured, renamed, localised, merged."""
    commands = without_compiler(build)
    execute(build, commands, source, folder, find_tools())
    return commands


def test_what_needs_no_compiler_is_really_done(mixed: Path, tmp_path: Path) -> None:
    with compiled(mixed, "split-mode=2") as k:
        executable = k.executable
        done = prepared_objects(executable.build, executable.source, tmp_path / "work here")
        assert {command.stage for command in done} == {Stage.UNPACK, Stage.MEASURE, Stage.RENAME, Stage.MERGE_OBJECTS}
    folder = tmp_path / "work here" / "work"
    assert visible(folder / "vec_func_split1.o") == {"vec_func_split1"}
    assert visible(folder / "vector_objects.o") == {
        *("vec_func", "vec_func_split1", "mix_vec_func", "mix_vec_func_split1"),
    }
    assert visible(folder / "cube_objects.o") == {"mix_cube_func", "mix_cube_func_split1"}


def test_ready_made_copies_are_taken(write: Write, tmp_path: Path) -> None:
    names = {"AiCore": {"func_name": "few", "obj_files": "tiled.o", "obj_files_split1": "tiled_copy.o"}}
    path = write([entry("tiled")], tiled=metadata("tiled", split_mode=2, sub_operator_kernel_name=names))
    with compiled(path) as k:
        renames = [c for c in k.executable.build.commands if c.stage is Stage.RENAME]
        assert [command.reads[0].rpartition("/")[2] for command in renames] == ["tiled.o", "tiled_copy.o"]
        prepared_objects(k.executable.build, k.source, tmp_path / "there")
        assert visible(tmp_path / "there" / "work" / "vector_objects.o") == {"few", "few_split1"}


def test_a_function_per_tiling_key_out_of_one_object(write: Write, tmp_path: Path) -> None:
    path = write([entry("tiled", task_type="dynamic")], tiled=metadata(**TILED))
    with compiled(path, "split-mode=1") as k:
        prepared_objects(k.executable.build, k.source, tmp_path / "there")
        assert visible(tmp_path / "there" / "work" / "few.o") == {"few"}
        assert visible(tmp_path / "there" / "work" / "vector_objects.o") == {"few", "many"}


def test_members_and_their_code(binaries: Path) -> None:
    assert list(members(binaries / "mix.a")) == ["mix_cube.o", "mix_vec.o"]
    assert members(binaries / "vec.o") == {"vec.o": (binaries / "vec.o").read_bytes()}
    assert 0 < code_bytes(binaries / "mix.a", ("mix_cube.o",)) < code_bytes(binaries / "mix.a")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"!<thin>\n", "thin archive"),
        (b"!<arch>\n" + b"x" * 60, "corrupt"),
        (b"!<arch>\nvec.o/          0           0     0     644     999       `\nshort", "truncated"),
    ],
)
def test_an_archive_that_is_broken(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "broken.a").write_bytes(content)
    with pytest.raises(BuildError, match=words):
        members(tmp_path / "broken.a")


def test_an_archive_whose_member_is_no_object(write: Write, tmp_path: Path) -> None:
    (tmp_path / "vec.o").write_text("not code")
    subprocess.run(["ar", "rc", str(tmp_path / "fake.a"), str(tmp_path / "vec.o")], check=True)
    (tmp_path / "vec.o").unlink()
    with pytest.raises(BuildError, match=r"fake\.a: vec\.o is no object file"):
        compiled(write([entry("vec", bin_path="fake.a")], vec=metadata()))


def test_a_long_member_name(tmp_path: Path, binaries: Path) -> None:
    name = "a_very_long_name_of_an_object_file_that_needs_the_table.o"
    shutil.copy(binaries / "vec.o", tmp_path / name)
    subprocess.run(["ar", "rc", "long.a", name], check=True, cwd=tmp_path)
    assert list(members(tmp_path / "long.a")) == [name]


# without the compiler


def test_the_status_says_what_is_missing_and_what_to_do(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with compiled(mixed) as k:
        status, parsed = k.executable.remarks
    assert parsed == f"{k.name}_kernel.cpp parsed for cube and vector cores without an error"
    assert "not built" in status and "ASCEND_HOME_PATH is not set" in status and "build.sh" in status


def test_a_launch_says_that_it_needs_an_npu(mixed: Path) -> None:
    with compiled(mixed) as k, pytest.raises(LaunchError, match=r"NPU.*k\.emulate"):
        k({})


def test_saved_files_are_complete_and_loaded_again(mixed: Path, tmp_path: Path) -> None:
    with compiled(mixed) as k:
        folder = k.save(tmp_path / "saved")
        source, layout = k.source, str(k.layout)
    names = {path.name for path in folder.iterdir()}
    assert {"ops_kernel.cpp", "ops.json", "build.sh", "superkernel.json", "plan.txt"} <= names
    assert os.access(folder / "build.sh", os.X_OK)
    descriptor = json.loads((folder / "ops.json").read_text())
    assert descriptor["taskRation"] == "1:2" and descriptor["blockDim"] == 4
    with sk.load(folder) as again:
        assert again.source == source and str(again.layout) == layout
        assert again.target.chip.name == "a3"
        again.save(tmp_path / "twice")


def test_build_sh_is_a_script_and_asks_for_cann(mixed: Path, tmp_path: Path) -> None:
    with compiled(mixed) as k:
        folder = k.save(tmp_path / "saved")
    environment = {key: value for key, value in os.environ.items() if key != "ASCEND_HOME_PATH"}
    done = subprocess.run(["sh", "build.sh"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode and "ASCEND_HOME_PATH" in done.stderr


# with something that stands in for the compiler


def test_with_the_compiler_the_object_has_the_entries_and_nothing_else(mixed: Path, cann: Path, tmp_path: Path) -> None:
    tools = find_tools()
    assert tools.path(Tool.COMPILER) and not tools.missing_compiler
    with compiled(mixed, "split-mode=2:profiling=1") as k:
        assert "was built with" in k.executable.remarks[0]
        folder = k.save(tmp_path / "saved")
    nm = subprocess.run(["nm", "-g", "--defined-only", "ops.o"], cwd=folder, capture_output=True, text=True, check=True)
    seen = {line.split()[-1] for line in nm.stdout.splitlines()}
    assert {one for one in seen if not one.startswith("_")} == {
        *("auto_gen_ops_kernel_mix_aic", "auto_gen_ops_kernel_mix_aiv")
    }
    descriptor = json.loads((folder / "ops.json").read_text())
    assert len(descriptor["sha256"]) == 64


def test_build_sh_makes_the_same_object(mixed: Path, cann: Path, tmp_path: Path) -> None:
    with compiled(mixed) as k:
        folder = k.save(tmp_path / "saved")
    (folder / "ops.o").unlink()
    subprocess.run(["sh", "build.sh"], cwd=folder, check=True)
    assert (folder / "ops.o").is_file()


def test_sub_kernels_that_come_as_sources_find_our_header(cann: Path, tmp_path: Path) -> None:
    """At once, and where the folder was carried to; the entry's options are not theirs."""
    (tmp_path / "early.cpp").write_text(
        '#include "kernel_operator.h"\n#include <superkernel/subkernel.h>\n'
        "#ifdef FOR_THE_ENTRY\n#error not for sub-kernels\n#endif\n"
        'extern "C" __aicore__ void early(uint64_t) { sk_wait_previous(); sk_set_next(); }\n'
    )
    params = ["in:x:int32[64]", "out:y:int32[64]"]
    early = sk.SubKernel.from_source(
        tmp_path / "early.cpp", "early", block_dim=4, params=params, flags=["-DSK_CORE_LOCAL="]
    )
    ops = [sk.Op(early, ["a", "b"]), sk.Op(early, ["b", "c"])]
    options = "compile-options=-DFOR_THE_ENTRY,-DSK_CORE_LOCAL="
    chip = {**find_target("ascend").chip_fields(), "cube_flag": 1, "vector_macro": "ON_A_VECTOR"}
    (tmp_path / "chip.json").write_text(json.dumps(chip))
    with sk.compile(ops, name="two", options=options, target="ascend", chip=tmp_path / "chip.json") as k:
        assert "-DSK_CUBE_FLAG=1" in "\n".join(k.executable.commands)
        assert k.executable.built.binary is not None
        folder = k.save(tmp_path / "saved")
    (folder / "two.o").unlink()
    subprocess.run(["sh", "build.sh"], cwd=folder, check=True)
    assert (folder / "two.o").is_file()


def two_in_one(folder: Path) -> list[sk.Op]:
    """Two functions of one source, and an early-start pair."""
    (folder / "both.cpp").write_text(
        '#include "kernel_operator.h"\n'
        'extern "C" __aicore__ void one(uint64_t) {}\nextern "C" __aicore__ void two(uint64_t) {}\n'
    )
    one, two = (
        sk.SubKernel.from_source(folder / "both.cpp", name, block_dim=4, params=["in:x", "out:y"])
        for name in ("one", "two")
    )
    return [sk.Op(one, ["a", "b"]), sk.Op(two, ["b", "c"])]


def test_copies_of_an_object_carry_only_what_they_need(cann: Path, tmp_path: Path) -> None:
    # the entry as it stands: what the stand-in's header returns makes an optimiser drop its calls
    options = "split-mode=3:compile-options=-O0"
    with sk.compile(two_in_one(tmp_path), name="few", options=options, target="ascend") as k:
        folder = k.save(tmp_path / "saved")
    nm = subprocess.run(["nm", "few.o"], cwd=folder, capture_output=True, text=True, check=True)
    defined = sorted(line.split()[-1] for line in nm.stdout.splitlines() if line.split()[-2] in "tT")
    functions = [name for name in defined if name.startswith(("one", "two"))]
    assert functions == ["one", "one_split1", "one_split2", "two", "two_split1", "two_split2"]


@pytest.mark.parametrize(
    ("options", "given", "left_out"),
    [
        ("split-mode=1:early-start=0", ("-DASCENDC_DUMP=0",), ("EARLY_START_V2", "AUTO_SYNC_ALL", "-long-call")),
        ("split-mode=2", ("-cce-aicore-long-call", "-cce-aicore-jump-expand=true"), ("AUTO_SYNC_ALL",)),
        (
            "early-start=1",
            (
                "-D__ASCENDC_ENABLE_SET_NEXT_TASK_START",
                "-D__ASCENDC_ENABLE_WAIT_PRE_TASK_END",
                "-D__ASCENDC_SUPERKERNEL_EARLY_START_V2",
            ),
            ("DYNAMIC_BLOCK_NUM",),
        ),
        ("feed-sync-all=1", ("-D__ASCENDC_SUPERKERNEL_AUTO_SYNC_ALL__",), ()),
        ("", ("-cce-aicore-addr-transform", "-cce-aicore-dcci-insert-for-scalar=false"), ()),
    ],
)
def test_entry_and_sub_kernels_are_compiled_alike(
    tmp_path: Path, options: str, given: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    with sk.compile(two_in_one(tmp_path), name="few", options=options, target="ascend") as k:
        compiles = [command for command in k.executable.build.commands if command.tool is Tool.COMPILER]
    assert len(compiles) == 2
    for command in compiles:
        assert set(given) <= set(command.arguments)
        assert not [word for word in command.arguments for part in left_out if part in word]


def test_a_newer_toolkit_names_the_architecture_otherwise(tmp_path: Path) -> None:
    chip = {
        **find_target("ascend").chip_fields(),
        "toolkit": {"architecture_flag": "--npu-arch=dav-2201", "linker_emulation": "other"},
    }
    (tmp_path / "chip.json").write_text(json.dumps(chip))
    with sk.compile(two_in_one(tmp_path), name="few", target="ascend", chip=tmp_path / "chip.json") as k:
        lines = k.executable.commands
    assert sum("--npu-arch=dav-2201" in line for line in lines) == 2 and "--cce-aicore-arch" not in "".join(lines)
    [link] = [line for line in lines if "-Ttext=0" in line]
    assert "-m other -Ttext=0" in link and "--gc-sections" in link


def test_a_compiler_that_fails_is_quoted(mixed: Path, cann: Path) -> None:
    tool = cann / "compiler" / "ccec_compiler" / "bin" / "bisheng"
    tool.write_text("#!/bin/sh\necho 'no licence' >&2\nexit 3\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(BuildError) as caught:
        compiled(mixed)
    assert "no licence" in str(caught.value) and "exit status 3" in str(caught.value) and "bisheng" in str(caught.value)


def test_a_missing_tool_is_named(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled(mixed) as k:
        build, source = k.executable.build, k.source
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with pytest.raises(BuildError, match="no ar was found"):
        execute(build, without_compiler(build), source, tmp_path / "there", find_tools())
