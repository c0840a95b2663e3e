"""targets.cpu.objects: sources become objects once; objects become one shared object, each keeps its own names."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from superkernel.cache import Cache
from superkernel.errors import BuildError
from superkernel.targets.native import objects, toolchain
from superkernel.targets.native.elf import read_object
from superkernel.targets.native.objects import CompileJob, compile_source, compile_sources, isolate, link_shared, merge
from superkernel.targets.native.symbols import find_symbol
from superkernel.targets.native.toolchain import Toolchain, find_toolchain

pytestmark = pytest.mark.slow

Write = Callable[..., Path]
QUICK = ("-O0",)


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    return find_toolchain()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write_text


@pytest.fixture
def make(tools: Toolchain, cache: Cache, write: Write) -> Write:
    """Compile text; the flags come last, so they win."""

    def compile_text(name: str, text: str, *flags: str) -> Path:
        return compile_source(write(name, text), (*QUICK, *flags), tools, cache)

    return compile_text


def load(parts: list[Path], entry: Path, folder: Path, tools: Toolchain, **options: object) -> ctypes.CDLL:
    merge([entry, *parts], ["entry"], folder / "merged.o", tools)
    link_shared(folder / "merged.o", folder / "k.so", tools, **options)
    return ctypes.CDLL(str(folder / "k.so"))


def exported(path: Path) -> list[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in listing.stdout.splitlines()]


# --- the tools


def test_a_path_without_a_compiler_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "empty"))
    with pytest.raises(BuildError, match=r"compiler is missing: none of g\+\+, .*apt-get install g\+\+ binutils"):
        find_toolchain()


def test_cxx_chooses_the_compiler_and_its_arguments(monkeypatch: pytest.MonkeyPatch, tools: Toolchain) -> None:
    monkeypatch.setenv("CXX", "g++ -m64")
    chosen = find_toolchain()
    assert chosen.cxx[1:] == ("-m64",)
    assert chosen.identity != tools.identity
    assert find_toolchain() is chosen
    for wrong, reason in {"nosuch++": "not on PATH", "'": "not a command"}.items():
        monkeypatch.setenv("CXX", wrong)
        with pytest.raises(BuildError, match=f"CXX.*{reason}"):
            find_toolchain()


def test_the_identity_names_the_resolved_compiler_and_its_target(tools: Toolchain) -> None:
    assert os.path.realpath(tools.cxx[0]) in tools.identity
    assert toolchain.run([*tools.cxx, "-dumpmachine"], what="x").strip() in tools.identity


def test_a_failed_command_carries_itself_and_what_it_said() -> None:
    log: list[str] = []
    with pytest.raises(BuildError, match=r"^baking: failed with exit status 3") as caught:
        toolchain.run(["sh", "-c", "echo too hot >&2; exit 3"], what="baking", log=log)
    assert caught.value.stderr == "too hot\n"
    assert caught.value.command[0] == "sh"
    assert log == ["sh -c 'echo too hot >&2; exit 3'"]


@pytest.mark.parametrize(
    ("command", "timeout", "reason"),
    [
        (["/nosuch/g++"], 600, "cannot run /nosuch/g\\+\\+"),
        (["sh", "-c", "kill -9 $$"], 600, "killed by SIGKILL"),
        (["sh", "-c", "echo started >&2; exec tail -f /dev/null"], 2, "not finished after 2 s(.|\n)*started"),
    ],
)
def test_a_command_that_never_ends_well_is_a_build_error(command: list[str], timeout: float, reason: str) -> None:
    with pytest.raises(BuildError, match=f"baking: {reason}"):
        toolchain.run(command, what="baking", timeout=timeout)


def test_the_features_of_the_machine_are_stable() -> None:
    features = toolchain.cpu_features()
    assert features
    toolchain.cpu_features.cache_clear()
    assert toolchain.cpu_features() == features


# --- compiling


def test_the_same_text_is_compiled_once_and_any_change_again(make: Write, cache: Cache) -> None:
    text = 'extern "C" int f() { return 1; }'
    first = make("f.cpp", text)
    assert make("copy.cpp", "// only a comment is new\n" + text) == first
    assert (cache.hits, cache.misses) == (1, 1)
    assert (
        len({first, make("f.cpp", text.replace("1", "2")), make("f.cpp", text, "-O1"), make("f.c", "int f() {}")}) == 4
    )


def test_the_key_knows_header_compiler_machine_and_versions(
    write: Write, tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, source = write("h.h", "#define N 1"), write("f.cpp", '#include "h.h"\nint f() { return N; }')

    def made(tools: Toolchain = tools) -> Path:
        return compile_source(source, QUICK, tools, cache, [header.parent])

    found = {made(), made(Toolchain(tools.cxx, tools.ld, tools.objcopy, "another"))}
    header.write_text("#define N 2")
    found.add(made())
    monkeypatch.setattr(objects, "cpu_features", lambda: "another machine")
    found.add(made())
    monkeypatch.setattr(objects, "versions", lambda: "superkernel=99")
    found.add(made())
    assert len(found) == 5


def test_a_failed_compile_shows_the_message_and_the_command(make: Write) -> None:
    with pytest.raises(BuildError, match=r"compiling .*bad\.cpp") as caught:
        make("bad.cpp", "int f() { return missing_name; }")
    assert "missing_name" in str(caught.value)
    assert "-march=native" in caught.value.command
    with pytest.raises(BuildError, match=r"preprocessing .*bad\.cpp(.|\n)*nosuch\.h"):
        make("bad.cpp", '#include "nosuch.h"')


def test_a_source_that_is_missing_or_of_another_language_is_refused(
    tmp_path: Path, tools: Toolchain, cache: Cache, write: Write
) -> None:
    for path, reason in {
        tmp_path / "gone.cpp": "does not exist",
        tmp_path: "is not a file",
        write("k.cu", ""): r"does not end in one of \.cpp",
    }.items():
        with pytest.raises(BuildError, match=f"{path} {reason}"):
            compile_source(path, (), tools, cache)


def test_products_are_rounded_before_they_are_added(tmp_path: Path, make: Write, tools: Toolchain) -> None:
    text = "float entry(float a, float b, float c) { return a * b + c; }"
    library = load([], make("mad.c", text, "-O3"), tmp_path, tools)
    library.entry.argtypes, library.entry.restype = [ctypes.c_float] * 3, ctypes.c_float
    a = 1 + 2.0**-12
    assert library.entry(a, a, -1 - 2.0**-11) == 0.0  # fused, it would be 2**-24


def test_sources_compile_side_by_side_in_order_with_progress(write: Write, tools: Toolchain, cache: Cache) -> None:
    jobs = [CompileJob(write(f"f{n}.cpp", f'extern "C" int f{n}() {{ return {n}; }}'), QUICK) for n in range(4)]
    told: list[str] = []
    log: list[str] = []
    made = compile_sources(jobs, tools, cache, progress=told.append, log=log)
    assert [read_object(path).functions[0].name for path in made] == ["f0", "f1", "f2", "f3"]
    assert len(told) == 4
    assert told[-1].endswith("(4 of 4)")
    assert all(any(str(path) in line for line in log) for path in made)
    assert compile_sources([], tools, cache) == []


def test_the_first_failure_in_order_is_raised_and_later_jobs_never_start(
    write: Write, tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    texts = ["int good;", "int first_mistake = x;", "int second_mistake = y;", *[f"int never{n};" for n in range(40)]]
    jobs = [CompileJob(write(f"f{n}.cpp", text), QUICK) for n, text in enumerate(texts)]
    with pytest.raises(BuildError, match=r"f1\.cpp(.|\n)*first_mistake"):
        compile_sources(jobs, tools, cache)
    assert cache.misses < len(jobs)


# --- isolating, merging, linking

STATEFUL = """
#include <stdexcept>
#include <string>
#include <vector>
int shared_global = V;
static int file_static = 2 * V;
int tentative_like;
inline int& counter() { static int count = 10 * V; return count; }
template <class T> T plus(T x) { static T bias = V; return x + bias++; }
template <class T> struct Holder { static T value; };
template <class T> T Holder<T>::value = 100 * V;
thread_local std::vector<int> per_thread(2, 3 * V);
__attribute__((weak)) int soft() { return 4 * V; }
struct Base { virtual ~Base() {} virtual int id() { return 5 * V; } };
struct Mine { int code; };
static struct Start { Start() { tentative_like = 6 * V; } } start;
__attribute__((noinline)) void fail(bool own) {
    if (own) throw Mine{7 * V};
    throw std::runtime_error(std::string(3, 'a' + V));
}
extern "C" void kernel(int* out) {
    std::vector<Base*> objects{new Base};
    int code = 0, letter = 0;
    try { fail(true); } catch (const Mine& mine) { code = mine.code; }
    try { fail(false); } catch (const std::exception& error) { letter = error.what()[0]; }
    int values[] = {shared_global, file_static, counter()++, plus(0), Holder<int>::value, per_thread[1], soft(),
                    objects[0]->id(), tentative_like, code, letter - 'a'};
    for (int value : values) *out++ = value;
    delete objects[0];
}
"""
EXPECTED = [1, 2, 10, 1, 100, 3, 4, 5, 6, 7, 1]
ENTRY = (
    'extern "C" void one(int*); extern "C" void two(int*); extern "C" void entry(int* a, int* b) { one(a); two(b); }'
)


@pytest.mark.parametrize("flags", [(), ("-O2", "-fgnu-unique", "-g"), ("-O2", "-flto", "-ffat-lto-objects")])
def test_two_objects_with_the_same_names_keep_their_own(
    make: Write, tmp_path: Path, tools: Toolchain, cache: Cache, flags: tuple[str, ...]
) -> None:
    parts = [
        isolate(make("k.cpp", STATEFUL, f"-DV={value}", *flags), "kernel", unique, tools, cache)
        for value, unique in ((1, "one"), (2, "two"))
    ]
    library = load(parts, make("entry.cpp", ENTRY), tmp_path, tools)
    first, second = (ctypes.c_int * 11)(), (ctypes.c_int * 11)()
    library.entry(first, second)
    assert list(first) == EXPECTED
    assert list(second) == [2 * value for value in EXPECTED]
    library.entry(first, second)  # static variables moved on, each its own
    assert (first[2], first[3], second[2], second[3]) == (11, 2, 21, 3)
    assert exported(tmp_path / "k.so") == ["entry"]


def test_two_copies_of_one_object_have_variables_of_their_own(
    make: Write, tmp_path: Path, tools: Toolchain, cache: Cache
) -> None:
    same = make("k.c", "static int n; int m; void kernel(int* out) { *out = ++n + ++m; }", "-fcommon")
    parts = [isolate(same, "kernel", unique, tools, cache) for unique in ("one", "two")]
    library = load(parts, make("entry.cpp", ENTRY), tmp_path, tools)
    first, second = ctypes.c_int(), ctypes.c_int()
    library.entry(ctypes.byref(first), ctypes.byref(second))
    assert (first.value, second.value) == (2, 2)


def test_isolated_objects_show_one_function_and_keep_their_references(
    make: Write, tools: Toolchain, cache: Cache
) -> None:
    text = 'extern "C" { int sk_block_idx(); int other() { return 1; } } int data; inline int i() { return data; }\n'
    text += 'extern "C" int kernel() { return other() + sk_block_idx() + i(); }'
    made = read_object(isolate(make("k.cpp", text), "kernel", "kernel_1", tools, cache))
    assert [function.name for function in made.functions] == ["kernel_1"]
    assert "sk_block_idx" in made.undefined


def test_kernels_of_one_object_and_mangled_ones_are_isolated_one_at_a_time(
    make: Write, tmp_path: Path, tools: Toolchain, cache: Cache
) -> None:
    text = (
        "void add(int* x) { *x += 1; } template <class T> void twice(T* x) { *x *= 2; } template void twice<int>(int*);"
    )
    made = make("k.cpp", text)
    found = read_object(made)
    names = {objects.unique_name(find_symbol(found, name), made): find_symbol(found, name) for name in ("add", "twice")}
    parts = [isolate(made, symbol, unique, tools, cache) for unique, symbol in names.items()]
    calls = [f'extern "C" void {unique}(int*);' for unique in names]
    body = "".join(f"{unique}(x);" for unique in names)
    library = load(
        parts, make("entry.cpp", "".join(calls) + f'extern "C" void entry(int* x) {{ {body} }}'), tmp_path, tools
    )
    value = ctypes.c_int(3)
    library.entry(ctypes.byref(value))
    assert value.value == 8


def test_a_unique_name_is_an_identifier_that_follows_the_contents(write: Write) -> None:
    path, other = write("a.o", "a"), write("b.o", "b")
    name = objects.unique_name("_ZN2ns3addEPf", path)
    assert name.isidentifier()
    assert name.startswith("add_")
    assert objects.unique_name("_ZN2ns3addEPf", write("copy.o", "a")) == name
    assert len({name, objects.unique_name("_Z3addPf", path), objects.unique_name("_ZN2ns3addEPf", other)}) == 3
    assert objects.unique_name("k.clone$1", path).startswith("k_clone_1_")
    assert objects.object_key(path) != objects.object_key(other)


def test_isolating_is_cached_and_noted_with_final_names(make: Write, tools: Toolchain, cache: Cache) -> None:
    made = make("k.c", "void kernel(void) {}")
    logs: list[list[str]] = [[], []]
    paths = [isolate(made, "kernel", "one", tools, cache, log) for log in logs]
    assert paths[0] == paths[1]
    assert logs[0] == logs[1]
    assert "--keep-global-symbol=one" in logs[0][1]
    assert logs[0][1].endswith(str(paths[0]))


@pytest.mark.parametrize("symbol", ["nosuch", "quiet"])
def test_isolating_what_others_cannot_call_is_refused(make: Write, tools: Toolchain, cache: Cache, symbol: str) -> None:
    made = make("k.c", "static __attribute__((used)) void quiet(void) {} void kernel(void) {}")
    with pytest.raises(BuildError, match=f"{made} does not define a function '{symbol}'"):
        isolate(made, symbol, "one", tools, cache)


def test_isolating_names_a_file_that_is_no_object_or_is_gone(
    write: Write, tmp_path: Path, tools: Toolchain, cache: Cache
) -> None:
    for path in (write("k.o", "no object"), tmp_path / "gone.o"):
        with pytest.raises(BuildError, match=str(path)):
            isolate(path, "kernel", "one", tools, cache)


def test_an_object_without_fpic_is_named(make: Write, tools: Toolchain, cache: Cache) -> None:
    made = make("k.c", "int table[9]; int kernel(int i) { return table[i]; }", "-fno-pic", "-mcmodel=small")
    with pytest.raises(BuildError, match=f"{made} is not position independent: compile it with -fPIC"):
        isolate(made, "kernel", "one", tools, cache)


def test_a_duplicate_names_the_symbol_and_both_files(make: Write, tmp_path: Path, tools: Toolchain) -> None:
    first, second = make("a.cpp", "void twice(int) {}"), make("b.cpp", "void twice(int) {} int more;")
    with pytest.raises(BuildError, match=rf"'twice\(int\)' is defined more than once: in {first} and in {second}"):
        merge([first, second], ["entry"], tmp_path / "m.o", tools)
    assert not list(tmp_path.glob("m.o*"))


def test_a_missing_entry_is_named(make: Write, tmp_path: Path, tools: Toolchain) -> None:
    with pytest.raises(BuildError, match=r"merging the objects of entry(.|\n)*`entry' not defined"):
        merge([make("a.c", "void other(void) {}")], ["entry"], tmp_path / "m.o", tools)


def test_undefined_symbols_are_named_with_the_file_that_refers_to_them(
    make: Write, tmp_path: Path, tools: Toolchain
) -> None:
    entry = make("e.cpp", 'int gone(int); extern "C" int lost(); extern "C" int entry() { return gone(1) + lost(); }')
    with pytest.raises(BuildError, match=r"undefined: .*gone\(int\) \(used by user/e\.o\)") as caught:
        load([], entry, tmp_path, tools, origin={"_Z4goneii": Path("other"), "_Z4gonei": Path("user/e.o")})
    assert "lost" in str(caught.value)
    assert caught.value.command
    assert not (tmp_path / "k.so").exists()


def test_a_library_is_found_by_name_or_by_file_also_when_loading(make: Write, tmp_path: Path, tools: Toolchain) -> None:
    helper = tmp_path / "lib" / "libhelper.so"
    helper.parent.mkdir()
    source = make("h.c", "int helper(void) { return 7; }")
    subprocess.run(["g++", "-shared", "-Wl,-soname,libhelper.so", str(source), "-o", str(helper)], check=True)
    entry = make("e.c", "double cos(double); int helper(void); int entry(double x) { return helper() + (int)cos(x); }")
    library = load([], entry, tmp_path, tools, libraries=[helper, "m"])
    library.entry.argtypes = [ctypes.c_double]
    assert library.entry(0.0) == 8


def test_what_the_entry_does_not_reach_needs_no_library(make: Write, tmp_path: Path, tools: Toolchain) -> None:
    library = load(
        [],
        make("e.c", "int gone(void); int unused(void) { return gone(); } int entry(void) { return 5; }"),
        tmp_path,
        tools,
    )
    assert library.entry() == 5
