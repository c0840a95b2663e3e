"""package.object_layouts: the layouts of objects of Python and numpy that calls in C rely on; whether they hold here.

A compiled extension module takes the same for granted: the headers of objects and of arrays are part of the binary
interfaces of CPython and numpy. But libsuperkernel is compiled without their headers, for all their versions, so every
premise is looked at when this module is imported. Where one does not hold, calls are made by ctypes, which takes a
microsecond or two longer.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_ssize_t, c_uint, c_void_p, py_object
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_NUMPY_INTERFACE = 2  # the major version of numpy's binary interface
NEW_ARRAY = 94  # PyArray_NewFromDescr in numpy's table for extensions, of that version
BYTES_OFFSET = 32  # where the contents of a bytes object begin
TUPLE_OFFSET = tuple.__basicsize__  # where the items of a tuple begin
_FLAGS = {"c_contiguous": 0x1, "aligned": 0x100, "writeable": 0x400}


class ArrayObject(Structure):
    """The public part of numpy's arrays, PyArrayObject_fields."""

    _fields_ = (
        ("references", c_ssize_t),
        ("type", c_void_p),
        ("data", c_void_p),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("base", c_void_p),
        ("dtype", c_void_p),
        ("flags", c_int32),
    )


def _is_cpython() -> bool:
    """One lock for the interpreter: other builds have a larger header, and count references in another way."""
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def _has_object_header() -> bool:
    """The number of references, then the type."""
    samples: tuple[Any, ...] = (object(), b"bytes", True, (1, 2), np.zeros(1), len)
    return object.__basicsize__ == 2 * ctypes.sizeof(c_void_p) and all(
        c_void_p.from_address(id(value) + ctypes.sizeof(c_ssize_t)).value == id(type(value)) for value in samples
    )


def _has_bytes_layout() -> bool:
    contents = ctypes.pythonapi["PyBytes_AsString"]  # not an attribute: others may have set its types
    contents.restype, contents.argtypes = c_void_p, (py_object,)
    return all(contents(sample) == id(sample) + BYTES_OFFSET for sample in (b"a", bytes(range(256)) * 3))


def _has_tuple_layout() -> bool:
    """The number of items behind the header, then the items."""
    samples: tuple[tuple[object, ...], ...] = ((object(),), ("out",), (1, b"two", np.zeros(3)), ())
    return all(
        c_ssize_t.from_address(id(sample) + object.__basicsize__).value == len(sample)
        and [*(c_void_p * len(sample)).from_address(id(sample) + TUPLE_OFFSET)] == [id(item) for item in sample]
        for sample in samples
    )


def numpy_function(index: int) -> int:
    """The address of a function in numpy's table for extensions."""
    pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
    pointer.restype, pointer.argtypes = c_void_p, (py_object, c_char_p)
    table: int = pointer(sys.modules["numpy._core._multiarray_umath"]._ARRAY_API, None)
    return c_void_p.from_address(table + index * ctypes.sizeof(c_void_p)).value or 0


def _has_numpy_interface() -> bool:
    """The first function of the table returns the version of the binary interface."""
    version = ctypes.CFUNCTYPE(c_uint)(numpy_function(0))()
    return bool(version >> 24 == _NUMPY_INTERFACE)


def _has_array_layout() -> bool:
    fixed = np.zeros((2, 3), np.int64)
    fixed.flags.writeable = False
    unaligned = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32)
    samples: tuple[Array, ...] = (
        np.zeros((3, 1, 2), np.float32), np.zeros((4, 6))[:, ::2], fixed, unaligned, np.empty(0, bool), np.array(1.0)
    )  # fmt: skip
    return all(map(_shows_array, samples))


def _shows_array(array: Array) -> bool:
    seen = ArrayObject.from_address(id(array))
    if (seen.type, seen.rank, seen.dtype) != (id(type(array)), array.ndim, id(array.dtype)):
        return False
    if seen.data != array.ctypes.data or (array.base is not None and seen.base != id(array.base)):
        return False
    flags = all(bool(seen.flags & bit) == getattr(array.flags, name) for name, bit in _FLAGS.items())
    sizes = tuple(seen.shape[: array.ndim]), tuple(seen.strides[: array.ndim])
    return flags and sizes == (array.shape, array.strides)


# in this order: a later one is looked at only where those before hold
_PREMISES: dict[str, Callable[[], bool]] = {
    "the interpreter is CPython with a global lock": _is_cpython,
    "objects begin with the number of references and the type": _has_object_header,
    f"the contents of bytes begin {BYTES_OFFSET} bytes behind their header's begin": _has_bytes_layout,
    f"the items of tuples begin {TUPLE_OFFSET} bytes behind their header's begin": _has_tuple_layout,
    f"the binary interface of numpy has version {_NUMPY_INTERFACE}": _has_numpy_interface,
    "arrays of numpy have the fields of that version": _has_array_layout,
}


def unmet_premise() -> str | None:
    """The first premise that does not hold here; None: all do."""
    for premise, holds in _PREMISES.items():
        try:
            if not holds():
                return premise
        except (AttributeError, KeyError, ValueError, TypeError):  # something that it looks at is not there
            return premise
    return None


def _held_offset() -> int | None:
    """Where a lock of `threading` has a byte that is 0 while it is free, and another number while it is held.

    None: no byte of them, or several, do so. Locks of CPython 3.11 to 3.13 have one.
    """
    locks = [threading.Lock() for _ in range(4)]

    def contents() -> list[bytes]:
        return [ctypes.string_at(id(lock), threading.Lock().__sizeof__()) for lock in locks]

    free = contents()
    for lock in locks:
        lock.acquire()
    held = contents()
    for lock in locks:
        lock.release()
    found = [
        offset
        for offset, _ in enumerate(free[0])
        if all(state[offset] == 0 for state in free + contents()) and all(state[offset] != 0 for state in held)
    ]
    return found[0] if len(found) == 1 else None


UNMET_PREMISE = unmet_premise()
HELD_OFFSET = None if UNMET_PREMISE else _held_offset()
