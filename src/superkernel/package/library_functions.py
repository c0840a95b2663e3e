"""package.library_functions: libsuperkernel -> its functions for Python, by ctypes; their failures are raised."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildError, LaunchError, SuperKernelError, UnsupportedError
from .checksums import FileSum, check_hash
from .file_names import packaged_library
from .one_folder import HeldFolder
from .return_structure import ReturnStructure, plain_structure

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
)  # of sk_dtype
WAIT_POLICIES = ("balanced", "spin", "sleep")  # of sk_wait
# of sk_status; every other failure is a LaunchError
_UNSUPPORTED = (7,)
_BAD_PACKAGE = (2, 3, 4, 5, 6, 8)


class _Options(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("threads", c_int32),
        ("wait", c_int32),
        ("cpus", POINTER(c_int32)),
        ("cpu_count", c_int32),
        ("copy_weights", c_int32),
    )


class _TensorInfo(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("bytes", c_size_t),
        ("bucket_axis", c_int32),
    )


class _ShapeInfo(Structure):
    _fields_ = (
        ("input_count", c_int32),
        ("output_count", c_int32),
        ("inputs", POINTER(_TensorInfo)),
        ("outputs", POINTER(_TensorInfo)),
        ("bucket_name", c_char_p),
        ("bucket_size", c_int64),
    )


class _EntryInfo(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("doc", c_char_p),
        ("shape_count", c_int32),
        ("shapes", POINTER(_ShapeInfo)),
    )


class _ModelInfo(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("exported_by", c_char_p),
        ("instruction_set", c_char_p),
        ("entry_count", c_int32),
        ("state_count", c_int32),
        ("threads", c_int32),
        ("weight_bytes", c_size_t),
    )


@dataclass(frozen=True)
class ArrayType:
    """An input, an output or a state of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bucket_axis: int | None = None  # the dimension that may be smaller in a call

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class EntryShape:
    """The sizes that the code of an entry was compiled for."""

    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    bucket: str | None = None  # the name of the dimension that may be smaller
    bucket_size: int = 0


@dataclass(frozen=True)
class EntryDescription:
    """A function of a model."""

    name: str
    doc: str
    shapes: tuple[EntryShape, ...]
    returns: ReturnStructure


@dataclass(frozen=True)
class ModelDescription:
    """What an opened package says of itself."""

    name: str
    exported_by: str  # the version of SuperKernel
    instruction_set: str
    threads: int
    weight_bytes: int
    entries: tuple[EntryDescription, ...]
    states: tuple[ArrayType, ...]


