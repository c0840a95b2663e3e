"""targets.cpu.elf and symbols: what is in an object, which symbol a name means, and what a wrong file really is."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superkernel.errors import BuildError
from superkernel.targets.native.elf import Binding, ObjectFile, host_architecture, read_object, symbol_size
from superkernel.targets.native.symbols import base_name, find_symbol

Compile = Callable[..., Path]

MACHINE_AT, CLASS_AT, ORDER_AT = 18, 4, 5  # in an ELF header


@pytest.fixture
def gxx(tmp_path: Path) -> Compile:
    def compile_text(text: str, *flags: str, suffix: str = ".cpp", name: str = "k.o") -> Path:
        source = tmp_path / ("source" + suffix)
        source.write_text(text)
        command = ["g++", "-O1", "-fPIC", "-c", *flags, *(["-x", "c"] if suffix == ".c" else [])]
        subprocess.run([*command, str(source), "-o", str(tmp_path / name)], check=True)
        return tmp_path / name

    return compile_text


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("healthy")
    (folder / "k.c").write_text("int helper(int); int kernel(int x) { return helper(x) + 1; }")
    subprocess.run(["g++", "-x", "c", "-fPIC", "-c", str(folder / "k.c"), "-o", str(folder / "k.o")], check=True)
    return (folder / "k.o").read_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(BuildError) as caught:
        read_object(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_functions_sizes_and_references_are_read(gxx: Compile) -> None:
    made = read_object(
        gxx(
            """
            extern "C" int sk_block_idx();
            int data = 3;
            static __attribute__((noinline)) int quiet(int x) { return x * data; }
            __attribute__((weak)) int soft(int x) { return quiet(x); }
            extern "C" int kernel(int x) { return quiet(x) + sk_block_idx(); }
            """
        )
    )
    bindings = {function.name: function.binding for function in made.functions}
    assert bindings == {"kernel": Binding.GLOBAL, "_Z4softi": Binding.WEAK}
    assert [function.name for function in made.local_functions] == ["_ZL5quieti"]
    assert made.undefined == {"sk_block_idx"}
    sizes = [symbol_size(made, name) for name in ("kernel", "_Z4softi", "_ZL5quieti")]
    assert all(size > 0 for size in sizes)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the source names an x86 instruction set")
def test_an_indirect_function_counts_as_a_function(gxx: Compile) -> None:
    made = read_object(gxx('extern "C" __attribute__((target_clones("avx2", "default"))) int kernel() { return 1; }'))
    assert find_symbol(made, "kernel") == "kernel"


def test_an_untyped_function_in_assembly_counts_as_a_function(gxx: Compile) -> None:
    made = read_object(
        gxx('__asm__(".text\\n.globl kernel\\nkernel: ret\\n.data\\n.globl number\\nnumber: .long 1\\n");')
    )
    assert [function.name for function in made.functions] == ["kernel"]


def test_the_size_of_an_absent_function_is_a_build_error(gxx: Compile) -> None:
    with pytest.raises(BuildError, match=r"k\.o does not define the function 'other'"):
        symbol_size(read_object(gxx("void f() {}")), "other")


def test_a_missing_file_a_directory_and_an_empty_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.o").touch()
    assert "does not exist" in refusal(tmp_path / "gone.o")
    assert "is a directory" in refusal(tmp_path)
    assert "is empty" in refusal(tmp_path / "empty.o")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"!<arch>\n", "static archive"),
        (b"BC\xc0\xde", "bitcode"),
        (b"int f();", "not an object"),
        (b"\x7fEL", "not an object"),
    ],
)
def test_a_file_of_another_format_is_told_apart(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "k.o").write_bytes(start + b"\n" * 100)
    assert kind in refusal(tmp_path / "k.o")


def test_linked_files_are_told_apart_from_objects(gxx: Compile, tmp_path: Path) -> None:
    made = gxx("int main() {}")
    for kind, flags in {"an executable": ["-no-pie"], "a shared object": ["-shared"]}.items():
        subprocess.run(["g++", *flags, str(made), "-o", str(tmp_path / "linked")], check=True)
        assert kind in refusal(tmp_path / "linked")


@pytest.mark.parametrize(
    ("at", "value", "other"), [(MACHINE_AT, 183, "AARCH64"), (CLASS_AT, 1, "32 bit"), (ORDER_AT, 2, "")]
)
def test_an_object_for_another_machine_names_both(
    tmp_path: Path, healthy: bytes, at: int, value: int, other: str
) -> None:
    foreign = bytearray(healthy)
    foreign[at] = value
    if at == CLASS_AT:
        foreign[MACHINE_AT : MACHINE_AT + 2] = struct.pack("<H", 3)
    (tmp_path / "k.o").write_bytes(foreign)
    if at == ORDER_AT:  # every number reads differently now: any refusal is right
        refusal(tmp_path / "k.o")
    else:
        message = refusal(tmp_path / "k.o")
        assert other in message
        assert host_architecture() in message


def test_a_stripped_object_and_one_without_machine_code_are_refused(gxx: Compile) -> None:
    stripped = gxx("void f() {}")
    subprocess.run(["objcopy", "--strip-all", str(stripped)], check=True)
    assert "stripped" in refusal(stripped)
    assert "-flto" in refusal(gxx("void f() {}", "-flto", "-fno-fat-lto-objects"))


@given(cut=st.integers(min_value=1, max_value=10**6))
def test_a_truncated_object_is_refused_wherever_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, healthy: bytes, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.o"
    path.write_bytes(healthy[: cut % len(healthy)])
    refusal(path)


@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_object_is_read_or_refused_with_a_build_error(
    tmp_path_factory: pytest.TempPathFactory, healthy: bytes, flips: list[tuple[int, int]]
) -> None:
    damaged = bytearray(healthy)
    for at, value in flips:
        damaged[at % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.o"
    path.write_bytes(damaged)
    try:
        read_object(path)
    except BuildError as error:
        assert str(path) in str(error)


NAMES = """
extern "C" void plain(int*) {}
void add(float*) {}
namespace ns { void add(float*) {} template <class T> void scale(T*) {} template void scale<float>(float*);
               template void scale<int>(int*); struct Op { void run(); }; void Op::run() {} }
