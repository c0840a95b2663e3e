"""Files, compilers, options and cores that cannot give a super kernel: an error that names them, and nothing built."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from runtime.given import ADD, KERNELS, VECTOR, child, kernel

import superkernel as sk
from superkernel import BuildError, Op, OptionError, PlanError, UnsupportedError
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.toolchain import find_toolchain, run

PARAMS = [f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"]
ARGS = ["a", "b", "c"]


def compile_it(sub_kernel: sk.SubKernel, **more: Any) -> sk.SuperKernel:
    return sk.compile([Op(sub_kernel, ARGS)], name="wrong", **more)


def refusal(make: Callable[[], object], *words: str, error: type[Exception] = BuildError) -> Exception:
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    return caught.value


@pytest.fixture(scope="module")
def good_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("objects") / "kernels.o"
    run([*find_toolchain().cxx, "-O1", "-fPIC", f"-I{INCLUDE}", "-c", str(KERNELS), "-o", str(made)], what="an object")
    return made


def from_object(path: Path, name: str = "add") -> sk.SubKernel:
    return sk.SubKernel.from_object(path, name, block_dim=1, params=PARAMS)


def from_text(path: Path, text: str, name: str = "add") -> sk.SubKernel:
    path.write_text(text)
    return sk.SubKernel.from_source(path, name, block_dim=1, params=PARAMS)


# --- files


@pytest.mark.parametrize("make", [sk.SubKernel.from_source, sk.SubKernel.from_object, sk.SubKernel.from_ptx])
def test_a_file_that_is_not_there(tmp_path: Path, make: Callable[..., sk.SubKernel]) -> None:
    for path in (tmp_path / "nowhere.o", tmp_path, str(tmp_path / ("long" * 200)), "with\0nul"):
        refusal(lambda path=path: make(path, "add", block_dim=1, params=PARAMS), "'add'", "file", ascii(str(path))[1:9])
    refusal(lambda: make(None, "add", block_dim=1, params=PARAMS), "'add'", "None", error=sk.GraphError)


def test_a_file_that_has_gone_since(tmp_path: Path, good_object: Path) -> None:
    copy = tmp_path / "gone.o"
    copy.write_bytes(good_object.read_bytes())
    gone = from_object(copy)
    copy.unlink()
    refusal(lambda: compile_it(gone), str(copy), "does not exist")
    source = from_text(tmp_path / "gone.cpp", "")
    (tmp_path / "gone.cpp").unlink()
    refusal(lambda: compile_it(source), "gone.cpp", "does not exist")


def with_machine(raw: bytes) -> bytes:
    """The same object, said to be for AArch64."""
    return raw[:18] + (183).to_bytes(2, "little") + raw[20:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: b"", ("empty",)),
        (lambda raw: b"not an object at all", ("not an object file",)),
        (lambda raw: raw[: len(raw) // 2], ("truncated",)),
        (lambda raw: raw[:40], ("corrupt",)),
        (lambda raw: raw[:4] + bytes(60) + raw[64:], ("corrupt",)),
        (with_machine, ("AARCH64", "this machine is")),
        (lambda raw: b"!<arch>\n" + raw, ("archive",)),
    ],
    ids=["empty", "text", "half", "header", "zeros", "machine", "archive"],
)
def test_an_object_that_is_none(
    tmp_path: Path, good_object: Path, spoil: Callable[[bytes], bytes], words: Sequence[str]
) -> None:
    spoilt = tmp_path / "spoilt.o"
    spoilt.write_bytes(spoil(good_object.read_bytes()))
    refusal(lambda: compile_it(from_object(spoilt)), str(spoilt), *words)


def test_a_shared_object_is_no_object(tmp_path: Path, good_object: Path) -> None:
    library = tmp_path / "library.so"
    run([*find_toolchain().cxx, "-shared", str(good_object), "-o", str(library)], what="a library")
    refusal(lambda: compile_it(from_object(library)), str(library), "shared object")


def test_a_source_in_another_language(tmp_path: Path) -> None:
    refusal(lambda: compile_it(from_text(tmp_path / "kernel.f90", "")), "kernel.f90", ".cpp")


def test_ptx_is_for_another_target(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text("")
    ptx = sk.SubKernel.from_ptx(tmp_path / "k.ptx", "add", block_dim=1, params=PARAMS)
    refusal(lambda: compile_it(ptx), "'add'", "target='cuda'", error=UnsupportedError)


# --- symbols


def test_a_symbol_that_is_missing_names_file_and_nearest(good_object: Path) -> None:
    refusal(lambda: compile_it(from_object(good_object, "adds")), str(good_object), "'adds'", "did you mean 'add'?")
    refusal(lambda: compile_it(kernel("adds", *PARAMS)), KERNELS.name, "'adds'", "did you mean 'add'?")


def test_a_symbol_that_is_ambiguous_names_file_and_candidates(good_object: Path) -> None:
    words = ("'twin'", "ambiguous", "left::twin", "right::twin")
    refusal(lambda: compile_it(from_object(good_object, "twin")), str(good_object), *words)
    refusal(lambda: compile_it(kernel("twin", *PARAMS)), KERNELS.name, *words)


def test_a_symbol_that_is_static(good_object: Path) -> None:
    refusal(lambda: compile_it(from_object(good_object, "hidden")), str(good_object), "'hidden'", "static")


def test_a_variant_that_is_missing() -> None:
    roots = kernel("add", *PARAMS, variants={1: "add", 2: "addd"})
    ops = [Op(roots, ARGS, task="dynamic", tiling=lambda inputs: (1, 1))]
    refusal(lambda: sk.compile(ops, name="wrong"), "'addd'", "did you mean 'add'?")


def test_a_symbol_that_nothing_defines(tmp_path: Path) -> None:
    source = tmp_path / "needs.cpp"
    needs = from_text(source, 'extern "C" void from_elsewhere(); extern "C" void add() { from_elsewhere(); }')
    refusal(lambda: compile_it(needs), "undefined: from_elsewhere", str(source))


# --- compilers


def test_a_source_that_does_not_compile_shows_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "broken.cpp"
    error = refusal(
        lambda: compile_it(from_text(source, "int add( { return undeclared_thing; }\n")), str(source), "error:"
    )
    assert isinstance(error, BuildError)
    assert "broken.cpp:1" in error.stderr and str(source) in " ".join(error.command)
    refusal(lambda: compile_it(from_text(source, "#include <no/such/header.h>\n")), str(source), "no/such/header.h")


def test_flags_that_the_compiler_refuses(tmp_path: Path) -> None:
    refusal(lambda: compile_it(kernel("add", *PARAMS, flags=["-fno-such-flag"])), KERNELS.name, "-fno-such-flag")
    refusal(lambda: compile_it(ADD, options="compile-options=-fno-such-flag"), "-fno-such-flag")


def test_a_machine_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "empty"))
    refusal(lambda: compile_it(ADD), "C++ compiler is missing", "g++", "install")


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    refusal(lambda: compile_it(ADD), "CXX", "/nowhere/c++")


def test_a_compiler_that_fails_shows_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers questions about itself, and fails at everything else."""
    fake = tmp_path / "c++"
    fake.write_text(
        '#!/bin/sh\ncase "$1" in -dumpmachine|--version) echo fake;; *) echo licence expired >&2; exit 9;; esac\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    error = refusal(lambda: compile_it(ADD), "exit status 9", "licence expired", str(fake), KERNELS.name)
    assert isinstance(error, BuildError) and error.command[0] == str(fake)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(blocked / "cache"))
    refusal(lambda: compile_it(ADD), str(blocked), "SUPERKERNEL_CACHE")


