"""targets.cpu.bind: buffers by name -> the argument arrays of a launch, fast when all is right, in words when not."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...buffers import allocate, bind, can_allocate, torch_or_none
from ...errors import LaunchError
from ...graph import Buffer, Graph
from ...subkernel import DTYPES, scalar_bits
from .hostlib import Host, Wanted

_ANY = b"\0"
_TYPEKINDS = {"float": b"f", "int": b"i", "uint": b"u", "bool": b"b", "complex": b"c"}


@dataclass(frozen=True)
class Arguments:
    values: Any  # array of uint64, per name and event
    sizes: Any  # array of int64
    made: dict[str, Any]
    named: Mapping[str, Any]  # every buffer; holding it keeps the memory alive


class FastBinder:
    """Knows what each name must be; whatever does not fit at once is left to `bind`, which finds the words."""

    def __init__(self, graph: Graph, host: Host) -> None:
        self._graph = graph
        self._where = f"super_kernel_scope {graph.name!r}: "
        self._buffers = tuple(graph.buffers.values())
        self._names = tuple(graph.buffers)
        count = len(self._buffers) + len(graph.events)
        self._values_type = ctypes.c_uint64 * count
        self._sizes_type = ctypes.c_int64 * count
        self._places_type = ctypes.c_int32 * len(self._buffers)
        self._wanted = (Wanted * len(self._buffers))(*(_wanted(b) for b in self._buffers))
        self._allocated = tuple(can_allocate(b) for b in self._buffers)
        self._first_event = len(self._buffers)
        self._arrays, self._overlap = host.held.sk_bind_arrays, host.held.sk_bind_overlap
        self._torch_dtypes: dict[str, Any] = {}

    def bind(self, passed: Mapping[str, Any], events: Sequence[int]) -> Arguments:
        values, sizes = self._values_type(), self._sizes_type()
        made: dict[str, Any] = {}
        named = self._gather(passed, made)
        if named is None or not self._fill(named, values, sizes):
            bound = bind(self._graph, passed)  # raises, or accepts what the fast way was too plain for
            count = len(self._names)
            values[:count], sizes[:count] = bound.values, bound.sizes
            made, named = bound.made, dict(zip(self._names, bound.keep, strict=True))
        for i, address in enumerate(events):
            values[self._first_event + i] = address
        return Arguments(values, sizes, made, named)

    def _gather(self, passed: Mapping[str, Any], made: dict[str, Any]) -> Mapping[str, Any] | None:
        """All names with what was passed or allocated; None: something is wrong with the names."""
        if type(passed) is not dict:
            return None
        if len(passed) == len(self._names):
            return passed
        named = dict(passed)
        torch = torch_or_none()
        tensors = torch is not None and any(isinstance(value, torch.Tensor) for value in passed.values())
        for buffer, allocated in zip(self._buffers, self._allocated, strict=True):
            if buffer.name in passed:
                continue
            if not allocated:
                return None
            named[buffer.name] = value = allocate(buffer, tensors)
            if buffer.produced:
                made[buffer.name] = value
        return named if len(named) == len(self._names) else None

    def _fill(self, named: Mapping[str, Any], values: Any, sizes: Any) -> bool:
        capsules, places = [], []
        array_type = np.ndarray
        for place, name in enumerate(self._names):
            value = named.get(name)
            if type(value) is array_type:
                capsules.append(value.__array_struct__)
                places.append(place)
            elif not self._fill_other(place, value, values, sizes):
                return False
        if capsules:
            listed = self._places_type(*places)
            if self._arrays(capsules, listed, len(places), self._wanted, values, sizes) >= 0:
                return False
        return not self._overlap(len(self._names), self._wanted, values, sizes)

    def _fill_other(self, place: int, value: Any, values: Any, sizes: Any) -> bool:
        buffer, torch = self._buffers[place], torch_or_none()
        if buffer.scalar and type(value) in (int, float):
            values[place] = scalar_bits(value, buffer.dtype, self._where + f"scalar {buffer.name!r}", LaunchError)
            return True
        if torch is None or buffer.scalar or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if value.layout is not torch.strided:
            return False
        fits = (buffer.dtype is None or value.dtype is self._torch_dtype(buffer.dtype)) and value.is_cpu
        if not fits or not value.is_contiguous() or value.is_conj() or value.is_neg():
            return False
        wanted = self._wanted[place].elements
        if 0 <= wanted != value.numel():
            return False
        values[place], sizes[place] = value.data_ptr(), value.nbytes
        return True

    def _torch_dtype(self, name: str) -> Any:
        if name not in self._torch_dtypes:
            self._torch_dtypes[name] = getattr(torch_or_none(), name, None)
        return self._torch_dtypes[name]


def _wanted(buffer: Buffer) -> Wanted:
    """What the fast way can check; stand-ins for dtypes that numpy lacks are left to the careful way."""
    elements = -1 if buffer.shape is None else math.prod(buffer.shape)
    itemsize, typekind = 0, _ANY
    if buffer.dtype is not None and not buffer.scalar:
        itemsize = DTYPES[buffer.dtype][0]
        typekind = _TYPEKINDS.get(buffer.dtype.rstrip("0123456789"), b"?")
    return Wanted(elements, itemsize, typekind, buffer.written, not buffer.scalar)