class LibraryFunctions:
    """The functions of libsuperkernel. A function that fails raises the library's sentence."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as reason:
            noexec = os.path.exists(path) and os.statvfs(path).f_flag & os.ST_NOEXEC
            hint = "; its file system is mounted noexec: copy the package to another one" if noexec else ""
            raise BuildError(f"{path} cannot be loaded: {reason}{hint}") from reason
        self.path = path
        self._last_error = self._function("sk_last_error", c_char_p)
        self.version = _text(self._function("sk_version", c_char_p)())
        self._open = self._function("sk_model_open_with", c_int32, c_char_p, POINTER(_Options), POINTER(c_void_p))
        self._open_held: Callable[..., Any] | None = None
        if hasattr(self._library, "sk_python_open"):  # as `python_call`
            self._open_held = self._function(
                "sk_python_open", c_int32, c_char_p, c_int32, POINTER(_Options), POINTER(c_void_p)
            )
        self._close = self._function("sk_model_close", c_int32, c_void_p)
        self._describe = self._function("sk_model_describe", c_int32, c_void_p, POINTER(_ModelInfo))
        self._entry = self._function("sk_model_entry", c_int32, c_void_p, c_int32, POINTER(POINTER(_EntryInfo)))
        self._state = self._function("sk_model_state", c_int32, c_void_p, c_int32, POINTER(POINTER(_TensorInfo)))
        self._create = self._function("sk_context_create", c_int32, c_void_p, c_void_p, POINTER(c_void_p))
        self._destroy = self._function("sk_context_destroy", c_int32, c_void_p)
        self._reset = self._function("sk_context_reset", c_int32, c_void_p)
        self._copy = self._function("sk_context_copy", c_int32, c_void_p, c_void_p)
        self._state_get = self._function("sk_state_get", c_int32, c_void_p, c_char_p, c_void_p, c_size_t)
        self._state_set = self._function("sk_state_set", c_int32, c_void_p, c_char_p, c_void_p, c_size_t)
        # without argument types: callers pass ctypes objects that they prepare once
        self.run_index = self._function("sk_run_index", c_int32)
        self.run_bucket = self._function("sk_run_bucket", c_int32)
        # None: the library is that of a package which another version has written
        self.python_call = _address_of(self._library, "sk_python_call_3")

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        try:
            function = self._library[name]
        except AttributeError:
            raise BuildError(
                f"{self.path} lacks the function {name}: it is no libsuperkernel of this version"
            ) from None
        function.restype = result
        if arguments:
            function.argtypes = arguments
        return function

    def failure(self, status: int, where: str = "") -> SuperKernelError:
        """The error of a function that has just failed on this thread."""
        kind = UnsupportedError if status in _UNSUPPORTED else BuildError if status in _BAD_PACKAGE else LaunchError
        return kind(where + _text(self._last_error()))

    def _check(self, status: int) -> None:
        if status:
            raise self.failure(status)

    def open(
        self, path: Path, threads: int, wait: str, cpus: Sequence[int], model: c_void_p, folder: int | None = None
    ) -> int:
        """The address of the opened model; it is in `model` before a signal handler can raise an exception.

        `folder`: a descriptor of the folder that the path led to.
        """
        numbers = (c_int32 * len(cpus))(*cpus)
        options = _Options(ctypes.sizeof(_Options), threads, WAIT_POLICIES.index(wait), numbers, len(cpus), 0)
        name = os.fsencode(path)
        if folder is None or self._open_held is None:
            self._check(self._open(name, ctypes.byref(options), ctypes.byref(model)))
        else:
            self._check(self._open_held(name, folder, ctypes.byref(options), ctypes.byref(model)))
        assert model.value is not None
        return model.value

    def close(self, model: int) -> None:
        self._check(self._close(model))

    def describe(self, model: int) -> ModelDescription:
        info = _ModelInfo()
        self._check(self._describe(model, ctypes.byref(info)))
        entries, states = [], []
        for index in range(info.entry_count):
            entry = POINTER(_EntryInfo)()
            self._check(self._entry(model, index, ctypes.byref(entry)))
            entries.append(_entry_description(entry.contents))
        for index in range(info.state_count):
            state = POINTER(_TensorInfo)()
            self._check(self._state(model, index, ctypes.byref(state)))
            states.append(_array_type(state.contents))
        return ModelDescription(
            _text(info.name),
            _text(info.exported_by),
            _text(info.instruction_set),
            info.threads,
            info.weight_bytes,
            tuple(entries),
            tuple(states),
        )

    def create_context(self, model: int, context: c_void_p) -> int:
        """The address of the context, which is in `context` as well."""
        self._check(self._create(model, None, ctypes.byref(context)))
        assert context.value is not None
        return context.value

    def destroy_context(self, context: int) -> None:
        self._check(self._destroy(context))

    def reset(self, context: int) -> None:
        self._check(self._reset(context))

    def copy_states(self, to: int, source: int) -> None:
        self._check(self._copy(to, source))

    def read_state(self, context: int, name: str, address: int, size: int) -> None:
        self._check(self._state_get(context, name.encode(), address, size))

    def write_state(self, context: int, name: str, address: int, size: int) -> None:
        self._check(self._state_set(context, name.encode(), address, size))


def _address_of(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, c_void_p).value


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _array_type(info: Any) -> ArrayType:
    axis = None if info.bucket_axis < 0 else info.bucket_axis
    return ArrayType(_text(info.name), DTYPES[info.dtype], tuple(info.shape[: info.rank]), axis)


def _entry_description(info: Any) -> EntryDescription:
    shapes = tuple(
        EntryShape(
            tuple(map(_array_type, shape.inputs[: shape.input_count])),
            tuple(map(_array_type, shape.outputs[: shape.output_count])),
            None if shape.bucket_name is None else _text(shape.bucket_name),
            shape.bucket_size,
        )
        for shape in info.shapes[: info.shape_count]
    )
    return EntryDescription(_text(info.name), _text(info.doc), shapes, plain_structure(len(shapes[0].outputs)))


_loaded: list[
    LibraryFunctions
] = []  # at most one: objects of packages find the functions that they call in the first one
_loading = threading.Lock()


def _after_fork() -> None:
    if _loading.locked():  # by a thread that is in the parent
        _loading.release()


os.register_at_fork(after_in_child=_after_fork)


def loaded_library(package: HeldFolder, files: Mapping[str, FileSum]) -> LibraryFunctions:
    """The library of this process: the package's copy, whose hash is checked before, unless one is loaded already."""
    with _loading:
        if not _loaded:
            _loaded.append(_load(package, files))
        return _loaded[0]


def _load(package: HeldFolder, files: Mapping[str, FileSum]) -> LibraryFunctions:
    packaged = packaged_library(platform.machine())
    if packaged in files:
        return LibraryFunctions(check_hash(package, files[packaged]))
    from .library import library_path

    return LibraryFunctions(library_path())
