"""targets.cuda.assemble: PTX text in, a cubin in the cache and what it needs of a GPU out.

The assembler is ptxas, of the triton wheel or of a CUDA toolkit, or nvJitLink through cuda.bindings; its version is
part of the cache key.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ...cache import Cache, digest
from ...errors import BuildError, nearest

PtxVersion = tuple[int, int]
TIMEOUT_S = 600.0
INSTALL = (
    "install the triton wheel (pip install triton), nvidia-cuda-nvcc, nvidia-nvjitlink with cuda-bindings, or a CUDA "
    "toolkit (CUDA_HOME)"
)
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SERIALIZED = "C7510"  # wgmma is serialised
# CUDA release -> newest .version that its assembler knows, where the numbers do not follow
_PTX_OF_RELEASE = {(11, 8): (7, 8), (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7), (12, 9): (8, 8)}
_CUBIN, _RESOURCES = ".cubin", ".cubin.json"


@dataclass(frozen=True)
class Resources:
    """What the assembler says of a kernel."""

    registers: int
    spilled_bytes: int = 0
    stack_bytes: int = 0
    serialized_wgmma: bool = False


@dataclass(frozen=True)
class Assembled:
    cubin: Path
    resources: Resources
    command: str


class PtxAssembler(Protocol):
    """A program or library that assembles PTX."""

    @property
    def identity(self) -> str: ...  # with its version
    @property
    def newest(self) -> PtxVersion: ...  # the newest .version that it reads
    def assemble(self, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
        """The cubin, what was said of it, and the command."""


@dataclass(frozen=True)
class Ptxas:
    """The assembler of CUDA as a program."""

    path: str
    release: tuple[int, int]

    @property
    def identity(self) -> str:
        return f"ptxas {self.release[0]}.{self.release[1]}"

    @property
    def newest(self) -> PtxVersion:
        return newest_version(self.release)

    def assemble(self, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
        with tempfile.TemporaryDirectory(prefix="superkernel-ptx-") as folder:
            source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            source.write_text(text)
            command = [self.path, "-v", f"-arch={architecture}", *flags, source.name, "-o", cubin.name]
            done = _run(command, folder)
            if done.returncode:
                raise BuildError(f"{self.identity} does not assemble the kernel", command, done.stderr)
            return cubin.read_bytes(), done.stderr + done.stdout, shlex.join(command)


@dataclass(frozen=True)
class NvJitLink:
    """The assembler of CUDA as a library, through cuda.bindings."""

    release: tuple[int, int]

    @property
    def identity(self) -> str:
        return f"nvJitLink {self.release[0]}.{self.release[1]}"

    @property
    def newest(self) -> PtxVersion:
        return newest_version(self.release)

    def assemble(self, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
        from cuda.bindings import nvjitlink

        options = [f"-arch={architecture}", "-verbose", *flags]
        handle = nvjitlink.create(len(options), options)
        content = text.encode() + b"\0"
        command = shlex.join(["nvJitLink", *options])
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, content, len(content), "kernel.ptx")
            nvjitlink.complete(handle)
            cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
            nvjitlink.get_linked_cubin(handle, cubin)
            return bytes(cubin), _log(nvjitlink, handle), command
        except nvjitlink.nvJitLinkError as reason:
            error = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, error)
            raise BuildError(
                f"{self.identity} does not assemble the kernel: {reason}", [command], error.decode(errors="replace")
            ) from reason
        finally:
            nvjitlink.destroy(handle)


def _log(nvjitlink: Any, handle: Any) -> str:
    size = nvjitlink.get_info_log_size(handle)
    log = bytearray(size)
    if size:
        nvjitlink.get_info_log(handle, log)
    return log.decode(errors="replace")


def newest_version(release: tuple[int, int]) -> PtxVersion:
    """The newest .version that the assembler of a CUDA release reads."""
    if release in _PTX_OF_RELEASE:
        return _PTX_OF_RELEASE[release]
    major, minor = release
    return (major - 4, minor)  # 12.0 reads 8.0, 13.0 reads 9.0


def _run(command: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise BuildError(f"the assembler was stopped after {TIMEOUT_S:g} s", command) from late
    except OSError as reason:
        raise BuildError(f"the assembler cannot be run: {reason}; {INSTALL}", command) from reason


def find_assemblers() -> tuple[PtxAssembler, ...]:
    """What this machine has, in the order in which it is used."""
    homes = tuple(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    return _find(homes, os.environ.get("PATH", os.defpath))


@cache
def _find(homes: tuple[str, ...], search: str) -> tuple[PtxAssembler, ...]:
    found: list[PtxAssembler] = []
    for path in dict.fromkeys(_ptxas_paths(homes, search)):
        if (release := _release(path)) is not None:
            found.append(Ptxas(path, release))
    return (*found, *_nvjitlink())


def _ptxas_paths(homes: Sequence[str], search: str) -> Iterator[str]:
    if (triton := find_spec("triton")) is not None:
        for place in triton.submodule_search_locations or ():
            folder = Path(place, "backends", "nvidia", "bin")
            yield from (str(path) for path in (folder / "ptxas", folder / "ptxas-blackwell") if path.is_file())
    for home in (*filter(None, homes), "/usr/local/cuda"):
        if (path := Path(home, "bin", "ptxas")).is_file():
            yield str(path)
    if (on_path := shutil.which("ptxas", path=search)) is not None:
        yield on_path
    if (nvidia := find_spec("nvidia")) is not None:  # the wheel nvidia-cuda-nvcc
        for place in nvidia.submodule_search_locations or ():
            yield from map(str, sorted(Path(place).glob("*/bin/ptxas")))


def _release(path: str) -> tuple[int, int] | None:
    try:
        found = _RELEASE.search(_run([path, "--version"]).stdout)
    except BuildError:
        return None
    return None if found is None else (int(found[1]), int(found[2]))


def _nvjitlink() -> Iterator[PtxAssembler]:
    try:
        from cuda.bindings import nvjitlink
    except ImportError:
        return
    try:
        yield NvJitLink(tuple(nvjitlink.version()))
    except (RuntimeError, AttributeError, nvjitlink.nvJitLinkError):  # the library itself is missing
        return


def missing_assembler() -> str:
    """What to install where there is no assembler; empty where there is one."""
    return "" if find_assemblers() else f"there is no assembler for PTX: {INSTALL}"


def choose_assembler(version: PtxVersion) -> PtxAssembler:
    """The first that reads a .version."""
    known = find_assemblers()
    if not known:
        raise BuildError(missing_assembler())
    for assembler in known:
        if assembler.newest >= version:
            return assembler
    newest = max(known, key=lambda assembler: assembler.newest)
    major, minor = newest.newest
    listed = (release for release, reads in _PTX_OF_RELEASE.items() if reads >= version)
    cuda_major, cuda_minor = next(listed, (version[0] + 4, version[1]))
    raise BuildError(
        f"the PTX has .version {version[0]}.{version[1]}, and the newest assembler here, {newest.identity}, reads "
        f"up to {major}.{minor}; install the assembler of CUDA {cuda_major}.{cuda_minor} or newer (pip install "
        "nvidia-cuda-nvcc, or a newer triton), or compile the kernels with an older compiler"
    )


def assemble(text: str, version: PtxVersion, architecture: str, flags: Sequence[str] = ()) -> Assembled:
    """The cubin of a text for an architecture such as sm_90a."""
    assembler, store = choose_assembler(version), Cache()
    key = digest(f"cubin\0{assembler.identity}\0{architecture}\0{chr(0).join(flags)}\0{text}")
    said = store.read_text(key, _RESOURCES)
    if said is not None and (cubin := store.get(key, _CUBIN)) is not None:
        fields = json.loads(said)
        return Assembled(cubin, Resources(**fields["resources"]), fields["command"])
    content, log, command = _assembled(assembler, text, architecture, flags)
    resources = read_resources(log)
    cubin = store.make(key, _CUBIN, lambda path: path.write_bytes(content))
    store.write_text(key, _RESOURCES, json.dumps({"resources": asdict(resources), "command": command}))
    return Assembled(cubin, resources, command)


def _assembled(assembler: PtxAssembler, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
    try:
        return assembler.assemble(text, architecture, flags)
    except BuildError as failure:
        if "gpu-name" in failure.stderr or "is higher than" in failure.stderr or "nrecognized" in failure.stderr:
            raise BuildError(
                f"{assembler.identity} does not know the architecture {architecture}{nearest(architecture, ())}; "
                "install the assembler of a newer CUDA (pip install nvidia-cuda-nvcc, or a newer triton)",
                failure.command,
                failure.stderr,
            ) from failure
        raise


def read_resources(log: str) -> Resources:
    """What ptxas -v and nvJitLink -verbose say."""
    registers = [int(count) for count in _REGISTERS.findall(log)]
    frames = [tuple(map(int, found)) for found in _STACK.findall(log)]
    if not registers:
        raise BuildError(f"the assembler does not say how many registers the kernel uses: {log.strip()[:500]!r}")
    return Resources(
        max(registers),
        max((stores + loads for _, stores, loads in frames), default=0),
        max((stack for stack, _, _ in frames), default=0),
        _SERIALIZED in log,
    )
