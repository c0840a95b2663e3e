"""bench.call_rate: a call and a rate -> microseconds of each call, timed by a loop in C that sleeps until one is due.

A loop in Python would add the tail of the interpreter, whose code is as cold after a gap as that of a model. What is
called may be a function of Python, or a run of a package by the C API.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from .boundary import load_clock

Times = np.ndarray[tuple[int], np.dtype[np.float64]]
_LONGEST_NS = 10**18


clock = cache(load_clock)


@cache
def _python() -> tuple[Any, int, int]:
    """The loop for functions of Python, which keeps the interpreter's lock, and the two functions that it needs."""
    loop = ctypes.PyDLL(clock()._name).time_objects_at_rate
    loop.restype = c_int64
    call, forget = (ctypes.cast(ctypes.pythonapi[name], c_void_p) for name in ("PyObject_CallNoArgs", "Py_DecRef"))
    assert call.value is not None and forget.value is not None
    return loop, call.value, forget.value


def _timed(loop: Callable[..., int], arguments: Sequence[Any], calls: int, rate: float, seconds: float) -> Times:
    times = np.empty(calls)
    limit = _LONGEST_NS if math.isinf(seconds) else int(seconds * 1e9)
    period = c_int64(int(1e9 / rate))
    made = loop(*arguments, c_int64(calls), period, c_int64(limit), times.ctypes.data_as(ctypes.POINTER(c_double)))
    if made < 0:
        raise RuntimeError("a call that was timed has failed")
    return times[:made]


def python_calls_at_rate(call: Callable[[], object], calls: int, rate: float, seconds: float = math.inf) -> Times:
    """No call begins after so many seconds, except the first."""
    loop, no_args, forget = _python()
    return _timed(loop, (c_void_p(no_args), c_void_p(forget), ctypes.py_object(call)), calls, rate, seconds)


class RunFromC:
    """Runs of the entry `forward` of an opened package, on arrays that it keeps.

    Without a model, runs of a function that reads the array `inputs[0]`, or that does nothing.
    """

    def __init__(self, model: Any | None = None, inputs: Sequence[Any] = ()) -> None:
        self._model, self._inputs = model, list(inputs)
        self.results: list[Any] = []
        run, context = clock().run_reading if inputs else clock().run_nothing, None
        if model is not None:
            returned = model(*inputs)
            self.results = list(returned) if isinstance(returned, tuple) else [returned]
            calls = model.forward._calls
            run, context = calls.context.library.run_index, c_void_p(calls.context.address)
        outputs = _addresses(self.results) if model else (c_void_p * 1)(*(_end(value) for value in self._inputs))
        addresses = _addresses(self._inputs), outputs
        self._arguments = (ctypes.cast(run, c_void_p), context, c_int32(0), c_int32(0), *addresses)

    def back_to_back(self, calls: int) -> float:
        """Microseconds per call."""
        loop = clock().time_runs
        loop.restype = c_double
        return float(loop(*self._arguments, c_int64(calls)))

    def at_rate(self, calls: int, rate: float, seconds: float = math.inf) -> Times:
        loop = clock().time_runs_at_rate
        loop.restype = c_int64
        return _timed(loop, self._arguments, calls, rate, seconds)

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


def _addresses(values: Sequence[Any]) -> Any:
    return (c_void_p * len(values))(*(value.ctypes.data for value in values))


def _end(array: Any) -> int:
    return int(array.ctypes.data + array.nbytes)
