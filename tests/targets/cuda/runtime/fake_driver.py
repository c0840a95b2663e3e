"""A fake of libcuda.so.1 for tests: builds and loads fake_libcuda.cpp, and plays the kernel that is launched."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import count as numbers
from pathlib import Path
from typing import Any

import numpy as np

from superkernel import Op
from superkernel.model.graph import build_graph
from superkernel.model.options import Options
from superkernel.model.params import Param
from superkernel.model.subkernel import Binary, Form, SubKernel
from superkernel.plan import make_plan
from superkernel.targets.cuda.runtime.image import KernelImage
from superkernel.targets.cuda.task_layout import LONG_WAIT, StateOffset, counters_offset

SOURCE = Path(__file__).parent / "fake_libcuda.cpp"
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
)
ELEMENTS = 64
TIMER_AHEAD_NS = 123_000_000_000  # of the device's timer against the host's
TABLE = bytes(range(48))


LIBRARY = "FAKE_LIBCUDA"  # the variable with its path
_NUMBERS = numbers()
_KEPT: list[FakeDriver] = []


@cache
def build_library() -> str:
    """Once; a test passes it on to processes that it starts."""
    if LIBRARY in os.environ:
        return os.environ[LIBRARY]
    folder = Path(tempfile.mkdtemp(prefix="fake_libcuda_"))
    library = folder / "libcuda.so.1"
    compiler = shutil.which("g++")
    assert compiler, "the tests need g++"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-O0", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=800)
    return str(library)


class FakeDriver:
    """The library, and the behaviour of launched kernels."""

    def __init__(self, devices: int = 1, sms: int = 8) -> None:
        # A library of its own, for ever: launches that an earlier test left behind end where they began.
        self.path = f"{build_library()}.{os.getpid()}.{next(_NUMBERS)}"
        shutil.copyfile(build_library(), self.path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_violations.restype = ctypes.c_char_p
        self.library.fake_get.restype = ctypes.c_int64
        self.library.fake_stream.restype = ctypes.c_void_p
        self.library.fake_global_content.restype = ctypes.c_void_p
        self.library.fake_memory.restype = ctypes.c_uint64
        self.library.fake_start(devices, sms)
        self.library.fake_global(b"sk_tasks", 4096)
        self.mode = "complete"
        self.launches: list[tuple[str, int, bool]] = []  # entry, stream, captured
        self.errors: list[BaseException] = []
        self.compute: Callable[[Any, Any], None] | None = None  # (values, state address)
        self.played: Callable[[Any, int], None] | None = None  # takes the values and the state, and returns at once
        self.entry_called: Callable[[str, Any], None] | None = None
        self._running: dict[int, int] = {}  # state -> cores, of launches that do not end
        self.cores = 0
        self._callback = _CALLBACK(self._kernel)
        self.library.fake_kernel(self._callback)
        self._lock = threading.Lock()
        _KEPT.append(self)

    def set(self, what: str, value: int) -> None:
        self.library.fake_set(what.encode(), ctypes.c_int64(value))

    def get(self, what: str) -> int:
        return int(self.library.fake_get(what.encode()))

    def plant(self, function: str, code: int, after: int = 0) -> None:
        self.library.fake_plant(function.encode(), code, after)

    def stream(self, device: int = 0, green_sms: int = 0) -> int:
        return int(self.library.fake_stream(device, green_sms))

    def capture(self, stream: int, status: int) -> None:
        self.library.fake_capture(ctypes.c_void_p(stream), status)

    @property
    def violations(self) -> str:
        return str(self.library.fake_violations().decode())

    def table(self, size: int) -> bytes:
        return ctypes.string_at(self.library.fake_global_content(b"sk_tasks"), size)

    def memory(self) -> dict[int, int]:
        """Address -> bytes of all that was allocated or mapped."""
        found: dict[int, int] = {}
        size = ctypes.c_int64()
        while address := self.library.fake_memory(ctypes.c_int64(len(found)), ctypes.byref(size)):
            found[address] = size.value
        return found

    # the kernel

    def _kernel(self, entry: bytes, state: int, values: Any, stream: int, captured: int) -> int:
        try:
            if not entry:
                self._look(state)
            else:
                self._launched(entry.decode(), state, values, stream, bool(captured))
        except BaseException as error:  # ctypes would print it and go on
            self.errors.append(error)
        return 0

    def _launched(self, entry: str, state: int, values: Any, stream: int, captured: bool) -> None:
        self.launches.append((entry, stream, captured))
        if entry == "sk_read_timer":
            (out,) = pointed_values(values, 1)
            ctypes.c_uint64.from_address(out).value = time.monotonic_ns() + TIMER_AHEAD_NS
        if self.entry_called is not None:
            self.entry_called(entry, values)
        if not entry.startswith(("sk_chain", "sk_main")):
            return
        if captured:
            return
        if self.played is not None:
            self.played(values, state)
            return
        if self.mode == "complete":
            if self.compute is not None:
                self.compute(values, state)
            _word(state, StateOffset.EPOCH).value += 1
            return
        for core in range(self.cores):
            progress = 1 | (LONG_WAIT if self.mode == "waits" else 0)
            _word(state, StateOffset.PROGRESS + 4 * core).value = progress
        self._running[state] = self._running.get(state, 0) + 1

    def _look(self, state: int) -> None:
        """A launch in which all cores wait ends when it sees the abort word."""
        with self._lock:
            if state not in self._running:
                return
            control = ctypes.c_uint64.from_address(state + StateOffset.CONTROL).value
            if not ctypes.c_uint32.from_address(control).value or self.mode != "waits":
                return
            for core in range(self.cores):
                _word(state, StateOffset.PROGRESS + 4 * core).value = 0
            _word(state, StateOffset.FAILURE).value = 1
            _word(state, StateOffset.EPOCH).value += self._running.pop(state)

    def replay(self, state: int) -> None:
        """A launch of a graph begins."""
        for core in range(self.cores):
            _word(state, StateOffset.PROGRESS + 4 * core).value = 1 | LONG_WAIT
        self._running[state] = 1

    def finish(self) -> None:
        """What does not end has ended."""
        for state, count in list(self._running.items()):
            for core in range(self.cores):
                _word(state, StateOffset.PROGRESS + 4 * core).value = 0
            _word(state, StateOffset.EPOCH).value += count
        self._running.clear()


def pointed_values(parameters: int, count: int) -> list[int]:
    """The 64-bit values behind an array of pointers."""
    pointers = (ctypes.c_uint64 * count).from_address(parameters)
    return [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]


def _word(state: int, offset: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(state + offset)


class FakeDeviceArray:
    """An array of the fake device, as CuPy's: aligned memory of the host with __cuda_array_interface__."""

    def __init__(self, array: np.ndarray[Any, Any], stream: int | None = None, offset: int = 0) -> None:
        self._room = np.empty(array.nbytes + 512, np.uint8)
        first = -self._room.ctypes.data % 256 + offset
        self.array = self._room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self._stream = stream
        self.changed: dict[str, Any] = {}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        fields = {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ctypes.data, False),
            "version": 3,
            "stream": self._stream,
        }
        return {**fields, **self.changed}


