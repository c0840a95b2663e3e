"""The instruction sets that a library uses: found in its code, whatever the machine has that compiled it."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.cache import Cache
from superkernel.targets.cpu import executable, target
from superkernel.targets.cpu.build import build_context, host_library
from superkernel.targets.native import instruction_sets, march
from superkernel.targets.native.instruction_sets import used_features

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets are told apart on x86-64")


def library(folder: Path, *instructions: str, flags: tuple[str, ...] = ()) -> Path:
    """Assembled without a limit; a library needs no processor that could run it."""
    path = folder / "code.so"
    text = "\n".join([".globl f", ".type f, @function", "f:", *instructions, "ret", ".size f, .-f"])
    command = ["g++", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", str(path), *flags]
    subprocess.run(command, input=text + "\n", text=True, check=True)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize(
    ("instruction", "flags"),
    [
        ("addsd %xmm1,%xmm2", ""),
        ("endbr64", ""),
        ("cs nopw 0x1234(%rax,%rax,1)", ""),
        ("lock cmpxchg %rcx,(%rdx)", ""),
        ("rep movsb", ""),
        ("haddps %xmm1,%xmm2", "pni"),
        ("pshufb %xmm1,%xmm2", "ssse3"),
        ("pmulld %xmm1,%xmm2", "sse4_1"),
        ("popcnt %rax,%rbx", "popcnt"),
        ("lzcnt %rax,%rbx", "abm"),
        ("tzcnt %rax,%rbx", "bmi1"),
        ("shlx %rax,%rbx,%rcx", "bmi2"),
        ("cmpxchg16b (%rdi)", "cx16"),
        ("sahf", "lahf_lm"),
        ("vaddps %xmm1,%xmm2,%xmm3", "avx"),
        ("vpaddd %ymm1,%ymm2,%ymm3", "avx2"),
        ("vfmadd231ps %ymm1,%ymm2,%ymm3", "fma"),
        ("vcvtph2ps %xmm1,%ymm2", "f16c"),
        ("vaddps %zmm1,%zmm2,%zmm3", "avx512f"),
        ("vaddps %ymm17,%ymm2,%ymm3", "avx512vl"),
        ("{evex} vaddps %ymm1,%ymm2,%ymm3", "avx512vl"),
        ("vpaddb %zmm1,%zmm2,%zmm3", "avx512bw"),
        ("vpaddb %xmm1,%xmm2,%xmm3{%k1}", "avx512bw avx512vl"),
        ("vpmullq %ymm1,%ymm2,%ymm3", "avx512dq avx512vl"),
        ("vpdpbusd %zmm1,%zmm2,%zmm3", "avx512_vnni"),
        ("{vex} vpdpbusd %ymm1,%ymm2,%ymm3", "avx_vnni"),
        ("vdpbf16ps %zmm1,%zmm2,%zmm3", "avx512_bf16"),
        ("aesenc %xmm1,%xmm2", "aes"),
        ("vaesenc %ymm1,%ymm2,%ymm3", "vaes"),
        ("sha256rnds2 %xmm1,%xmm2", "sha_ni"),
    ],
)
def test_an_instruction_needs_its_instruction_set(tmp_path: Path, cache: Cache, instruction: str, flags: str) -> None:
    assert used_features(library(tmp_path, instruction), cache) == frozenset(flags.split())


def test_a_library_needs_all_that_its_instructions_need(tmp_path: Path, cache: Cache) -> None:
    code = library(tmp_path, "vaddps %xmm1,%xmm2,%xmm3", "call f", "jne f", "shlx %rax,%rbx,%rcx", "mov $0x12345,%eax")
    assert used_features(code, cache) == {"avx", "bmi2"}


@pytest.mark.parametrize("instruction", [".byte 0x06", "vmxoff", "skinit"])
def test_an_instruction_that_is_not_in_the_list_makes_the_answer_unknown(
    tmp_path: Path, cache: Cache, instruction: str
) -> None:
    assert used_features(library(tmp_path, instruction), cache) is None


def test_an_assembler_that_checks_nothing_is_not_believed(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "_not_allowed", lambda *_: [])
    assert used_features(library(tmp_path, "nop"), cache) is None


def test_without_a_disassembler_the_answer_is_unknown(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library(tmp_path, "nop")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert used_features(code, cache) is None


def test_one_host_library_runs_on_every_processor(cache: Cache) -> None:
    assert used_features(host_library(build_context()), cache) == frozenset()


# --- march=


SOURCE = """
extern "C" void add(const float* x, const float* y, float* z) {
  for (int i = 0; i < 64; ++i) z[i] = x[i] + y[i];
}
extern "C" void foreign(const float*, const float*, float*) { asm volatile("vpaddb %zmm1,%zmm2,%zmm3"); }
"""
PARAMS = ["in:x:float32[64]", "in:y:float32[64]", "out:z:float32[64]"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("march") / "add.cpp"
    path.write_text(SOURCE)
    return path


def needs(folder: Path) -> tuple[str, set[str]]:
    march, features = (folder / "processor.txt").read_text().splitlines()
    return march.removeprefix("compiled for: "), set(features.removeprefix("needs: x86_64").split())


def saved(source: Path, folder: Path, name: str = "add", **more: str) -> tuple[str, set[str]]:
    add = sk.SubKernel.from_source(source, name, block_dim=1, params=PARAMS)
    with sk.compile([sk.Op(add, ["a", "b", "c"])], **more) as k:
        return needs(k.save(folder))


def test_kernel_and_entry_are_compiled_for_the_level(source: Path, tmp_path: Path) -> None:
    plain, wide = (saved(source, tmp_path / level, march=level) for level in ("x86-64", "x86-64-v3"))
    assert plain == ("x86-64", set())
    assert wide[0] == "x86-64-v3" and "avx" in wide[1]
    assert wide[1] <= set(" ".join(march.LEVELS.values()).split())
    assert saved(source, tmp_path / "native")[0] == "native"


def test_a_level_that_this_machine_lacks_is_saved_and_not_launched(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (march, executable):
        monkeypatch.setattr(module, "cpu_features", lambda: "x86_64 sse2")
    add = sk.SubKernel.from_source(source, "add", block_dim=1, params=PARAMS)
    with sk.compile([sk.Op(add, ["a", "b", "c"])], march="x86-64-v3") as k:
        with pytest.raises(sk.LaunchError, match=r"compiled for x86-64-v3, and this processor lacks .*avx2.*save it"):
            k({})
        k.save(tmp_path / "kernel")
    with pytest.raises(sk.UnsupportedError, match=r"compiled for x86-64-v3, needs .*avx.*which this one lacks"):
        sk.load(tmp_path / "kernel")
    monkeypatch.undo()
    sk.load(tmp_path / "kernel").close()


def test_a_kernel_given_as_an_object_is_looked_into(source: Path, tmp_path: Path) -> None:
    subprocess.run(["g++", "-c", "-fPIC", "-O1", str(source), "-o", str(tmp_path / "k.o")], check=True)
    foreign = sk.SubKernel.from_object(tmp_path / "k.o", "foreign", block_dim=1, params=PARAMS)
    with sk.compile([sk.Op(foreign, ["a", "b", "c"])], march="x86-64") as k:
        assert needs(k.save(tmp_path / "kernel")) == ("x86-64", {"avx512bw"})


def test_a_processor_by_its_name(source: Path, tmp_path: Path) -> None:
    name, features = saved(source, tmp_path / "kernel", march="haswell")
    assert name == "haswell" and features <= set(" ".join(march.LEVELS.values()).split())
    chosen = target.TARGET.for_march("sapphirerapids")
    lacking = "avx512f" not in executable.cpu_features().split()
    assert (re.search(r"\bAVX512F\b", chosen.why_no_launcher) is not None) == lacking  # AVX512FP16 is another
    assert (chosen.launcher is None) == bool(chosen.why_no_launcher)


@pytest.mark.parametrize("name", ["x86-64-v9", "hasswell", "arm8000"])
def test_a_name_that_the_compiler_does_not_know(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(sk.OptionError, match=rf"march='{name}' is not known.*native.*x86-64-v3.*haswell"):
        saved(source, tmp_path / "kernel", march=name)


@pytest.mark.parametrize("name", ["", "-v3", "a b", "a\0b", 5, b"native", ["native"], "native -O0"], ids=repr)
def test_what_is_no_name(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(sk.OptionError, match=r"march is .*x86-64-v3"):
        saved(source, tmp_path / "kernel", march=name)


def test_the_ascend_target_has_chips_instead() -> None:
    with pytest.raises(sk.OptionError, match="chip="):
        sk.compile([], target="ascend", march="x86-64-v3")
