"""targets.ascend.emulator.library: the emulated chip's C++ library, compiled once and loaded."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path

from superkernel.cache import Cache, digest
from superkernel.targets.native.toolchain import Toolchain, find_toolchain, run

HOST = Path(__file__).parent / "host"
INCLUDE = Path(__file__).parent / "include"
# longjmp between stacks looks like a mistake to the checks that _FORTIFY_SOURCE adds
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=default", "-U_FORTIFY_SOURCE", "-g0")


class EmulatorSettings(ctypes.Structure):
    """As in machine.h."""

    _fields_ = (
        ("seed", c_uint64),
        ("para_base", c_uint64),
        ("stall_limit", c_uint64),
        ("watchdog_s", c_double),
        ("patience_s", c_double),
        ("cubes", c_int32),
        ("vectors", c_int32),
        ("vectors_per_block", c_int32),
        ("order", c_int32),
        ("flag_limit", c_int32),
        ("cube_flag", c_int32),
        ("vector_flag", c_int32),
        ("vectors_to_cube_flag", c_int32),
        ("cube_to_vectors_flag", c_int32),
        ("cache_line", c_int32),
        ("evict", c_int32),
        ("speculate", c_int32),
        ("quantum", c_int32),
        ("shuffle", c_int32),
        ("races", c_int32),
        ("record", c_int32),
    )


class TraceRecord(ctypes.Structure):
    """As in machine.h."""

    _fields_ = (
        ("sequence", c_uint64),
        ("time", c_uint64),
        ("core", c_uint32),
        ("what", c_uint32),
        ("op", c_uint32),
        ("detail", c_uint32),
        ("value", c_uint64),
    )


ACTS = ctypes.CFUNCTYPE(c_int, c_int)

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sk_emu_new": (c_void_p, [POINTER(EmulatorSettings)]),
    "sk_emu_region": (None, [c_void_p, c_uint64, c_uint64, c_char_p, c_int]),
    "sk_emu_op": (None, [c_void_p, c_char_p, c_char_p, c_uint64, c_int32, c_int64]),
    "sk_emu_agent": (None, [c_void_p, c_uint64, c_uint64, c_uint64]),
    "sk_emu_link": (None, [c_void_p, c_uint64, c_uint64, c_int]),
    "sk_emu_write_word": (None, [c_void_p, c_uint64, c_uint64]),
    "sk_emu_functions": (None, [c_void_p, c_void_p, c_int64]),
    "sk_emu_run": (c_int, [c_void_p, c_void_p, c_void_p, ACTS]),
    "sk_emu_error": (c_char_p, [c_void_p]),
    "sk_emu_records": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "sk_emu_function_name": (c_char_p, [c_void_p, c_uint32]),
    "sk_emu_steps": (c_uint64, [c_void_p]),
    "sk_emu_free": (None, [c_void_p]),
}


@dataclass(frozen=True)
class Library:
    path: Path
    calls: ctypes.CDLL


def load_library(cache: Cache) -> Library:
    """Built when its sources, headers or the compiler changed."""
    tools = find_toolchain()
    sources = sorted(HOST.glob("*.cpp"))
    texts = [path.read_bytes() for path in (*sources, *sorted(HOST.glob("*.h")), *sorted(INCLUDE.rglob("*.h")))]
    key = digest("emulator", *texts, " ".join(_FLAGS), tools.identity)
    path = cache.make(key, ".so", lambda output: _compile(sources, output, tools))
    return _load(path)


def _compile(sources: list[Path], output: Path, tools: Toolchain) -> None:
    command = [*tools.cxx, *_FLAGS, *map(str, sources), "-o", str(output)]
    run(command, what="compiling the Ascend emulator")


@remembered
def _load(path: Path) -> Library:
    calls = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    return Library(path, calls)
