"""Packages for aarch64, made on another machine; where qemu-user is installed, they are run as well."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import superkernel as sk
from superkernel.errors import BuildError, OptionError, UnsupportedError
from superkernel.frontend.lowering import cpp_compiler
from superkernel.package.file_names import packaged_library
from superkernel.package.library import build_environment
from superkernel.package.manifest import read_manifest
from superkernel.targets.cpu.build import CROSS_INCLUDE
from superkernel.targets.cpu.instruction_sets import instruction_sets
from superkernel.targets.cpu.vector_functions import vector_functions

PROGRAM = Path(__file__).parents[2] / "package" / "run_entry.c"
COMPILER, LIBRARIES = "aarch64-linux-gnu-gcc", Path("/usr/aarch64-linux-gnu")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="cross compilation from x86-64")
with_cross_compiler = pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None, reason="g++-aarch64-linux-gnu is not installed"
)


class Mixed(nn.Module):
    """Embedding, recurrent cell, attention, convolution, matmuls; exp, tanh, erf and log of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(20, 16), nn.GRUCell(16, 16)
        self.norm, self.project = nn.LayerNorm(16), nn.Linear(16, 48)
        self.convolution = nn.Conv1d(4, 8, 3, padding=1)
        self.register_buffer("kept", torch.zeros(4, 16))

    def forward(self, index: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.cell(self.table(index), x)
        self.kept += hidden
        query, key, value = self.project(self.norm(hidden)).view(1, 4, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(4, 16)
        found = self.convolution(F.gelu(mixed)[None])
        return found.log_softmax(-1), self.kept.cumsum(0), torch.log1p(x.abs()).double().exp()


def test_without_a_cross_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("g++", "ld", "objcopy"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"aarch64-linux-gnu-g\+\+ is on PATH; .*apt-get install g\+\+-aarch64-linux"):
        sk.export(nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "linear.sk", march="aarch64")
    assert not (tmp_path / "linear.sk").exists()
    with pytest.raises(OptionError, match="did you mean 'aarch64'"):
        instruction_sets(["aarch65"])


def test_every_architecture_has_a_library_of_its_own() -> None:
    assert packaged_library("x86_64") == "lib/libsuperkernel.so.1"
    assert packaged_library("aarch64") == "lib/aarch64/libsuperkernel.so.1"


def test_vectors_are_those_of_aarch64() -> None:
    from torch._inductor import cpu_vec_isa

    with cpp_compiler.vectorized_for("aarch64"):
        assert cpu_vec_isa.pick_vec_isa().bit_width() == 128
    flags = cpp_compiler.compiler_flags("aarch64").flags
    assert "-DCPU_CAPABILITY_NEON" in flags and not any(flag.startswith("-mavx") for flag in flags)


@pytest.mark.conformance
@with_cross_compiler
def test_the_functions_that_are_declared_are_those_that_are_supplied(tmp_path: Path) -> None:
    source = tmp_path / "declared.cpp"
    source.write_text("#include <sleef.h>\n")
    torch_headers = Path(torch.__file__).parent / "include"
    command = ["aarch64-linux-gnu-g++", "-E", f"-I{CROSS_INCLUDE}", f"-I{torch_headers}", str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    marked = (line for line in text.splitlines() if 'extern "C" float' in line)
    declared = {word.partition("(")[0] for line in marked for word in line.split() if word.startswith("Sleef_")}
    supplied = {name for name in vector_functions("aarch64") if "sincos" not in name and "_u35" not in name}
    assert declared == supplied


@pytest.mark.conformance
@with_cross_compiler
def test_a_package_for_two_architectures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, index, x = Mixed().eval(), torch.tensor([3, 1, 19, 0]), torch.randn(4, 16)
    package = sk.export(model, (index, x), tmp_path / "mixed.sk", march=["native", "aarch64"], cores=2)
    (objects,) = read_manifest(package).objects.values()
    assert [found.isa.partition("-")[0] for found in objects] == ["native", "aarch64"]
    assert [list(found.features) for found in objects if found.isa == "aarch64"] == [[]]
    library = package / packaged_library("aarch64")
    for file in (library, package / objects[1].file):
        assert _machine(file) == "EM_AARCH64"
    with torch.no_grad():
        expected = [value.numpy() for value in model(index, x)]
    with sk.load_model(package) as loaded:  # here: the code of this machine
        for found, right in zip(loaded(index.numpy(), x.numpy()), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    if EMULATOR is None or not LIBRARIES.is_dir():
        pytest.skip("compiled and linked; not run: qemu-user is not installed")
    inputs, outputs, program = tmp_path / "inputs", tmp_path / "outputs", tmp_path / "run_entry"
    inputs.write_bytes(index.numpy().tobytes() + x.numpy().tobytes())
    flags = [*build_environment().compile_flags, f"-Wl,-rpath,{library.parent}", "-std=c99", "-Wall", "-Werror"]
    subprocess.run([COMPILER, *flags, str(PROGRAM), str(library), "-o", str(program)], check=True)
    command = [EMULATOR, "-L", LIBRARIES, program, package, "forward", inputs, outputs]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=800)
    assert (done.returncode, done.stdout, done.stderr) == (0, "aarch64\n", "")
    written = outputs.read_bytes()
    for right in expected:
        found = np.frombuffer(written[: right.nbytes], right.dtype).reshape(right.shape)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
        written = written[right.nbytes :]
    assert not written


@pytest.mark.conformance
@with_cross_compiler
def test_a_package_for_aarch64_alone_is_refused_here(tmp_path: Path) -> None:
    package = sk.export(nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "linear.sk", march="aarch64")
    assert not (package / packaged_library("x86_64")).exists()
    with pytest.raises(UnsupportedError, match=r"for aarch64 \(this processor lacks the instructions of aarch64\)"):
        sk.load_model(package)


def _machine(file: Path) -> str:
    from elftools.elf.elffile import ELFFile

    with file.open("rb") as stream:
        return str(ELFFile(stream)["e_machine"])