void over(int) {}
void over(float) {}
int outer(int x) { struct Inner { __attribute__((noinline)) int deep(int y) { return y; } }; return Inner().deep(x); }
static __attribute__((noinline, used)) void hidden(int*) {}
namespace { __attribute__((used)) void anonymous(int*) {} }
namespace a { static __attribute__((used)) void twin() {} }
namespace b { static __attribute__((used)) void twin() {} }
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> ObjectFile:
    folder = tmp_path_factory.mktemp("names")
    (folder / "names.cpp").write_text(NAMES)
    subprocess.run(["g++", "-fPIC", "-c", str(folder / "names.cpp"), "-o", str(folder / "names.o")], check=True)
    return read_object(folder / "names.o")


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("plain", "plain"),
        ("add", "_Z3addPf"),  # the one that is spelled exactly so, not ns::add
        ("_Z3addPf", "_Z3addPf"),
        ("ns::add", "_ZN2ns3addEPf"),
        ("add(float*)", "_Z3addPf"),
        ("ns::scale<float>", "_ZN2ns5scaleIfEEvPT_"),
        ("run", "_ZN2ns2Op3runEv"),
        ("over(int)", "_Z4overi"),
        ("outer", "_Z5outeri"),  # not outer(int)::Inner::deep(int)
    ],
)
def test_a_name_finds_its_symbol(names: ObjectFile, name: str, symbol: str) -> None:
    assert find_symbol(names, name) == symbol


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("over", ["over(int)", "over(float)"]),
        ("scale", ["ns::scale<float>", "ns::scale<int>"]),
        ("twin", ["a::twin", "b::twin"]),
    ],
)
def test_an_ambiguous_name_lists_its_candidates(names: ObjectFile, name: str, candidates: list[str]) -> None:
    with pytest.raises(BuildError, match="ambiguous") as caught:
        find_symbol(names, name)
    assert all(candidate in str(caught.value) for candidate in [*candidates, "names.o"])


@pytest.mark.parametrize("name", ["hidden", "anonymous"])
def test_a_static_function_is_refused_as_static(names: ObjectFile, name: str) -> None:
    with pytest.raises(BuildError, match=r"names\.o is static"):
        find_symbol(names, name)


def test_an_unknown_name_suggests_the_nearest_and_lists_what_is_there(names: ObjectFile) -> None:
    with pytest.raises(
        BuildError, match=r"names\.o does not define a function 'plian' \(did you mean 'plain'\?\)"
    ) as caught:
        find_symbol(names, "plian")
    assert "ns::Op::run()" in str(caught.value)


def test_an_object_without_functions_says_so(gxx: Compile) -> None:
    with pytest.raises(BuildError, match="defines no function"):
        find_symbol(read_object(gxx("int number = 1;")), "kernel")


def test_two_static_functions_of_one_name_are_ambiguous(gxx: Compile, tmp_path: Path) -> None:
    text = "static __attribute__((used)) int same(void) { return 1; }"
    parts = [gxx(text, suffix=".c", name=name) for name in ("a.o", "b.o")]
    subprocess.run(["ld", "-r", *map(str, parts), "-o", str(tmp_path / "both.o")], check=True)
    with pytest.raises(BuildError, match="ambiguous"):
        find_symbol(read_object(tmp_path / "both.o"), "same")


def test_without_a_demangler_symbols_still_match(names: ObjectFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert find_symbol(names, "_Z3addPf") == "_Z3addPf"
    with pytest.raises(BuildError, match="does not define"):
        find_symbol(names, "add")


def test_the_base_name_of_a_symbol_has_no_scope_and_no_arguments() -> None:
    assert base_name("plain") == "plain"
    assert base_name("_ZN2ns5scaleIfEEvPT_") == "scale"
