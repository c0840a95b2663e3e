"""targets.cpu.model_library: the C++ sources of libsuperkernel -> a shared library and an archive.

The library opens packages and runs their entries, without Python and without torch. All its sources are compiled as
one text, which takes a third of the time.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...cache import digest
from ..model_library import ModelLibrary
from ..native import objects
from ..native.architectures import baseline_flags
from ..native.build_context import BuildContext
from ..native.march import NATIVE
from ..native.objects import text_key
from ..native.toolchain import run
from .build import HOST, INCLUDE, build_context

MODEL_SOURCES = Path(__file__).parent / "runtime" / "model"
_SONAME = "libsuperkernel.so.1"
_HEADERS = (INCLUDE / "superkernel" / "model.h", INCLUDE / "superkernel" / "model.hpp")
_VERSION_SCRIPT = MODEL_SOURCES / "libsuperkernel.map"
_OF_HOST = ("blocking.cpp", "formation.cpp")  # sources that it shares with the host library
# It runs on every processor of the architecture, and shows nothing but what the version script lists. A call takes less
# than 0.1 us of its code, with -O1 as with -O2, which takes twice as long to compile.
_FLAGS = ("-O1", "-fvisibility=hidden")
# What it needs of the C++ library is linked into it: a package runs where only the C library is installed.
_LINK_FLAGS = (
    "-shared", "-fPIC", f"-Wl,-soname,{_SONAME}", f"-Wl,--version-script={_VERSION_SCRIPT}", "-Wl,--no-undefined",
    "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-Wl,-z,now", "-static-libstdc++", "-static-libgcc",
    # frees what the C++ library keeps for exceptions without memory, when this one is unloaded
    "-Wl,-fini=_ZN9__gnu_cxx9__freeresEv",
)  # fmt: skip
_SYSTEM_LIBRARIES = ("-ldl", "-lpthread", "-lm")


def source_files() -> list[Path]:
    return [*sorted(MODEL_SOURCES.glob("*.cpp")), *(HOST / name for name in _OF_HOST)]


def include_folders() -> tuple[Path, ...]:
    return (INCLUDE, MODEL_SOURCES, HOST)


def shared_library(context: BuildContext, version: str) -> Path:
    """The shared library from the cache, compiled if it is not there; its soname is libsuperkernel.so.1."""

    def build(output: Path) -> None:
        command = [
            *context.toolchain.cxx,
            *_LINK_FLAGS,
            str(_compiled(context, version)),
            *_SYSTEM_LIBRARIES,
            "-o",
            str(output),
        ]
        run(command, what=f"linking {_SONAME}", log=context.commands)

    return context.cache.make(_key("shared", context, version), ".so", build)


def static_library(context: BuildContext, version: str) -> Path:
    """The archive: one object, so that a program that links it has all of it, also what only packages call."""

    def build(output: Path) -> None:
        output.unlink(missing_ok=True)  # an archiver adds to a file that is there
        with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
            member = shutil.copyfile(_compiled(context, version), Path(folder, "superkernel.o"))
            run(["ar", "rcsD", str(output), str(member)], what="archiving libsuperkernel.a", log=context.commands)

    return context.cache.make(_key("static", context, version), ".a", build)


def _flags(context: BuildContext, version: str) -> tuple[str, ...]:
    return (*_FLAGS, *baseline_flags(context.architecture), f'-DSK_LIBRARY_VERSION="{version}"')


def _compiled(context: BuildContext, version: str) -> Path:
    text = "".join(f"#include <{path.name}>\n" for path in source_files())  # found in include_folders()
    key = digest("libsuperkernel source", text)
    source = context.cache.make(key, ".cpp", lambda path: path.write_text(text))
    flags = _flags(context, version)
    return objects.compile_source(
        source, flags, context.toolchain, context.cache, include_folders(), context.commands, keyed_by_text=True
    )


def _key(kind: str, context: BuildContext, version: str) -> str:
    contents = text_key((), include_folders())
    script = _VERSION_SCRIPT.read_text()
    flags = (*_flags(context, version), *_LINK_FLAGS[:2], *_LINK_FLAGS[4:])
    return digest("libsuperkernel", kind, contents, script, *flags, context.toolchain.identity)


@dataclass(frozen=True)
class CpuModelLibrary:
    soname: str = _SONAME
    headers: tuple[Path, ...] = _HEADERS
    system_libraries: tuple[str, ...] = ("-lstdc++", *_SYSTEM_LIBRARIES)

    def shared(self, version: str, march: str = NATIVE) -> Path:
        return shared_library(build_context(march=march), version)

    def static(self, version: str) -> Path:
        return static_library(build_context(), version)


LIBRARY: ModelLibrary = CpuModelLibrary()
