"""targets.cpu.runtime.host_library: the run time's host library, loaded: its structures and functions in ctypes."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....configuration import config
from ....errors import OptionError, UnsupportedError
from ... import tensor_spans
from ...native.loading import load_shared
from ...protocol import AddressWriter
from ...tensor_spans import OverlapCheck, TensorSpan
from .openmp import openmp
from .processors import cpu_quota
from .tiling_agent import TilingAgentPool


class Fault(IntEnum):
    """Why a launch was stopped; as in state.h."""

    NONE = 0
    STALLED = 1
    INTERRUPTED = 2
    UNKNOWN_KEY = 3
    BLOCK_COUNT = 4
    UNDECLARED_SYNC = 5
    TILING_FAILED = 6
    FAILED = 7
    NOT_WAITED = 8
    TILING_STATUS = 9
    NO_ROOM = 10
    NO_MEMORY = 11
    RANK_FAILED = 12
    NULL_BUFFER = 13


class Facts(ctypes.Structure):
    """As in program.h."""

    _fields_ = (
        ("entry", c_void_p), ("name", c_char_p), ("cores", c_int32), ("slot_count", c_int32), ("source_count", c_int32),
        ("slot_source", POINTER(c_int32)), ("slot_literal", POINTER(c_uint64)), ("rendezvous_count", c_int32),
        ("tiling_count", c_int32), ("counter_count", c_int32), ("copies_bytes", c_int64), ("step_count", c_int32),
        ("step_text", POINTER(c_char_p)), ("stamp_room", c_int32), ("needs_team", c_int32), ("watchdog_s", c_double),
        ("report_path", c_char_p), ("delay_seed", c_uint64), ("alone", c_int32), ("watchdog_exits", c_int32),
        ("checked_slots", c_void_p), ("checked_steps", c_void_p), ("buffer_use", c_void_p),
        ("arena_bytes", c_int64), ("source_offset", POINTER(c_int64)), ("source_bytes", POINTER(c_int64)),
        ("blocking_steps", c_int32), ("rank_watchdog_s", c_double),
    )  # fmt: skip


class Wanted(ctypes.Structure):
    """As in bind.cpp."""

    _fields_ = (
        ("elements", c_int64), ("least_bytes", c_int64), ("itemsize", c_int32), ("typekind", c_char),
        ("written", c_uint8), ("memory", c_uint8),
    )  # fmt: skip


class Caller(ctypes.Structure):
    """As in bind.cpp."""

    _fields_ = (("program", c_void_p), ("wanted", c_void_p), ("count", c_int32))


class TensorInput(ctypes.Structure):
    """As in bind.cpp."""

    _fields_ = (("place", c_int32), ("index", c_int32))


class TensorSpanStructure(ctypes.Structure):
    """As in bind.cpp."""

    _fields_ = (("index", c_int32), ("written", c_int32), ("bytes", c_int64))


class LaunchStructure(ctypes.Structure):
    """As in values.cpp."""

    _fields_ = (
        ("program", c_void_p), ("count", c_int32), ("place", POINTER(c_int32)), ("addend", POINTER(c_uint64)),
    )  # fmt: skip


@dataclass(frozen=True)
class HostLibrary:
    """`gil_released`: calls that release the GIL. `gil_held`: calls that keep it."""

    path: Path
    gil_released: ctypes.CDLL
    gil_held: ctypes.PyDLL
    tiling_agents: TilingAgentPool

    def unconverted(self, name: str) -> Any:
        """A function of `gil_released` without argtypes: checking arguments costs time."""
        function = self.gil_released[name]  # a new object, unlike the attribute
        function.restype = _GIL_RELEASED[name][0]
        return function


# function -> (result, arguments)
_GIL_RELEASED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sk_host_openmp": (None, (c_void_p, c_void_p, c_void_p)),
    "sk_team_policy": (None, (c_int32,)),
    "sk_processor_limit": (None, (c_int32,)),
    "sk_region_unsafe": (None, ()),
    "sk_machine_crowded": (c_int32, ()),
    "sk_region_used": (c_int32, ()),
    "sk_program_create": (c_void_p, (POINTER(Facts),)),
    "sk_program_close": (c_int32, (c_void_p,)),
    "sk_program_destroy": (None, (c_void_p,)),
    "sk_program_running": (c_int32, (c_void_p,)),
    "sk_launch_begin": (c_void_p, (c_void_p,)),
    "sk_launch_run": (c_int32, (c_void_p, c_void_p, c_void_p, c_int32)),
    "sk_launch_end": (None, (c_void_p,)),
    "sk_call_values": (c_int64, (c_void_p, c_void_p, c_void_p, c_int32)),
    "sk_call_recorded": (c_int64, (c_void_p, c_void_p, c_void_p, c_int32, c_void_p)),
    "sk_call_sequence": (c_int64, (c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p, c_void_p)),
    "sk_time_launches": (None, (c_int32,)),
    "sk_last_launch": (None, (c_void_p,)),
    "sk_launch_position": (c_int32, (c_void_p,)),
    "sk_launch_report": (c_char_p, (c_void_p,)),
    "sk_launch_failure": (c_char_p, (c_void_p,)),
    "sk_launch_fault": (c_int32, (c_void_p,)),
    "sk_launch_fault_step": (c_uint32, (c_void_p,)),
    "sk_launch_fault_detail": (c_int64, (c_void_p,)),
    "sk_launch_record": (None, (c_void_p, c_void_p)),
    "sk_rank_area_create": (c_void_p, (c_int32, c_uint64, c_int32, c_int32, c_void_p, c_void_p, c_int32)),
    "sk_rank_area_destroy": (None, (c_void_p,)),
    "sk_agent_create": (c_void_p, ()),
    "sk_agent_attach": (None, (c_void_p, c_void_p)),
    "sk_agent_next": (c_int32, (c_void_p,)),
    "sk_agent_detach": (c_int32, (c_void_p, c_double)),
    "sk_agent_answer": (None, (c_void_p, c_int32, c_int64, c_int64)),
    "sk_agent_failed": (None, (c_void_p, c_int32)),
}
_GIL_HELD: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sk_bind_python": (None, (c_void_p,)),
    "sk_bind": (c_int32, (ctypes.py_object, c_int32, c_void_p, c_void_p, c_void_p)),
    "sk_call": (c_int64, (c_void_p, ctypes.py_object, c_void_p, c_void_p, c_int32)),
    "sk_rank_area_begin": (None, (c_void_p, c_uint32)),
    "sk_fill": (None, (ctypes.py_object, c_void_p, c_int32, c_void_p, c_void_p)),
    "sk_tensors_overlap": (c_int32, (ctypes.py_object, c_void_p, c_int32, c_void_p, c_void_p, c_void_p)),
}
MISFIT, CLOSED = -1, -2
TEAM = "SUPERKERNEL_TEAM"  # whether launches ask for a team of threads; read when the first kernel is loaded
_POLICIES = ("auto", "always", "never")  # as in formation.cpp
_fork = {"broken": False}
# as struct Python in bind.cpp
_PYTHON = ("PyList_GetItem", "PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread", "PyTuple_GetItem")


def load_library(path: Path) -> ctypes.CDLL:
    """Load through a fresh name: the loader takes a file that replaced a loaded file for the old file."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="superkernel-")
    except OSError:  # nowhere to write: the plain name serves unless such a file was replaced
        return load_shared(path)
    with folder as name:
        alias = Path(name, path.name)
        alias.symlink_to(path.absolute())
        return load_shared(path, alias)


