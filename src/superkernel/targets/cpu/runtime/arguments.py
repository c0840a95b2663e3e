"""targets.cpu.runtime.arguments: buffers by name -> the arguments of a launch; what is unusual goes to `bind`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ....errors import LaunchError
from ....model.graph import Buffer, Graph
from ....model.params import DTYPES, scalar_bits
from ...buffers import allocate, bind, can_allocate, torch_or_none
from .host_library import Wanted

_ANY = b"\0"
_ARRAYS = {np.ndarray}
_TYPEKINDS = {"float": b"f", "int": b"i", "uint": b"u", "bool": b"b", "complex": b"c"}


class Arguments(NamedTuple):
    """Per name either what numpy shows of an array, read by the call that launches, or a value and a size."""

    capsules: list[Any]  # None: see values and sizes
    values: Any  # array of uint64, per name and event; None where capsules say all
    sizes: Any  # array of int64
    outputs: dict[str, Any]
    named: Mapping[str, Any]  # every buffer; holding it keeps the memory alive


class FastBinder:
    """Binds arrays and tensors that fit at once; everything else is left to `bind`, which raises or accepts it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._where = f"super_kernel_scope {graph.name!r}: "
        self._buffers = tuple(graph.buffers.values())
        self._names = tuple(graph.buffers)
        self.count = len(self._buffers)
        self._pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = (
            itemgetter(*self._names) if self.count > 1 else lambda passed: tuple(passed[name] for name in self._names)
        )
        self._values_type = ctypes.c_uint64 * (self.count + len(graph.events))
        self._sizes_type = ctypes.c_int64 * (self.count + len(graph.events))
        self._wanted = (Wanted * self.count)(*(_wanted(buffer) for buffer in self._buffers))
        self.wanted = ctypes.c_void_p(ctypes.addressof(self._wanted))
        self._elements = tuple(fact.elements for fact in self._wanted)
        self._allocated = tuple(can_allocate(buffer) for buffer in self._buffers)
        self._torch_dtypes: dict[str, Any] = {}

    def arrays(self, passed: Mapping[str, Any]) -> list[Any] | None:
        """The shortest way: all names were passed, all are plain arrays. None: it is not so."""
        if type(passed) is not dict or len(passed) != self.count:
            return None
        try:
            values = self._pick(passed)
        except KeyError:
            return None
        return [value.__array_struct__ for value in values] if set(map(type, values)) == _ARRAYS else None

    def bind_fast(self, passed: Mapping[str, Any], events: Sequence[int]) -> Arguments | None:
        """None: something is unusual or wrong."""
        outputs: dict[str, Any] = {}
        named = self._gather(passed, outputs)
        if named is None:
            return None
        array_type, capsules = np.ndarray, list[Any]()
        others: list[int] = []
        for place, name in enumerate(self._names):
            value = named.get(name)
            if type(value) is array_type:
                capsules.append(value.__array_struct__)
            else:
                capsules.append(None)
                others.append(place)
        if not others and not events:
            return Arguments(capsules, None, None, outputs, named)
        arguments = Arguments(capsules, *self.argument_arrays(), outputs, named)
        if not all(self._fill(place, named.get(self._names[place]), arguments) for place in others):
            return None
        return self._with_events(arguments, events)

    def bind_carefully(self, passed: Mapping[str, Any], events: Sequence[int]) -> Arguments:
        """Raises a LaunchError, or accepts what bind_fast leaves out."""
        bound = bind(self._graph, passed)
        named = dict(zip(self._names, bound.keep, strict=True))
        arguments = Arguments([None] * self.count, *self.argument_arrays(), bound.outputs, named)
        for place, (value, size) in enumerate(zip(bound.values, bound.sizes, strict=True)):
            arguments.values[place], arguments.sizes[place] = value, size
        return self._with_events(arguments, events)

    def filled(self, arguments: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
        """Values and sizes that need no check."""
        return self._values_type(*(value for value, _ in arguments)), self._sizes_type(*(size for _, size in arguments))

    def argument_arrays(self) -> tuple[Any, Any]:
        """Values and sizes to be filled in."""
        return self._values_type(), self._sizes_type()

    def _with_events(self, arguments: Arguments, events: Sequence[int]) -> Arguments:
        for i, address in enumerate(events):
            arguments.values[self.count + i] = address
        return arguments

    def _gather(self, passed: Mapping[str, Any], outputs: dict[str, Any]) -> Mapping[str, Any] | None:
        """All names with what was passed or allocated; None: something is wrong with the names."""
        if type(passed) is not dict:
            return None
        if len(passed) == self.count:
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
                outputs[buffer.name] = value
        return named if len(named) == self.count else None

    def _fill(self, place: int, value: Any, arguments: Arguments) -> bool:
        """A tensor or a scalar; False: not a plain one, or it does not fit."""
        buffer, torch = self._buffers[place], torch_or_none()
        if buffer.scalar and type(value) in (int, float):
            where = f"{self._where}scalar {buffer.name!r}"
            arguments.values[place] = scalar_bits(value, buffer.dtype, where, LaunchError)
            return True
        if torch is None or buffer.scalar or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if value.layout is not torch.strided or not value.is_cpu or not value.is_contiguous():
            return False
        if buffer.written and value.requires_grad:  # refused or not: the careful way knows
            return False
        if value.is_conj() or value.is_neg() or 0 <= self._elements[place] != value.numel():
            return False
        if buffer.dtype is not None and value.dtype is not self._torch_dtype(buffer.dtype):
            return False
        try:
            address = value.data_ptr()
        except RuntimeError:  # a stand-in without memory
            return False
        size = value.nbytes
        arguments.values[place], arguments.sizes[place] = address, size
        return size >= buffer.least_bytes and (bool(address) or not size)

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
    return Wanted(elements, buffer.least_bytes, itemsize, typekind, buffer.written, not buffer.scalar)