def chain_image(folder: Path, options: str = "", name: str = "chain", sms: int = 4, **changes: Any) -> KernelImage:
    """Two ops, each adds 1: x -> t -> y; t is an inner buffer."""
    params = tuple(Param.parse(text) for text in (f"in:a:float32[{ELEMENTS}]", f"out:b:float32[{ELEMENTS}]"))
    add = SubKernel("add", Binary(Form.SOURCE, Path("add.cpp")), 4, params)
    graph = build_graph([Op(add, ["x", "t"], name="first"), Op(add, ["t", "y"], name="second")], name)
    plan = make_plan(graph, Options.parse(options), sms)
    entry = f"sk_{name}"
    cubin = folder / f"{name}.cubin"
    cubin.write_bytes(f"FAKECUBIN {entry} registers=96 static=0 \n".encode())
    cores = plan.cores
    calls = [number for number, step in enumerate(plan.steps) if type(step).__name__ == "Call"]
    records = [number for number, step in enumerate(plan.steps) if type(step).__name__ == "Record"]
    fields: dict[str, Any] = {
        "plan": plan,
        "cubin": cubin,
        "entry": entry,
        "symbols": {"sk_tasks": TABLE},
        "sms": cores,
        "slots": 1,
        "cores": cores,
        "slot_threads": 128,
        "shared_bytes": 65536,
        "state_bytes": counters_offset(cores) + 64,
        "stamp_room": len(records),
        "values": len(graph.buffers) + 3,
        "copies_bytes": 0,
        "scratch_bytes": 0,
        "task_steps": [calls] * cores,
        "stamp_steps": [records] * cores,
    }
    return KernelImage(**{**fields, **changes})
