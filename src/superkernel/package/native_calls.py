"""package.native_calls: an entry and sizes -> a builtin function that checks numpy arrays and runs the entry, all in C.

It is `sk_python_call_3` of libsuperkernel, which takes what it needs of the interpreter from here. Arguments that do
not fit at first sight go to a function written in Python. There is no such function where a premise of `object_layouts`
does not hold, or where another version has written the library of the package.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int, c_int32, c_int64, c_void_p, py_object
from typing import Any

import numpy as np

from .array_values import numpy_dtype
from .library_functions import ArrayType, EntryShape
from .object_layouts import HELD_OFFSET, NEW_ARRAY, TUPLE_OFFSET, UNMET_PREMISE, numpy_function
from .opened_package import ContextHandle
from .return_structure import ContainerKind, ReturnedContainer, ReturnedOutput, ReturnStructure

Call = Callable[..., Any]
_MOST_ARRAYS = 32  # inputs, and results, of python_call.cpp
_FASTCALL_WITH_NAMES = 0x0080 | 0x0002  # METH_FASTCALL | METH_KEYWORDS
_STATUSES = tuple(range(64))  # more than sk_status has


class _Expected(Structure):
    _fields_ = (("dtype", c_void_p), ("shape", POINTER(c_int64)), ("rank", c_int64))


class _Result(Structure):
    _fields_ = (("array", _Expected), ("allocate", c_void_p), ("first", c_void_p), ("second", c_void_p))


_POINTERS = (
    "vector_call", "release_interpreter", "take_interpreter", "refer", "forget", "new_tuple", "set_item", "new_array",
    "array_type", "tuple_type", "out", "acquire", "release", "yes", "no", "otherwise", "refuse", "put", "statuses",
    "context", "inputs", "results", "held", "last_run_ns",
)  # fmt: skip
_NUMBERS = ("input_count", "result_count", "status_count", "bucket_size", "tuple_items")


class _Call(Structure):
    _fields_ = (
        *((name, c_void_p) for name in _POINTERS),
        *((name, c_int64) for name in _NUMBERS),
        ("entry", c_int32),
        ("shape", c_int32),
    )


class _MethodDefinition(Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", ctypes.c_char_p))


def native_call(
    context: ContextHandle,
    entry: int,
    shape_index: int,
    shape: EntryShape,
    bucket_size: int | None,
    returns: ReturnStructure,
    allocations: Sequence[tuple[Call, Any, Any] | None],  # of each result: a function and its arguments; None: numpy's
    put: Call,  # takes the results and returns what a call returns
    otherwise: Call,
) -> Call | None:
    """None: the entry cannot be called this way."""
    function = context.library.python_call
    if function is None or UNMET_PREMISE is not None or max(len(shape.inputs), len(shape.outputs)) > _MOST_ARRAYS:
        return None
    kept: list[Any] = [context, otherwise, put, context.lock.acquire, context.lock.release]

    def refuse(status: int) -> None:
        raise context.failure(status)

    def address(value: Any) -> int:
        """Of an object that lives as long as the function."""
        kept.append(value)
        return id(value)

    def array_of(kind: Any, values: Sequence[Any]) -> int:
        kept.append((kind * max(1, len(values)))(*values))
        return ctypes.addressof(kept[-1])

    python = ctypes.pythonapi
    functions = {
        name: ctypes.cast(getattr(python, symbol), c_void_p).value
        for name, symbol in {
            "vector_call": "PyObject_Vectorcall",
            "release_interpreter": "PyEval_SaveThread",
            "take_interpreter": "PyEval_RestoreThread",
            "refer": "Py_IncRef",
            "forget": "Py_DecRef",
            "new_tuple": "PyTuple_New",
            "set_item": "PyTuple_SetItem",
        }.items()
    }
    call = _Call(
        **functions,
        new_array=numpy_function(NEW_ARRAY),
        array_type=address(np.ndarray),
        tuple_type=id(tuple),
        out=address(sys.intern("out")),
        acquire=address(kept[3]),
        release=address(kept[4]),
        yes=id(True),
        no=id(False),
        otherwise=id(otherwise),
        refuse=address(refuse),
        put=None if _is_plain(returns) else id(put),
        statuses=array_of(c_void_p, [address(status) for status in _STATUSES]),
        context=context.address,
        inputs=array_of(_Expected, [_expected(kind, kept) for kind in shape.inputs]),
        results=array_of(
            _Result,
            [
                _Result(_expected(kind, kept), *map(address, allocation or ()))
                for kind, allocation in zip(shape.outputs, allocations, strict=True)
            ],
        ),
        held=None if HELD_OFFSET is None else id(context.lock) + HELD_OFFSET,
        last_run_ns=array_of(c_int64, [0]),
        input_count=len(shape.inputs),
        result_count=len(shape.outputs),
        status_count=len(_STATUSES),
        bucket_size=bucket_size or 0,
        tuple_items=TUPLE_OFFSET,
        entry=entry,
        shape=shape_index,
    )
    definition = _MethodDefinition(b"call", function, _FASTCALL_WITH_NAMES, None)
    kept.append(definition)
    new_function = python.PyCFunction_NewEx
    new_function.restype, new_function.argtypes = py_object, (c_void_p, py_object, py_object)
    # The third argument is the function's module, any object, which the function keeps alive.
    made: Call = new_function(ctypes.addressof(definition), bytes(call), tuple(kept))
    return made


def _expected(kind: ArrayType, kept: list[Any]) -> _Expected:
    sizes = (c_int64 * max(1, len(kind.shape)))(*kind.shape)
    dtype = numpy_dtype(kind.dtype)
    kept += [sizes, dtype]
    return _Expected(id(dtype), ctypes.cast(sizes, POINTER(c_int64)), len(kind.shape))


def _is_plain(returns: ReturnStructure) -> bool:
    """The only output, or a tuple of all in their order."""
    if isinstance(returns, ReturnedOutput):
        return True
    if not isinstance(returns, ReturnedContainer) or returns.kind is not ContainerKind.TUPLE or len(returns.items) < 2:
        return False
    return all(isinstance(item, ReturnedOutput) and item.index == index for index, item in enumerate(returns.items))
