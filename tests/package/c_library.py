"""libsuperkernel by ctypes, as thin as possible: a status that is not SK_OK becomes a CallError."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from superkernel.package.library import library_path

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool")


class Options(Structure):
    _fields_ = (
        ("size", c_uint32), ("threads", c_int32), ("wait", c_int32), ("cpus", POINTER(c_int32)), ("cpu_count", c_int32),
        ("copy_weights", c_int32),
    )  # fmt: skip


class TensorView(Structure):
    _fields_ = (("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("shape", POINTER(c_int64)))


class CallError(Exception):
    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(f"{status}: {sentence}")
        self.status, self.sentence = status, sentence


@cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library_path()))
    for name in ("sk_last_error", "sk_status_name", "sk_version"):
        getattr(loaded, name).restype = c_char_p
    return loaded


def call(function: str, *arguments: Any) -> None:
    status = getattr(library(), function)(*arguments)
    if status:
        raise CallError(library().sk_status_name(status).decode(), library().sk_last_error().decode())


def view(array: Any, dtype: str | None = None) -> TensorView:
    sizes = (c_int64 * max(1, array.ndim))(*array.shape)
    return TensorView(array.ctypes.data, DTYPES.index(dtype or array.dtype.name), array.ndim, sizes)


class OpenedModel:
    """Closes itself and its contexts. It is of the folder of a descriptor, if there is one, and else of the path."""

    def __init__(
        self,
        folder: Path,
        threads: int = 0,
        wait: int = 0,
        cpus: Sequence[int] = (),
        descriptor: int | None = None,
        **more: int,
    ) -> None:
        numbers = (c_int32 * len(cpus))(*cpus)
        self.options = Options(ctypes.sizeof(Options), threads, wait, numbers, len(cpus), **more)
        self.handle = c_void_p()
        self.contexts: list[c_void_p] = []
        if descriptor is None:
            call("sk_model_open_with", str(folder).encode(), byref(self.options), byref(self.handle))
        else:
            call("sk_python_open", str(folder).encode(), descriptor, byref(self.options), byref(self.handle))

    def context(self, threads: int = 0) -> c_void_p:
        made, options = c_void_p(), Options(ctypes.sizeof(Options), threads)
        call("sk_context_create", self.handle, byref(options) if threads else None, byref(made))
        self.contexts.append(made)
        return made

    def close(self) -> None:
        for context in self.contexts:
            call("sk_context_destroy", context)
        call("sk_model_close", self.handle)

    def __enter__(self) -> OpenedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(context: c_void_p, entry: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    views = [(TensorView * max(1, len(arrays)))(*map(view, arrays)) for arrays in (inputs, outputs)]
    call("sk_run", context, entry.encode(), *views)


def run_index(context: c_void_p, entry: int, inputs: Sequence[Any], outputs: Sequence[Any], size: int = 0) -> None:
    addresses = [(c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays)) for arrays in (inputs, outputs)]
    if size:
        call("sk_run_bucket", context, entry, -1, c_int64(size), *addresses)
    else:
        call("sk_run_index", context, entry, -1, *addresses)


def get_state(context: c_void_p, name: str, like: Any) -> Any:
    found = np.zeros_like(like)
    call("sk_state_get", context, name.encode(), c_void_p(found.ctypes.data), c_size_t(found.nbytes))
    return found
