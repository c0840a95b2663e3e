"""targets.cuda.emulator.library: the emulator's C++ library, compiled once and loaded."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache as remembered
from pathlib import Path
from tempfile import TemporaryDirectory

from superkernel.cache import Cache, digest
from superkernel.targets.native.loading import load_shared
from superkernel.targets.native.toolchain import Toolchain, cpu_features, find_toolchain, run

from ...emulation import HOST as SHARED_HOST

HOST = Path(__file__).parent / "host"
# an operation is rounded once, as on the GPU: no product is contracted into the sum behind it
_FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-g0", "-w")
# files that are compiled together: the headers of the C++ library, which take most of the time, are read once
_UNITS = (
    ("control", "memory_place", "memory", "bulk", "races", "report", "scheduler", "warp", "matrix", "api"),
    ("integer",),
    ("floating",),
    ("conversions", "half"),
)
_SETS = ("avx2", "fma")  # instruction sets that make it faster where the machine has them


class LaunchSettings(ctypes.Structure):
    """As Settings in machine.h."""

    _fields_ = (
        *((name, c_uint64) for name in ("seed", "stall_limit", "progress")),
        *((name, c_uint32 * 3) for name in ("grid", "threads")),
        *(
            (name, c_uint32)
            for name in ("resident", "cores", "task_register", "slot_threads", "shared_bytes", "dynamic_shared")
        ),
        *(
            (name, c_uint32)
            for name in ("local_bytes", "slots", "slot_areas", "slot_bytes", "order", "quantum", "races")
        ),
        ("late_copies", c_uint32),
        ("apart", c_uint32),
        ("cluster", c_uint32),
        ("ring_bytes", c_uint32),
    )


class TaskRecord(ctypes.Structure):
    """As Record in machine.h: a core begins a task, or (task 0) has ended its last."""

    _fields_ = (("time", c_uint64), ("core", c_uint32), ("task", c_uint32))


_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sk_ptx_handler": (c_char_p, [c_uint32]),
    "sk_ptx_new": (c_void_p, [POINTER(LaunchSettings)]),
    "sk_ptx_program": (None, [c_void_p, c_void_p, c_uint64, c_void_p, c_uint64]),
    "sk_ptx_registers": (None, [c_void_p, c_void_p, c_uint64, c_void_p, c_uint64]),
    "sk_ptx_banks": (None, [c_void_p, c_char_p, c_uint64, c_char_p, c_uint64]),
    "sk_ptx_range": (
        None,
        [c_void_p, c_uint64, c_uint64, c_void_p, c_char_p, c_int, c_int, c_int, c_int, c_int, c_uint32, c_int],
    ),
    "sk_ptx_label": (None, [c_void_p, c_uint64, c_uint64, c_char_p]),
    "sk_ptx_ops": (None, [c_void_p, POINTER(c_char_p), c_uint64]),
    "sk_ptx_staged": (None, [c_void_p, c_void_p, c_uint64]),
    "sk_ptx_tasks": (None, [c_void_p, c_void_p, c_void_p, c_uint64]),
    "sk_ptx_run": (c_int, [c_void_p, c_uint64]),
    "sk_ptx_error": (c_char_p, [c_void_p]),
    "sk_ptx_steps": (c_uint64, [c_void_p]),
    "sk_ptx_records": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "sk_ptx_free": (None, [c_void_p]),
    "sk_ptx_devices_new": (c_void_p, []),
    "sk_ptx_devices_join": (None, [c_void_p, c_void_p, c_uint32, c_char_p, c_void_p]),
    "sk_ptx_devices_free": (None, [c_void_p]),
    "sk_ptx_progress": (c_uint64, [c_void_p]),
    "sk_ptx_standing": (c_char_p, [c_void_p, c_char_p]),
}


@dataclass(frozen=True)
class EmulatorLibrary:
    path: Path
    calls: ctypes.CDLL = field(hash=False, compare=False)
    handlers: Mapping[str, int] = field(hash=False, compare=False)  # name -> number


def load_emulator(cache: Cache) -> EmulatorLibrary:
    """Built when its sources or the compiler changed, or on another kind of processor."""
    tools = find_toolchain()
    features = cpu_features().split()
    flags = (*_FLAGS, *(f"-m{name}" for name in _SETS if name in features))
    key = digest("ptx emulator", _sources(), " ".join(flags), tools.identity)
    return _load(cache.make(key, ".so", lambda output: _compile(output, flags, tools)))


@remembered
def _sources() -> str:
    """The texts of all sources, as one digest."""
    return digest(*(path.read_bytes() for folder in (HOST, SHARED_HOST) for path in sorted(folder.glob("*.*"))))


def _compile(output: Path, flags: tuple[str, ...], tools: Toolchain) -> None:
    """Two units at a time: g++ needs some seconds for the many small loops."""
    with TemporaryDirectory() as folder:
        objects = [Path(folder, f"{names[0]}.o") for names in _UNITS]

        def compile_unit(names: tuple[str, ...], to: Path) -> None:
            unit = to.with_suffix(".cpp")
            unit.write_text("".join(f'#include "{HOST / name}.cpp"\n' for name in names))
            run([*tools.cxx, *flags, "-c", str(unit), "-o", str(to)], what="compiling the PTX emulator")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_unit, _UNITS, objects))
        run([*tools.cxx, "-shared", *map(str, objects), "-o", str(output)], what="linking the PTX emulator")


@remembered
def _load(path: Path) -> EmulatorLibrary:
    calls = load_shared(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    names = itertools.takewhile(bool, map(calls.sk_ptx_handler, itertools.count()))
    return EmulatorLibrary(path, calls, {name.decode(): number for number, name in enumerate(names)})
