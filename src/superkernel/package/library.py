"""package.library: libsuperkernel from the cache; a folder with all that C and C++ programs compile and link with."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..cache import default_directory, digest
from ..errors import BuildError
from ..targets import model_library
from ..version import __version__

_SHARED, _ARCHIVE = "libsuperkernel.so", "libsuperkernel.a"
_SHOW_SYMBOLS = "-rdynamic"  # the code of packages calls functions of the library, also where it is linked statically


def library_path(march: str = "native") -> Path:
    """libsuperkernel.so.1 in the cache, under another file name; compiled if it is not there.

    It is for the architecture of this machine, or for the one that `march` names.
    """
    return model_library().shared(__version__, march)


def static_library_path() -> Path:
    """libsuperkernel.a in the cache, under another file name; compiled if it is not there."""
    return model_library().static(__version__)


@dataclass(frozen=True)
class BuildEnvironment:
    """A folder with headers, libraries, a pkg-config file and a CMake config."""

    prefix: Path

    @property
    def include(self) -> Path:
        return self.prefix / "include"

    @property
    def libraries(self) -> Path:
        return self.prefix / "lib"

    @property
    def pkg_config(self) -> Path:
        return self.libraries / "pkgconfig"

    @property
    def cmake(self) -> Path:
        return self.libraries / "cmake" / "superkernel"

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return (f"-I{self.include}",)

    @property
    def link_flags(self) -> tuple[str, ...]:
        return (f"-L{self.libraries}", f"-Wl,-rpath,{self.libraries}", "-lsuperkernel")

    @property
    def static_link_flags(self) -> tuple[str, ...]:
        return (str(self.libraries / _ARCHIVE), *_static_libraries())

    def fields(self) -> dict[str, object]:
        """For --json."""
        return {
            "ok": True,
            "version": __version__,
            "prefix": str(self.prefix),
            "cflags": list(self.compile_flags),
            "libs": list(self.link_flags),
            "static_libs": list(self.static_link_flags),
            "pkg_config_path": str(self.pkg_config),
            "cmake_prefix_path": str(self.prefix),
        }

    def __str__(self) -> str:
        search = shlex.quote(f"-DCMAKE_PREFIX_PATH={self.prefix}")
        rows = {
            "compile": shlex.join(self.compile_flags),
            "link": shlex.join(self.link_flags),
            "link statically": shlex.join(self.static_link_flags),
            "pkg-config": f"PKG_CONFIG_PATH={shlex.quote(str(self.pkg_config))} pkg-config --cflags --libs superkernel",
            "CMake": f"{search}, then find_package(superkernel), superkernel::superkernel",
        }
        return "\n".join(f"{what + ':':17}{text}" for what, text in rows.items())


def build_environment(prefix: Path | None = None) -> BuildEnvironment:
    """Install headers and libraries under `prefix`; None: in a folder beside the cache, made once."""
    shared, static = library_path(), static_library_path()
    if prefix is not None:
        try:
            environment = BuildEnvironment(prefix.absolute())
        except OSError as reason:  # the current folder was removed
            raise BuildError(f"the build environment cannot be installed in {prefix}: {reason}") from reason
        _install(environment, environment.prefix, shared, static)
        return environment
    contents = [header.read_text() for header in model_library().headers]
    name = f"build-env-{digest(shared.name, static.name, *contents, __version__)[:16]}"
    environment = BuildEnvironment(default_directory() / name)
    if environment.cmake.is_dir():
        return environment
    unfinished = Path(tempfile.mkdtemp(prefix="build-env-", dir=environment.prefix.parent))
    try:
        _install(environment, unfinished, shared, static)
        with suppress(OSError):  # another process was faster
            unfinished.rename(environment.prefix)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return environment


def _install(environment: BuildEnvironment, folder: Path, shared: Path, static: Path) -> None:
    """Write the files of an environment into `folder`, which is or becomes its prefix."""
    here = BuildEnvironment(folder)
    try:
        (here.include / "superkernel").mkdir(parents=True, exist_ok=True)
        for path in (here.pkg_config, here.cmake):
            path.mkdir(parents=True, exist_ok=True)
        for header in model_library().headers:
            _put(here.include / "superkernel" / header.name, partial(shutil.copyfile, header))
        soname = model_library().soname
        _put(here.libraries / soname, partial(shutil.copyfile, shared))
        _put(here.libraries / _ARCHIVE, partial(shutil.copyfile, static))
        _put(here.libraries / _SHARED, partial(os.symlink, soname))
        texts = {here.pkg_config / name: text for name, text in _pkg_config_files(environment).items()}
        texts |= {here.cmake / name: text for name, text in _cmake_files().items()}
        for path, text in texts.items():
            _put(path, partial(_write_text, text))
    except OSError as reason:
        raise BuildError(f"the build environment cannot be installed in {folder}: {reason}") from reason


def _write_text(text: str, path: Path) -> None:
    path.write_text(text)


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """A new file in the place of an old one, which programs that have opened it keep: a library may be in use."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        fresh = Path(folder, path.name)
        write(fresh)
        fresh.replace(path)


def _static_libraries() -> tuple[str, ...]:
    return (*model_library().system_libraries, _SHOW_SYMBOLS)


def _pkg_config_files(environment: BuildEnvironment) -> Mapping[str, str]:
    head = (
        f"prefix={environment.prefix}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n"
        f"Description: Runs models that SuperKernel has compiled ahead of time\nVersion: {__version__}\n"
        'Cflags: "-I${includedir}"\n'
    )
    static = " ".join((f'"${{libdir}}/{_ARCHIVE}"', *_static_libraries()))
    return {
        "superkernel.pc": f'{head}Name: superkernel\nLibs: "-L${{libdir}}" "-Wl,-rpath,${{libdir}}" -lsuperkernel\n',
        "superkernel-static.pc": f"{head}Name: superkernel-static\nLibs: {static}\n",
    }


def _cmake_files() -> Mapping[str, str]:
    soname = model_library().soname
    targets = f"""\
# superkernel::superkernel is the shared library, superkernel::static the archive.
get_filename_component(_superkernel_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET superkernel::superkernel)
  add_library(superkernel::superkernel SHARED IMPORTED)
  set_target_properties(superkernel::superkernel PROPERTIES
    IMPORTED_LOCATION "${{_superkernel_prefix}}/lib/{soname}"
    IMPORTED_SONAME "{soname}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_superkernel_prefix}}/include")
  add_library(superkernel::static STATIC IMPORTED)
  set_target_properties(superkernel::static PROPERTIES
    IMPORTED_LOCATION "${{_superkernel_prefix}}/lib/{_ARCHIVE}"
    INTERFACE_LINK_LIBRARIES "{";".join(_static_libraries())}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_superkernel_prefix}}/include")
endif()
"""
    version = f"""\
set(PACKAGE_VERSION "{__version__}")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""
    return {"superkernelConfig.cmake": targets, "superkernelConfigVersion.cmake": version}