def load_host(path: Path) -> HostLibrary:
    """The host library of one file, loaded once."""
    try:
        file = path.stat()
        return _load_host(path, file.st_dev, file.st_ino)
    except OSError as reason:
        raise UnsupportedError(f"the run time's host library {path} cannot be loaded here: {reason}") from reason


@cache
def _load_host(path: Path, *identity: int) -> HostLibrary:
    gil_released = load_library(path)
    gil_held = ctypes.PyDLL(str(path), handle=gil_released._handle)
    for library, table in ((gil_released, _GIL_RELEASED), (gil_held, _GIL_HELD)):
        for name, (result, arguments) in table.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    run_time = openmp()
    gil_released.sk_host_openmp(
        *(run_time.address(f) for f in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"))
    )
    gil_released.sk_team_policy(_team_policy())
    if (quota := cpu_quota()) is not None:  # affinity may change, and is asked for there
        gil_released.sk_processor_limit(int(quota))
    if run_time.inherited:
        gil_released.sk_region_unsafe()
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in _PYTHON]
    gil_held.sk_bind_python((c_void_p * (len(_PYTHON) + 1))(*functions, id(None)))
    with _loaded_lock:
        gil_released.sk_time_launches(_timing.enabled)
        host = HostLibrary(path, gil_released, gil_held, TilingAgentPool(gil_released))
        _loaded.append(host)
    return host


