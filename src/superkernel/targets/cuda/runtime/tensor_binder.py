"""targets.cuda.runtime.tensor_binder: tensors by name that fit at once -> their addresses; others go to `bind`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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


@dataclass(frozen=True)
class _Wanted:
    """What a tensor must be for a buffer."""

    buffer: Buffer
    elements: int  # -1: any number
    least_bytes: int
    output: bool


class TensorBinder:
    """Accepts plain tensors on one GPU for all names outside of the arena; `bind` says what is wrong with others."""

    def __init__(self, graph: Graph, arena: Collection[str]) -> None:
        self._graph, self._arena = graph, frozenset(arena)
        self._where = f"super_kernel_scope {graph.name!r}: scalar "
        self._wanted = [
            None
            if buffer.name in self._arena
            else _Wanted(
                buffer,
                -1 if buffer.shape is None else math.prod(buffer.shape),
                max(buffer.reach, buffer.least_bytes),
                buffer.name in graph.outputs,
            )
            for buffer in graph.buffers.values()
        ]
        self._needed = sum(wanted is not None for wanted in self._wanted)
        self._dtypes: dict[str, Any] = {}

    def bind(self, passed: Mapping[str, Any]) -> TensorAddresses | None:
        """None: something is unusual or wrong."""
        torch = cuda_torch()
        if torch is None or type(passed) is not dict or len(passed) > self._needed:
            return None
        outputs, addresses, spans = no_outputs(self._graph), list[int](), list[tuple[int, int, bool]]()
        found = self._device(torch, passed)
        if found is None:
            return None
        device, taken, plain = found, 0, (torch.Tensor, torch.nn.Parameter)
        for wanted in self._wanted:
            if wanted is None:
                addresses.append(0)
                continue
            buffer = wanted.buffer
            value = passed.get(buffer.name)
            if value is None:
                if buffer.name in passed or not buffer.can_allocate:
                    return None
                assert buffer.shape is not None and buffer.dtype is not None
                try:
                    value = torch.empty(buffer.shape, dtype=self._dtype(torch, buffer.dtype), device=device)
                except torch.OutOfMemoryError:
                    return None
                if wanted.output:
                    outputs[buffer.name] = value
            else:
                taken += 1
            if buffer.scalar:
                if type(value) not in (int, float):
                    return None
                where = f"{self._where}{buffer.name!r}"
                addresses.append(scalar_bits(value, buffer.dtype, where, LaunchError))
                continue
            if type(value) not in plain or value.device != device or value.layout is not torch.strided:
                return None
            if buffer.dtype is not None and value.dtype is not self._dtype(torch, buffer.dtype):
                return None
            if 0 <= wanted.elements != value.numel() or not value.is_contiguous() or value.is_neg():
                return None
            if value.is_complex() or (buffer.written and value.requires_grad):
                return None
            address, size = value.data_ptr(), value.nbytes
            if address % ALIGNMENT or size < wanted.least_bytes or (size and not address):
                return None
            addresses.append(address)
            spans.append((address, address + size, buffer.written))
        if taken != len(passed) or _overlap(spans):
            return None
        return TensorAddresses(addresses, device.index, outputs)

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


def _overlap(spans: list[tuple[int, int, bool]]) -> bool:
    """Whether two spans share bytes, one of which is written."""
    spans.sort()
    end = written_end = 0
    for begin, last, written in spans:
        if last > begin and (begin < written_end or (written and begin < end)):
            return True
        end = max(end, last)
        if written:
            written_end = max(written_end, last)
    return False
