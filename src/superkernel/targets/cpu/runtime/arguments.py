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
from ....plan.memory import MemoryPlan
from ...buffers import IN_ARENA, allocate, bind, torch_or_none
from ...launch_outputs import LaunchOutputs, no_outputs
from ..windows import check_windows, has_windows
from .host_library import Wanted

_ANY = b"\0"
_ARRAYS = {np.ndarray}
_TYPEKINDS = {"float": b"f", "int": b"i", "uint": b"u", "bool": b"b", "complex": b"c"}


class Arguments(NamedTuple):
    """Per name either what numpy shows of an array, read by the call that launches, or a value and a size."""

    capsules: list[Any]  # None: see values and sizes
    values: Any  # array of uint64, per name and event; None where capsules say all
    sizes: Any  # array of int64; IN_ARENA: the run time places the buffer
    outputs: LaunchOutputs
    named: Mapping[str, Any]  # every buffer but those in the arena; holding it keeps the memory alive


class FastBinder:
    """Binds arrays and tensors that fit at once; everything else is left to `bind`, which raises or accepts it."""

    def __init__(self, graph: Graph, memory: MemoryPlan) -> None:
        self._graph, self._arena = graph, memory.offsets
        self._where = f"super_kernel_scope {graph.name!r}: "
        self._buffers = tuple(graph.buffers.values())
        self._names = tuple(graph.buffers)
        self.count = len(self._buffers)
        self._pick = _getter(self._names)
        self._passed_places = [place for place, name in enumerate(self._names) if name not in self._arena]
        self._pick_passed = _getter([self._names[place] for place in self._passed_places])
        self._no_capsules: list[Any] = [None] * self.count
        self._values_type = ctypes.c_uint64 * (self.count + len(graph.events))
        self._sizes_type = ctypes.c_int64 * (self.count + len(graph.events))
        in_arena = (IN_ARENA if name in self._arena else 0 for name in self._names)
        self._arena_values, self._arena_sizes = self._values_type(), self._sizes_type(*in_arena)  # are never written
        self._wanted = (Wanted * self.count)(*(_wanted(buffer) for buffer in self._buffers))
        self.wanted = ctypes.c_void_p(ctypes.addressof(self._wanted))
        self._elements = tuple(fact.elements for fact in self._wanted)
        self._torch_dtypes: dict[str, Any] = {}
        self._has_windows = has_windows(graph)  # their words are checked

    def arrays(self, passed: Mapping[str, Any]) -> tuple[list[Any], Any, Any] | None:
        """The shortest way: all names, or all outside of the arena, were passed as plain arrays. None: it is not so.

        As the first three of Arguments.
        """
        if type(passed) is not dict or self._has_windows:
            return None
        try:
            if len(passed) == self.count:
                values = self._pick(passed)
                if set(map(type, values)) != _ARRAYS:
                    return None
                return [value.__array_struct__ for value in values], None, None
            if len(passed) != len(self._passed_places):
                return None
            values = self._pick_passed(passed)
        except KeyError:
            return None
        if set(map(type, values)) != _ARRAYS:
            return None
        capsules = self._no_capsules.copy()
        for place, value in zip(self._passed_places, values, strict=True):
            capsules[place] = value.__array_struct__
        return capsules, self._arena_values, self._arena_sizes

    def bind_fast(self, passed: Mapping[str, Any], events: Sequence[int]) -> Arguments | None:
        """None: something is unusual or wrong."""
        outputs = no_outputs(self._graph)
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
                if name in named:
                    others.append(place)
        if len(named) == self.count and not others and not events:
            return Arguments(capsules, None, None, outputs, named)
        sizes = self._sizes_type.from_buffer_copy(self._arena_sizes)
        arguments = Arguments(capsules, self._values_type(), sizes, outputs, named)
        if not all(self._fill(place, named.get(self._names[place]), arguments) for place in others):
            return None
        return self._with_events(arguments, events)

    def bind_carefully(self, passed: Mapping[str, Any], events: Sequence[int]) -> Arguments:
        """Raises a LaunchError, or accepts what bind_fast leaves out."""
        bound = bind(self._graph, passed, self._arena)
        if self._has_windows:
            places = dict(zip(self._names, zip(bound.values, bound.sizes, strict=True), strict=True))
            check_windows(self._graph, places, self._where)
        kept = zip(self._names, bound.keep, bound.sizes, strict=True)
        named = {name: value for name, value, size in kept if size != IN_ARENA}
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

    def _gather(self, passed: Mapping[str, Any], outputs: LaunchOutputs) -> Mapping[str, Any] | None:
        """All names that were passed or are allocated here; None: something is wrong with the names."""
        if type(passed) is not dict or self._has_windows:
            return None
        if len(passed) == self.count:
            return passed if passed.keys() == self._graph.buffers.keys() else None
        named = dict(passed)
        torch = torch_or_none()
        tensors = torch is not None and any(isinstance(value, torch.Tensor) for value in passed.values())
        placed = 0
        for buffer in self._buffers:
            if buffer.name in passed:
                continue
            if buffer.name in self._arena:
                placed += 1
                continue
            if not buffer.can_allocate:
                return None
            named[buffer.name] = value = allocate(buffer, tensors)
            if buffer.name in self._graph.outputs:
                outputs[buffer.name] = value
        return named if len(named) + placed == self.count else None

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


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    return itemgetter(*names) if len(names) > 1 else lambda passed: tuple(passed[name] for name in names)


def _wanted(buffer: Buffer) -> Wanted:
    """What the fast way can check; stand-ins for dtypes that numpy lacks are left to the careful way."""
    elements = -1 if buffer.shape is None else math.prod(buffer.shape)
    itemsize, typekind = 0, _ANY
    if buffer.dtype is not None and not buffer.scalar:
        itemsize = DTYPES[buffer.dtype][0]
        typekind = _TYPEKINDS.get(buffer.dtype.rstrip("0123456789"), b"?")
    return Wanted(elements, buffer.least_bytes, itemsize, typekind, buffer.written, not buffer.scalar)
