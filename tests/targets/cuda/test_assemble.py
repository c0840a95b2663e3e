"""targets.cuda.assemble: what assemblers say is read, versions are compared, and what is missing is named."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from superkernel.errors import BuildError
from superkernel.targets.cuda import assemble as assembling
from superkernel.targets.cuda.assemble import (
    NvJitLink,
    Ptxas,
    PtxAssembler,
    Resources,
    assemble,
    choose_assembler,
    find_assemblers,
    missing_assembler,
    newest_version,
    read_resources,
)

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sk_main' for 'sm_90a'
ptxas info    : Function properties for sk_main
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 96 registers, used 16 barriers, 16 bytes cumulative stack size
"""
TEXT = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


class FakeAssembler:
    """Counts its calls; its log is given."""

    identity, newest = "fake 1.0", (8, 0)

    def __init__(self, log: str = LOG, error: str = "") -> None:
        self.log, self.error, self.calls = log, error, 0

    def assemble(self, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
        self.calls += 1
        if self.error:
            raise BuildError("fake 1.0 does not assemble the kernel", ["fake"], self.error)
        return b"cubin of " + text.encode(), self.log, f"fake -arch={architecture}"


def use(monkeypatch: pytest.MonkeyPatch, *assemblers: PtxAssembler) -> None:
    monkeypatch.setattr(assembling, "find_assemblers", lambda: assemblers)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))


def test_registers_spills_and_stack_are_read() -> None:
    assert read_resources(LOG) == Resources(96, 20, 16, False)
    serialized = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert read_resources(f"{LOG}{serialized} due to a call\n").serialized_wgmma
    with pytest.raises(BuildError, match="does not say how many registers"):
        read_resources("something else")


@pytest.mark.parametrize(
    ("release", "version"),
    [((12, 0), (8, 0)), ((12, 4), (8, 4)), ((12, 8), (8, 7)), ((12, 9), (8, 8)), ((13, 0), (9, 0)), ((13, 4), (9, 4))],
)
def test_the_newest_version_that_a_release_reads(release: tuple[int, int], version: tuple[int, int]) -> None:
    assert newest_version(release) == version


@pytest.mark.usefixtures("cache")
def test_a_text_is_assembled_once_per_assembler_architecture_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAssembler()
    use(monkeypatch, fake)
    first, again = (assemble(TEXT, (8, 0), "sm_80") for _ in range(2))
    assert first == again and fake.calls == 1
    assert first.cubin.read_bytes().startswith(b"cubin of") and first.command == "fake -arch=sm_80"
    assemble(TEXT, (8, 0), "sm_90a")
    assemble(TEXT, (8, 0), "sm_80", ["-O1"])
    fake.identity = "fake 1.1"
    assemble(TEXT, (8, 0), "sm_80")
    assert fake.calls == 4


def test_the_first_assembler_that_reads_the_version_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Ptxas("/old", (12, 8)), Ptxas("/new", (13, 0))
    use(monkeypatch, old, new)
    assert choose_assembler((8, 7)) is old and choose_assembler((9, 0)) is new
    with pytest.raises(BuildError, match=r"\.version 9\.2, .* ptxas 13\.0, reads up to 9\.0; install .* CUDA 13\.2"):
        choose_assembler((9, 2))
    use(monkeypatch, Ptxas("/older", (12, 0)))
    with pytest.raises(BuildError, match=r"CUDA 12\.8 or newer"):
        choose_assembler((8, 7))


def test_no_assembler_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    assert "pip install triton" in missing_assembler()
    with pytest.raises(BuildError, match="there is no assembler for PTX: install the triton wheel"):
        assemble(TEXT, (8, 0), "sm_80")
    use(monkeypatch, FakeAssembler())
    assert missing_assembler() == ""


@pytest.mark.usefixtures("cache")
def test_an_unknown_architecture_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeAssembler(error="ptxas fatal   : Value 'sm_130' is not defined for option 'gpu-name'"))
    with pytest.raises(BuildError, match=r"does not know the architecture sm_130; install .* newer CUDA"):
        assemble(TEXT, (8, 0), "sm_130")
    use(monkeypatch, FakeAssembler(error="ptxas error   : syntax error"))
    with pytest.raises(BuildError, match="syntax error"):
        assemble(TEXT, (8, 0), "sm_80")


def test_ptxas_is_found_in_a_toolkit_and_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, release in (("home/bin", "12.4"), ("path", "13.1")):
        program = tmp_path / folder / "ptxas"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
    found = [a.identity for a in find_assemblers() if isinstance(a, Ptxas) and str(tmp_path) in a.path]
    assert found == ["ptxas 12.4", "ptxas 13.1"]


def test_a_program_that_fails_shows_its_command_and_message(tmp_path: Path) -> None:
    program = tmp_path / "ptxas"
    program.write_text("#!/bin/sh\necho 'line 3: no such instruction' >&2\nexit 255\n")
    program.chmod(0o755)
    with pytest.raises(BuildError, match="no such instruction") as failed:
        Ptxas(str(program), (13, 0)).assemble(TEXT, "sm_80", ["-O0"])
    assert failed.value.command[:4] == (str(program), "-v", "-arch=sm_80", "-O0")


class FakeLibrary:
    """nvJitLink as cuda.bindings shows it: one program at a time."""

    class nvJitLinkError(Exception):
        pass

    class InputType:
        PTX = 2

    def __init__(self, error: str = "") -> None:
        self.error, self.options, self.text, self.destroyed = error.encode(), list[str](), b"", 0

    def create(self, count: int, options: list[str]) -> int:
        assert count == len(options)
        self.options = options
        return 7

    def add_data(self, handle: int, kind: int, data: bytes, size: int, name: str) -> None:
        assert (handle, kind, size) == (7, self.InputType.PTX, len(data))
        self.text = data

    def complete(self, handle: int) -> None:
        if self.error:
            raise self.nvJitLinkError("ERROR_PTX_COMPILE")

    def get_linked_cubin_size(self, handle: int) -> int:
        return 5

    def get_linked_cubin(self, handle: int, cubin: bytearray) -> None:
        cubin[:] = b"cubin"

    def get_info_log_size(self, handle: int) -> int:
        return len(LOG)

    def get_info_log(self, handle: int, log: bytearray) -> None:
        log[:] = LOG.encode()

    def get_error_log_size(self, handle: int) -> int:
        return len(self.error)

    def get_error_log(self, handle: int, log: bytearray) -> None:
        log[:] = self.error

    def destroy(self, handle: int) -> None:
        self.destroyed += 1


def give_library(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary) -> None:
    bindings = SimpleNamespace(nvjitlink=library)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=bindings))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", library)


def test_nvjitlink_assembles(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    give_library(monkeypatch, library)
    cubin, log, command = NvJitLink((13, 0)).assemble(TEXT, "sm_80", ["-g"])
    assert (cubin, read_resources(log).registers, library.destroyed) == (b"cubin", 96, 1)
    assert library.options == ["-arch=sm_80", "-verbose", "-g"] and library.text == TEXT.encode() + b"\0"
    assert command.startswith("nvJitLink -arch=sm_80")


def test_what_nvjitlink_refuses_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary("line 4: unknown symbol")
    give_library(monkeypatch, library)
    with pytest.raises(BuildError, match="line 4: unknown symbol"):
        NvJitLink((13, 0)).assemble(TEXT, "sm_80", [])
    assert library.destroyed == 1


def test_the_assembler_of_this_machine_assembles() -> None:
    if not find_assemblers():
        pytest.skip("no assembler")
    assert assemble(TEXT, (8, 0), "sm_80").resources.spilled_bytes == 0
