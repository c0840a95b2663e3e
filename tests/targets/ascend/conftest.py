"""Sub-kernels as CANN's tools would leave them, made of host objects."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from targets.ascend.host_linker import install_linker

from superkernel.errors import SuperKernelError
from superkernel.model.opsfile import OpsFile
from superkernel.model.subkernel import SubKernel
from superkernel.targets import find_target
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.facts import complete
from superkernel.targets.protocol import ChipChoice


def host_object(folder: Path, name: str, *functions: str) -> Path:
    """An object that defines some functions, each with a helper that others must not see."""
    text = "#include <cstdint>\nint shared_helper(int x) { return x + 1; }\n"
    for function in functions:
        text += (
            f'extern "C" void {function}(uint64_t first_slot) {{ *(volatile int*)first_slot = shared_helper(7); }}\n'
        )
    source = folder / f"{name}.cpp"
    source.write_text(text)
    made = folder / f"{name}.o"
    subprocess.run(["g++", "-c", "-O1", str(source), "-o", str(made)], check=True)
    return made


def archive(folder: Path, name: str, *objects: Path) -> Path:
    made = folder / name
    made.unlink(missing_ok=True)
    subprocess.run(["ar", "rc", str(made), *map(str, objects)], check=True)
    return made


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vec.a with vec.o; mix.a with one object per class; tiled.a with two functions and a ready-made copy."""
    folder = tmp_path_factory.mktemp("binaries")
    archive(folder, "vec.a", host_object(folder, "vec", "vec_func"))
    parts = [host_object(folder, f"mix_{one}", f"mix_{one}_func") for one in ("cube", "vec")]
    archive(folder, "mix.a", *parts)
    archive(
        folder, "tiled.a", host_object(folder, "tiled", "few", "many"), host_object(folder, "tiled_copy", "few", "many")
    )
    (folder / "empty.a").write_bytes(b"!<arch>\n")
    return folder


def metadata(name: str = "vec", **changes: Any) -> dict[str, Any]:
    """A static vector kernel; a change to None leaves a field out."""
    fields: dict[str, Any] = {
        "kernelName": name,
        "blockDim": 8,
        "sub_operator_kernel_type": "KERNEL_TYPE_AIV_ONLY",
        "sub_operator_kernel_name": {"AiCore": {"func_name": f"{name}_func", "obj_files": f"{name}.o"}},
        "sub_operator_params": ["in:x", "out:y"],
        "sub_operator_early_start_set_flag": False,
        "sub_operator_early_start_wait_flag": False,
        "binFileName": name,
        "magic": "RT_DEV_BINARY_MAGIC_ELF",
    }
    fields |= changes
    return {key: value for key, value in fields.items() if value is not None}


MIX = {
    "kernelName": "mix",
    "blockDim": 4,
    "sub_operator_kernel_type": "KERNEL_TYPE_MIX_AIC_1_2",
    "sub_operator_kernel_name": {
        "dav-c220-cube": {"func_name": "mix_cube_func", "obj_files": ["mix_cube.o"]},
        "dav-c220-vec": {"func_name": "mix_vec_func", "obj_files": ["mix_vec.o"]},
    },
}
TILED = {
    "kernelName": "tiled",
    "sub_operator_kernel_name": {
        "dynamic_func_names": {
            "1": {"AiCore": {"func_name": "few", "obj_files": "tiled.o"}},
            "7": {"dav-c220-vec": {"func_name": "many", "obj_files": "tiled.o"}},
        }
    },
}


def entry(of: str, /, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "json_path": f"{of}.json",
        "bin_path": f"{of}.a",
        "stream_id": 0,
        "task_type": "normal",
        "send_event_list": [],
        "recv_event_list": [],
    }
    return {key: value for key, value in (fields | changes).items() if value is not None}


@pytest.fixture
def write(tmp_path: Path, binaries: Path) -> Callable[..., Path]:
    """Writes metadata files and an op list beside the archives; gives the list's path."""

    def written(entries: Any, **files: dict[str, Any]) -> Path:
        for made in binaries.iterdir():
            link = tmp_path / made.name
            if not link.exists():
                link.symlink_to(made)
        for name, fields in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(fields))
        path = tmp_path / "ops.json"
        path.write_text(json.dumps(entries))
        return path

    return written


_COMPILER = """#!{python}
import subprocess, sys
dropped = ("-xcce", "--cce-", "-mllvm", "-cce-")
arguments = [one for one in sys.argv[1:] if not one.startswith(dropped)]
sys.exit(subprocess.run(["g++", *arguments]).returncode)
"""


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like CANN; its compiler is the host's, its header does nothing and lies where CANN's does."""
    from targets.ascend.declared import header_for_host_compilers  # libclang, which other tests do not load

    home = tmp_path / "cann"
    tools = home / "compiler" / "ccec_compiler" / "bin"
    tools.mkdir(parents=True)
    (home / "compiler" / "tikcpp" / "tikcfw").mkdir(parents=True)
    (home / "compiler" / "tikcpp" / "tikcfw" / "kernel_operator.h").write_text(header_for_host_compilers())
    (tools / "bisheng").write_text(_COMPILER.format(python=sys.executable))
    (tools / "bisheng").chmod(0o755)
    install_linker(tools / "ld.lld")
    for device, host in (("llvm-objcopy", "objcopy"), ("llvm-ar", "ar"), ("llvm-size", "size")):
        (tools / device).symlink_to(str(shutil.which(host)))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    return home


def arch(**changes: Any) -> dict[str, Any]:
    """The functions of a kernel for one class; a change to None leaves a field out."""
    fields = {"func_name": "vec_func", "obj_files": "vec.o"} | changes
    return {"AiCore": {key: value for key, value in fields.items() if value is not None}}


def read(path: Path, chip: ChipChoice | None = None) -> OpsFile:
    return find_target("ascend").for_chip(chip).read_ops(path)


def refused(path: Path, *words: str, chip: ChipChoice | None = None) -> None:
    """Reading the list is an error with these words, and no file is written."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(SuperKernelError) as caught:
        read(path, chip)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert sorted(path.parent.iterdir()) == before


def completed(kernel: SubKernel) -> SubKernel:
    """With all that the target finds out."""
    return complete(kernel, find_chip(None))
