"""targets.cuda.runtime.tensor_binder: tensors by name that fit at once -> their addresses; others go to `bind`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import LaunchError
from ....model.graph import Buffer, Graph
from ....model.params import scalar_bits
from ...launch_outputs import LaunchOutputs, no_outputs
from .arguments import ALIGNMENT, TORCH_DEVICE, cuda_torch


@dataclass(frozen=True)
class TensorAddresses:
    """The arguments of a launch that need no further check."""

    addresses: list[int]  # per buffer of the graph; 0 for those in the arena
    device: int
    outputs: LaunchOutputs
    in_arena: tuple[tuple[int, str], ...]  # places and names of inner buffers that were not passed


@dataclass(frozen=True)
class _Wanted:
    """What a tensor must be for a buffer."""

    buffer: Buffer
    elements: int  # -1: any number
    least_bytes: int
    output: bool
    inner: bool  # it has a place in the arena unless it is passed


@dataclass(frozen=True)
class _KnownTensor:
    """A tensor that was accepted for a buffer."""

    tensor: Callable[[], Any]  # a weak reference
    address: int
    end: int
    elements: int
    dtype: Any
    device: int

    def unchanged(self, value: Any, device: int, written: bool) -> bool:
        """Whether it is still what it was: a tensor can change in place."""
        if value.data_ptr() != self.address or value.numel() != self.elements or value.dtype is not self.dtype:
            return False
        if device != self.device or not value.is_contiguous():
            return False
        return not (written and value.requires_grad)


class TensorBinder:
    """Accepts plain tensors on one GPU; `bind` says what is wrong with others."""

    def __init__(self, graph: Graph, arena: Collection[str]) -> None:
        self._graph = graph
        self._where = f"super_kernel_scope {graph.name!r}: scalar "
        inner = frozenset(arena)
        self._wanted = [
            _Wanted(
                buffer,
                -1 if buffer.shape is None else math.prod(buffer.shape),
                max(buffer.reach, buffer.least_bytes),
                buffer.name in graph.outputs,
                buffer.name in inner,
            )
            for buffer in graph.buffers.values()
        ]
        self._all_inner = tuple(
            (place, wanted.buffer.name) for place, wanted in enumerate(self._wanted) if wanted.inner
        )
        self._dtypes: dict[str, Any] = {}
        self._known: list[_KnownTensor | None] = [None] * len(self._wanted)  # the last tensor of each buffer
        self._apart: tuple[list[int], list[int]] = [], []  # begins and ends of buffers that do not overlap

    def bind(self, passed: Mapping[str, Any]) -> TensorAddresses | None:
        """None: something is unusual or wrong."""
        torch = cuda_torch()
        if torch is None or type(passed) is not dict:
            return None
        device = self._device(torch, passed)
        if device is None:
            return None
        outputs, addresses, ends, taken, placed = no_outputs(self._graph), list[int](), list[int](), 0, 0
        index, known_tensors = device.index, self._known
        for place, wanted in enumerate(self._wanted):
            buffer = wanted.buffer
            value = passed.get(buffer.name)
            if value is None:
                if wanted.inner and buffer.name not in passed:
                    addresses.append(0)
                    ends.append(0)
                    placed += 1
                    continue
                if buffer.name in passed or (value := self._allocated(torch, wanted, device)) is None:
                    return None
                if wanted.output:
                    outputs[buffer.name] = value
            else:
                taken += 1
            if buffer.scalar:
                if type(value) not in (int, float):
                    return None
                addresses.append(scalar_bits(value, buffer.dtype, f"{self._where}{buffer.name!r}", LaunchError))
                ends.append(0)
                continue
            known = known_tensors[place]
            if known is None or known.tensor() is not value or not known.unchanged(value, index, buffer.written):
                known = self._checked(torch, wanted, value, device)
                if known is None:
                    return None
                known_tensors[place] = known
            addresses.append(known.address)
            ends.append(known.end)
        if taken != len(passed) or ((addresses, ends) != self._apart and self._overlap(addresses, ends)):
            return None
        in_arena = self._all_inner if placed == len(self._all_inner) else self._not_passed(passed)
        return TensorAddresses(addresses, index, outputs, in_arena)

    def _not_passed(self, passed: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
        """The inner buffers that keep their places in the arena."""
        return tuple((place, name) for place, name in self._all_inner if name not in passed)

    def _allocated(self, torch: Any, wanted: _Wanted, device: Any) -> Any:
        buffer = wanted.buffer
        if not buffer.can_allocate:
            return None
        assert buffer.shape is not None and buffer.dtype is not None
        try:
            return torch.empty(buffer.shape, dtype=self._dtype(torch, buffer.dtype), device=device)
        except torch.OutOfMemoryError:
            return None

    def _checked(self, torch: Any, wanted: _Wanted, value: Any, device: Any) -> _KnownTensor | None:
        """A tensor that fits; None: it does not, or it is not a plain one."""
        buffer = wanted.buffer
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device != device:
            return None
        if value.layout is not torch.strided or value.is_neg() or value.is_complex() or not value.is_contiguous():
            return None
        if buffer.dtype is not None and value.dtype is not self._dtype(torch, buffer.dtype):
            return None
        if 0 <= wanted.elements != value.numel() or (buffer.written and value.requires_grad):
            return None
        address, size = value.data_ptr(), value.nbytes
        if address % ALIGNMENT or size < wanted.least_bytes or (size and not address):
            return None
        return _KnownTensor(weakref.ref(value), address, address + size, value.numel(), value.dtype, device.index)

    def _overlap(self, addresses: list[int], ends: list[int]) -> bool:
        """Whether two buffers share bytes, one of which is written. Addresses that do not are remembered."""
        spans = sorted(
            (begin, last, wanted.buffer.written)
            for begin, last, wanted in zip(addresses, ends, self._wanted, strict=True)
            if last > begin and not wanted.buffer.scalar
        )
        end = written_end = 0
        for begin, last, written in spans:
            if begin < written_end or (written and begin < end):
                return True
            end = max(end, last)
            if written:
                written_end = max(written_end, last)
        self._apart = addresses, ends
        return False

    def _device(self, torch: Any, passed: Mapping[str, Any]) -> Any:
        """Of the first tensor; the others are compared with it. None: there is none on a GPU."""
        for value in passed.values():
            if isinstance(value, torch.Tensor):
                return value.device if value.device.type == TORCH_DEVICE else None
        return None

    def _dtype(self, torch: Any, name: str) -> Any:
        found = self._dtypes.get(name)
        if found is None:
            found = self._dtypes[name] = getattr(torch, name)
        return found
