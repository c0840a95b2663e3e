"""What libsuperkernel takes this processor to have: what /proc/cpuinfo says and the processor itself tells."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from superkernel.targets.cpu.model_library import MODEL_SOURCES
from superkernel.targets.native.instruction_sets import _EXTENSIONS
from superkernel.targets.native.toolchain import find_toolchain

CPUINFO = Path("/proc/cpuinfo")
TOLD = {flag for flags in _EXTENSIONS.values() for flag in flags.split()} | {"sse2"}
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors tell their flags by the file")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("flags") / "flags"
    sources = [str(Path(__file__).with_name("processor_flags.cpp")), str(MODEL_SOURCES / "processor_flags.cpp")]
    subprocess.run([*find_toolchain().cxx, "-std=c++17", f"-I{MODEL_SOURCES}", *sources, "-o", str(output)], check=True)
    return output


def flags(program: Path, cpuinfo: Path) -> set[str]:
    return set(subprocess.run([program, cpuinfo], check=True, capture_output=True, text=True).stdout.split())


def test_the_processor_has_what_the_file_says(program: Path) -> None:
    line = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    assert flags(program, CPUINFO) == set(line.partition(":")[2].split())


def test_without_the_file_the_flags_that_code_may_need_are_known(program: Path, tmp_path: Path) -> None:
    """The system leaves out of the file what it does not want to be used, such as rdseed on processors with a fault."""
    found = flags(program, tmp_path / "missing")
    assert found >= flags(program, CPUINFO) & TOLD
    assert found <= TOLD


def test_an_emulator_lacks_what_the_file_of_its_host_says(program: Path, tmp_path: Path) -> None:
    """No processor has both xop and amx_tile: the file is of none."""
    said = tmp_path / "cpuinfo"
    said.write_text("processor : 0\nflags : sse2 xop amx_tile warp_drive\n")
    found = flags(program, said)
    assert not {"xop", "amx_tile"} <= found and "warp_drive" in found