def _team_policy() -> int:
    chosen = config.team or "auto"
    if chosen not in _POLICIES:
        raise OptionError(f"{TEAM}={chosen!r}: it must be {', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}")
    return _POLICIES.index(chosen)


@contextmanager
def team_policy(chosen: str) -> Iterator[None]:
    """Inside, launches of this process ask for a team as if SUPERKERNEL_TEAM were `chosen`."""
    before = os.environ.get(TEAM)
    os.environ[TEAM] = chosen
    try:
        _apply_team_policy()
        yield
    finally:
        del os.environ[TEAM]
        if before is not None:
            os.environ[TEAM] = before
        _apply_team_policy()


def _apply_team_policy() -> None:
    policy = _team_policy()
    for host in _loaded:
        host.gil_released.sk_team_policy(policy)


def _after_fork() -> None:
    _fork["broken"] = any(host.gil_released.sk_region_used() for host in _loaded)


os.register_at_fork(after_in_child=_after_fork)


def forked() -> bool:
    """Whether this is the child of a fork whose parent had launched on several cores: it is told to use spawn.

    In any other child no region begins, and a launch runs on the calling thread.
    """
    return _fork["broken"]


def address_writer(inputs: Sequence[tuple[int, int]], address_function: int) -> AddressWriter:
    """Uses any loaded host library: a kernel was built, so there is one.

    `inputs`: place in the values, index in the tuple. `address_function`: its address; it finds a tensor's memory.
    """
    table = (TensorInput * len(inputs))(*(TensorInput(*pair) for pair in inputs))
    fill, count = _loaded[-1].gil_held.sk_fill, len(inputs)
    of_tensor = c_void_p(address_function)

    def call(tensors: tuple[Any, ...], values: Any) -> None:
        fill(tensors, table, count, values, of_tensor)

    return call


def overlap_check(spans: Sequence[TensorSpan], address_function: int | None) -> OverlapCheck:
    """Uses any loaded host library; Python, if nothing was built or torch has no such function."""
    if not _loaded or not address_function:
        return tensor_spans.overlap_check(spans)
    count = len(spans)
    rows = (TensorSpanStructure(span.index, span.written, span.bytes) for span in spans)
    table, addresses = (TensorSpanStructure * count)(*rows), (c_uint64 * count)()
    order = (c_int32 * count)(*range(count))  # callers hold the GIL
    of_tensor, overlap = c_void_p(address_function), _loaded[-1].gil_held.sk_tensors_overlap

    def check(tensors: tuple[Any, ...]) -> bool:
        return bool(overlap(tensors, table, count, addresses, order, of_tensor))

    return check


# Several, if another process has replaced the file in the cache.
_loaded: list[HostLibrary] = []
_timing = SimpleNamespace(enabled=False)
_loaded_lock = threading.Lock()


def loaded_hosts() -> tuple[HostLibrary, ...]:
    return tuple(_loaded)


def crowded() -> bool:
    """Whether other programs keep the processors busy now, so that launches run on the calling thread."""
    return any(host.gil_released.sk_machine_crowded() for host in _loaded)


def time_launches(enabled: bool) -> None:
    """Whether launches are timed, in every loaded host library."""
    with _loaded_lock:
        _timing.enabled = enabled
        for host in _loaded:
            host.gil_released.sk_time_launches(enabled)
