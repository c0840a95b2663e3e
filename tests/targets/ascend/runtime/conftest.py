"""A folder that looks like CANN to the builder and to the launcher; its NPU is the emulator."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from targets.ascend.host_linker import install_linker
from targets.ascend.runtime.emulated_npu import EmulatedNpu, stand_in_library

from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.ascend.runtime import device
from superkernel.targets.ascend.runtime.launch import AscendLoadedKernel
from superkernel.targets.ascend.runtime.launcher import AscendLauncher

# An object with the functions that a source defines, and no code in them: the emulator runs the sources.
_COMPILER = """#!{python} -S
import re, subprocess, sys
arguments = sys.argv[1:]
source = next(one for one in arguments if one.endswith((".cpp", ".cc")))
renamed = dict(one[2:].split("=", 1) for one in arguments if one.startswith("-D") and "=" in one)
text = open(source).read()
function = r"void +([A-Za-z_][A-Za-z0-9_]*) *[(][^;{{}}]*[)] *[{{]"
names = re.findall(r"^(?!static|inline|template| )[^;{{}}\\n]*?" + function, text, re.M)
text = "".join(f".globl {{name}}\\n.type {{name}}, @function\\n{{name}}: ret\\n.size {{name}}, .-{{name}}\\n"
               for name in dict.fromkeys(renamed.get(name, name) for name in names))
output = arguments[arguments.index("-o") + 1]
sys.exit(subprocess.run(["as", "-o", output, "-"], input=".text\\n" + text, text=True).returncode)
"""


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cann")
    tools = home / "compiler" / "ccec_compiler" / "bin"
    tools.mkdir(parents=True)
    (home / "lib64").mkdir()
    (tools / "bisheng").write_text(_COMPILER.format(python=sys.executable))
    (tools / "bisheng").chmod(0o755)
    install_linker(tools / "ld.lld")
    for tool, host in (("llvm-objcopy", "objcopy"), ("llvm-ar", "ar"), ("llvm-size", "size")):
        (tools / tool).symlink_to(str(shutil.which(host)))
    return home


@pytest.fixture
def npu(toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedNpu]:
    """At the end nothing may be left, and nothing may have been done wrong."""
    library = install(toolkit, tmp_path)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    npu = EmulatedNpu(library)

    def load(launcher: AscendLauncher, executable: AscendExecutable) -> AscendLoadedKernel:
        if executable.built.binary is not None:
            npu.kernels[executable.built.binary.resolve()] = executable
        return AscendLoadedKernel(executable, launcher.library)

    monkeypatch.setattr(AscendLauncher, "load", load)
    yield npu
    if (opened := device._devices.get(library)) is not None:
        opened.close()
    assert not npu.violations


def install(toolkit: Path, folder: Path, name: str = "libacl_rt.so", source: Path | None = None) -> Path:
    """A library of its own for every test, as its state is that of a process."""
    library = folder / name
    shutil.copyfile(source or stand_in_library(), library)
    for link in (toolkit / "lib64").iterdir():
        link.unlink()
    (toolkit / "lib64" / name).symlink_to(library)
    return library