# --- options, targets, cores


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("early-strat=1", ("early-strat", "did you mean 'early-start'?")),
        ("early-start=3", ("early-start", "'3'", "0, 1, 2")),
        ("early-start=1:early-start=1", ("early-start", "twice")),
        ("early-start", ("early-start", "no '='")),
        ("early-start=", ("early-start",)),
        ("=1", ("empty key",)),
        ("split-mode=65", ("split-mode", "1 to 64")),
        ("debug-aic-num=1:debug-aiv-num=3", ("debug-aic-num", "debug-aiv-num")),
        (3, ("3",)),
        (b"early-start=1", ("early-start",)),
    ],
)
def test_a_wrong_option_text(options: Any, words: Sequence[str]) -> None:
    refusal(lambda: compile_it(ADD, options=options), *words, error=OptionError)


@pytest.mark.parametrize(("target", "hint"), [("cup", "did you mean 'cpu'?"), ("CPU", "cpu"), (None, "cpu"), ("", "")])
def test_an_unknown_target(target: Any, hint: str) -> None:
    refusal(lambda: compile_it(ADD, target=target), repr(target), hint, "ascend", error=OptionError)


@pytest.mark.parametrize("cores", [0, -1, 4097, 1.5, True, "2"])
def test_a_number_of_cores_out_of_range(cores: Any) -> None:
    words = ("super_kernel_scope 'wrong'", f"cores={cores!r}", "1 to 4096")
    refusal(lambda: compile_it(ADD, cores=cores), *words, error=PlanError)


@pytest.mark.parametrize("key", ["debug-aic-num", "debug-aiv-num"])
def test_more_cores_than_the_machine_has(key: str) -> None:
    words = ("super_kernel_scope 'wrong'", key)
    refusal(lambda: compile_it(ADD, options=f"{key}=100000"), *words, "100000", error=PlanError)
    refusal(lambda: compile_it(ADD, options=f"{key}=3", cores=2), *words, "3 cores", "are 2", error=PlanError)


def test_fewer_cores_than_an_op_with_sync_all_needs(tmp_path: Path) -> None:
    text = '#include <superkernel/kernel.h>\nextern "C" void meet(float*) { sk::sync_all(); }\n'
    (tmp_path / "meet.cpp").write_text(text)
    meet = sk.SubKernel.from_source(tmp_path / "meet.cpp", "meet", block_dim=3, params=["inout:x"])
    for more in ({"cores": 2}, {"cores": 4, "options": "debug-aic-num=2"}):
        words = ("super_kernel_scope 'wrong'", "'meet'", "sync_all", "3 blocks", "2 cores")
        refusal(lambda more=more: sk.compile([Op(meet, ["x"])], name="wrong", **more), *words, error=PlanError)


def test_a_refused_compilation_leaves_no_super_kernel_behind(tmp_path: Path) -> None:
    """In a cache of its own, which stays empty: all this is known before anything is built."""
    code = """
        import superkernel as sk
        from runtime.given import ADD
        for wrong in ({"options": "early-start=9"}, {"cores": 0}, {"options": "debug-aic-num=100000"}):
            try:
                sk.compile([sk.Op(ADD, ["a", "b", "c"])], **wrong)
            except sk.SuperKernelError as error:
                print(type(error).__name__)
    """
    done = child(code, SUPERKERNEL_CACHE=str(tmp_path))
    assert done.stdout.split() == ["OptionError", "PlanError", "PlanError"], done.stderr
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []
