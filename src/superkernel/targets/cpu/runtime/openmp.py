"""targets.cpu.runtime.openmp: the OpenMP run time of this process: its functions and its number of threads."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ....errors import UnsupportedError

_NAMES = ("libgomp", "libomp", "libiomp")
_FORKED_NO_EXEC = 0x40  # PF_FORKNOEXEC in the flags of /proc/self/stat


@dataclass(frozen=True)
class OpenMP:
    path: Path
    library: ctypes.CDLL
    inherited: bool  # it was loaded before this process was forked, or may have been: its threads may be missing

    def address(self, function: str) -> int:
        found = ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value
        assert found is not None
        return found


def loaded() -> list[Path]:
    """The OpenMP libraries mapped into this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = (Path(line.rpartition(" ")[2]) for line in lines)
    return list(dict.fromkeys(path for path in paths if path.name.startswith(_NAMES)))


def _candidates() -> Iterator[Path]:
    yield from loaded()
    yield from _torch_libraries()
    yield Path("libgomp.so.1")
    if found := ctypes.util.find_library("gomp"):  # runs programs to find it
        yield Path(found)


@cache
def openmp() -> OpenMP:
    """The run time that torch uses, also when torch comes later; the system's when there is no torch."""
    inherited = bool(loaded()) and _forked_without_exec()
    for path in _candidates():
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if hasattr(library, "GOMP_parallel"):
            # a kernel may have to be linked with it: the file, where the loader only was given a name
            return OpenMP(path if path.is_absolute() else next(iter(loaded()), path), library, inherited)
    raise UnsupportedError("no OpenMP run time found: install libgomp (apt-get install libgomp1)")


def _forked_without_exec() -> bool:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # what follows the program's name
    except OSError:
        return False
    return bool(int(fields[6]) & _FORKED_NO_EXEC)


def _torch_libraries() -> list[Path]:
    """The library that torch would load, found without importing torch: a process must not load two."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # an import hook may forbid torch
        return []
    if spec is None or not spec.submodule_search_locations:
        return []
    home = Path(next(iter(spec.submodule_search_locations)))
    return [
        path for folder in (home / "lib", home.parent / "torch.libs") for path in sorted(folder.glob("libgomp*.so*"))
    ]


@cache
def _thread_setting(of_torch: bool) -> Callable[[], int]:
    read: Callable[[], int] = sys.modules["torch"].get_num_threads if of_torch else openmp().library.omp_get_max_threads
    return read


def thread_count() -> int:
    """How many cores a launch may use: torch's setting when torch is there, OpenMP's otherwise."""
    return _thread_setting(hasattr(sys.modules.get("torch"), "get_num_threads"))()  # torch may be being imported now
