"""frontend.export.opaque_state: an object whose state is in no attribute -> that state, to compare and to put back.

Such are iterators, generators of random numbers, files, arrays of bytes.
"""

from __future__ import annotations

import gc
import io
import operator
import pickle
import random
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any

import numpy as np

_DEEPEST = 5  # iterators of iterators


@dataclass(frozen=True)
class OpaqueState:
    """What tells the state of an object, and what gives it back, where that is possible."""

    kind: str
    told: Any
    is_drawn: bool  # what the object gives next cannot be known without changing it
    kept: Any = field(default=None, compare=False)


def opaque_state(value: Any) -> OpaqueState | None:
    """None: the state of the object is in its attributes, or it has none."""
    kind = type(value).__name__
    if isinstance(value, random.Random | np.random.RandomState):
        kept = value.getstate() if isinstance(value, random.Random) else value.get_state(legacy=False)
        return OpaqueState(kind, pickle.dumps(kept), True, kept)
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        kept = _bit_generator(value).state
        return OpaqueState(kind, pickle.dumps(kept), True, kept)
    if isinstance(value, bytearray | array | memoryview):
        return OpaqueState(kind, bytes(value), False)
    if isinstance(value, io.IOBase):
        return OpaqueState(kind, *_of_file(value))
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return OpaqueState(kind, _progress(value, 0), True)
    return None


def put_opaque_state(value: Any, state: OpaqueState) -> None:
    """An iterator cannot go back: it stays where it is."""
    if isinstance(value, random.Random):
        value.setstate(state.kept)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state.kept)
    elif isinstance(value, np.random.Generator | np.random.BitGenerator):
        _bit_generator(value).state = state.kept
    elif isinstance(value, bytearray):
        value[:] = state.told
    elif isinstance(value, array):
        del value[:]
        value.frombytes(state.told)
    elif isinstance(value, memoryview) and not value.readonly:
        value.cast("B")[:] = state.told
    elif isinstance(value, io.IOBase) and state.told is not None:
        value.seek(state.told)


def _bit_generator(value: np.random.Generator | np.random.BitGenerator) -> Any:
    return value.bit_generator if isinstance(value, np.random.Generator) else value


def _of_file(file: io.IOBase) -> tuple[int | None, bool]:
    """The position of a file that is read. What is only written, such as a log, changes no result and stays written."""
    try:
        return (file.tell(), True) if not file.closed and file.readable() and file.seekable() else (None, False)
    except (OSError, ValueError):
        return None, False


def _progress(iterator: Any, depth: int) -> Any:
    """What changes when an iterator is advanced: positions, and the iterators that it takes its values from."""
    if depth > _DEEPEST:
        return None
    if isinstance(iterator, GeneratorType):
        frame: FrameType | None = iterator.gi_frame
        if frame is None:
            return "ended"
        plain = [(name, value) for name, value in frame.f_locals.items() if isinstance(value, int | float | str)]
        return frame.f_lasti, plain, _inner(gc.get_referents(iterator), depth), _inner(gc.get_referents(frame), depth)
    left = operator.length_hint(iterator, -1) if hasattr(iterator, "__length_hint__") else -1
    return repr(iterator) if "object at" not in repr(iterator) else left, _reduced(iterator, depth)


def _reduced(iterator: Any, depth: int) -> Any:
    """As it would be pickled; in newer versions of Python not all are."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = iterator.__reduce__()
    except (TypeError, AttributeError, RuntimeError):  # it cannot be pickled, or the dict that it is of has grown
        return _inner(gc.get_referents(iterator), depth)
    return _inner(parts, depth)


def _inner(values: Any, depth: int) -> Any:
    found = []
    for value in values if isinstance(values, tuple | list) else ():
        if isinstance(value, int | float | str | None):
            found.append(value)
        elif isinstance(value, tuple):
            found.append(_inner(value, depth + 1) if depth < _DEEPEST else None)
        elif isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
            found.append(_progress(value, depth + 1))
    return found
