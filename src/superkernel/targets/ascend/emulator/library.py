"""targets.ascend.emulator.library: the emulated chip's C++ library, compiled once and loaded."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from tempfile import TemporaryDirectory

from superkernel.cache import Cache, digest
from superkernel.targets.emulation import HOST as SHARED_HOST
from superkernel.targets.native.loading import load_shared
from superkernel.targets.native.toolchain import Toolchain, find_toolchain, run

HOST = Path(__file__).parent / "host"
INCLUDE = Path(__file__).parent / "include"
# longjmp between stacks looks like a mistake to the checks that _FORTIFY_SOURCE adds
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=default", "-U_FORTIFY_SOURCE", "-g0")

# settings that have the name of a field of Chip or of Delays
CHIP_FIELDS = ("flag_limit", "cube_flag", "vector_flag", "vectors_to_cube_flag", "cube_to_vectors_flag", "cache_line")
DELAY_FIELDS = ("evict", "speculate", "quantum", "shuffle")


class EmulatorSettings(ctypes.Structure):
    """As in machine.h."""

    _fields_ = (
        *((name, c_uint64) for name in ("seed", "para_base", "sync_base", "stall_limit")),
        *((name, c_double) for name in ("watchdog_s", "patience_s")),
        *((name, c_int32) for name in ("cubes", "vectors", "vectors_per_block", "launch_type")),
        *((name, c_int32) for name in ("preload_lines_cube", "preload_lines_vector", "preload_entry")),
        *((name, c_int32) for name in ("order", *CHIP_FIELDS, *DELAY_FIELDS)),
        *((name, c_int32) for name in ("races", "record", "watchdog_exits", "followed")),
    )


class OpDescription(ctypes.Structure):
    """As in api.cpp."""

    _fields_ = (
        *((name, c_char_p) for name in ("name", "functions")),
        ("first_slot", c_uint64),
        *((name, c_int64) for name in ("blocks", "stream", "copies")),
        *((name, c_int32) for name in ("type", "dynamic", "preloaded")),
    )


class TraceRecord(ctypes.Structure):
    """As in machine.h."""

    _fields_ = (
        *((name, c_uint64) for name in ("sequence", "time")),
        *((name, c_uint32) for name in ("core", "what", "op", "detail")),
        ("value", c_uint64),
    )


ACTS = ctypes.CFUNCTYPE(c_int, c_int)
NEXT_LAUNCH = ctypes.CFUNCTYPE(c_void_p, c_int)  # a rank -> its next machine, or None

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sk_emu_new": (c_void_p, [POINTER(EmulatorSettings)]),
    "sk_emu_region": (None, [c_void_p, c_uint64, c_uint64, c_char_p, c_int]),
    "sk_emu_op": (None, [c_void_p, POINTER(OpDescription)]),
    "sk_emu_need": (None, [c_void_p, c_uint32, c_uint32, c_int, c_int]),
    "sk_emu_decided": (None, [c_void_p, c_uint32, c_int64, c_char_p]),
    "sk_emu_word": (None, [c_void_p, c_uint64, c_char_p, c_int32]),
    "sk_emu_word_op": (None, [c_void_p, c_uint64, c_uint32]),
    "sk_emu_agent": (None, [c_void_p, c_char_p, c_uint64, c_uint64, c_uint64, c_int]),
    "sk_emu_agent_reads": (c_int, [c_void_p, c_int, c_uint64, c_uint64]),
    "sk_emu_agent_writes": (c_int, [c_void_p, c_int, c_uint64, c_uint64]),
    "sk_emu_stand_in": (
        None,
        [c_void_p, c_uint32, c_uint64, c_uint64, c_int64, c_int64, c_uint32, c_int, c_int, c_int],
    ),
    "sk_emu_stand_in_touch": (
        None,
        [c_void_p, c_uint32, c_uint32, c_int32, c_int, c_int, c_uint32, c_uint32, c_uint32, c_int, c_int],
    ),
    "sk_emu_stand_in_follow": (None, [c_void_p, c_uint32, c_uint64, c_uint32, c_int]),
    "sk_emu_stand_in_key": (None, [c_void_p, c_uint32, c_char_p, c_uint64]),
    "sk_emu_link": (None, [c_void_p, c_uint64, c_uint64, c_int]),
    "sk_emu_functions": (None, [c_void_p, c_void_p, c_int64]),
    "sk_emu_dump_area": (None, [c_void_p, c_uint64, c_uint64]),
    "sk_emu_follow": (None, [c_void_p, c_void_p]),
    "sk_emu_told": (None, [c_void_p, c_int, c_void_p, c_void_p]),
    "sk_emu_enter": (None, [c_void_p, c_void_p, c_void_p, ACTS]),
    "sk_emu_run": (c_int, [c_void_p]),
    "sk_emu_error": (c_char_p, [c_void_p]),
    "sk_emu_records": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "sk_emu_function_name": (c_char_p, [c_void_p, c_uint32]),
    "sk_emu_free": (None, [c_void_p]),
    "sk_emu_ranks_new": (c_void_p, [c_uint64, c_int]),
    "sk_emu_ranks_join": (None, [c_void_p, c_void_p, c_int, c_char_p, c_void_p]),
    "sk_emu_ranks_run": (c_int, [c_void_p, NEXT_LAUNCH]),
    "sk_emu_ranks_error": (c_char_p, [c_void_p]),
    "sk_emu_ranks_free": (None, [c_void_p]),
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
    texts += [path.read_bytes() for path in sorted(SHARED_HOST.glob("*.h"))]
    key = digest("emulator", *texts, " ".join(_FLAGS), tools.identity)
    path = cache.make(key, ".so", lambda output: _compile(sources, output, tools))
    return _load(path)


def _compile(sources: list[Path], output: Path, tools: Toolchain) -> None:
    """As one translation unit: the headers of the C++ library, which take most of the time, are read once."""
    with TemporaryDirectory() as folder:
        whole = Path(folder, "emulator.cpp")
        whole.write_text("".join(f'#include "{path}"\n' for path in sources))
        run([*tools.cxx, *_FLAGS, str(whole), "-o", str(output)], what="compiling the Ascend emulator")


@remembered
def _load(path: Path) -> Library:
    calls = load_shared(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    return Library(path, calls)
