"""Set-up of the CPU tests: small C helpers beside the kernels, compiled once per session."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from targets.cpu.small import KERNELS

from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.cpu.runtime.openmp import openmp
from superkernel.targets.native.toolchain import find_toolchain, run


def build_shim(source: Path, output: Path, *libraries: str) -> Path:
    """A shared object of plain C code; -fopenmp only compiles, so that no second OpenMP library is linked."""
    tools, made = find_toolchain(), output.with_suffix(".o")
    run([*tools.cxx, "-O2", "-fPIC", "-fopenmp", f"-I{INCLUDE}", "-c", str(source), "-o", str(made)], what="a shim")
    run([*tools.cxx, "-shared", str(made), *libraries, "-o", str(output)], what="a shim")
    return output


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """kernels/outside.cpp: the agents outside a launch, in C."""
    folder = tmp_path_factory.mktemp("shim")
    return ctypes.CDLL(str(build_shim(KERNELS / "outside.cpp", folder / "outside.so", str(openmp().path))))
