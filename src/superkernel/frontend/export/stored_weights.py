"""frontend.export.stored_weights: weights and states of all entries -> the weights file, each memory once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from ...package.weights_file import StoredTensor
from ...targets.packaging import WeightPanels
from .trace_entry import is_dense


@dataclass
class StoredWeights:
    """Tensors by name. Names of the same memory, such as tied weights, are one tensor of the file."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # as they are stored: contiguous
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)  # by memory and layout
    _kept: list[torch.Tensor] = field(default_factory=list)  # so that no address is used again

    def add(self, name: str, tensor: torch.Tensor, is_state: bool = False) -> str:
        """The name under which the memory of the tensor is stored."""
        tensor = tensor.detach()
        layout = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), is_state and name)
        if layout in self._names and tensor.numel():
            return self._names[layout]
        stored = _stored(tensor)
        free, number = name, 1
        while free in self.tensors and not _is_same(self.tensors[free], stored):
            number += 1
            free = f"{name}.{number}"
        self.tensors[free] = stored
        self._names[layout] = free
        self._kept.append(tensor)
        return free

    def add_panels(self, name: str, tensor: torch.Tensor, panels: WeightPanels) -> str:
        """The same for what kernels read of a dense tensor in panels."""
        layout = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), panels)
        if layout not in self._names:
            self._names[layout] = self.add(f"{name}.panels", in_panels(_stored(tensor.detach()), panels))
            self._kept.append(tensor)
        return self._names[layout]

    def contents(self) -> Mapping[str, StoredTensor]:
        return {name: _contents(tensor) for name, tensor in self.tensors.items()}


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous; of a tensor that fills its memory, the memory as it is: kernels were compiled for its strides."""
    if is_dense(tensor):
        order = sorted(range(tensor.dim()), key=lambda axis: (tensor.stride(axis), tensor.shape[axis]), reverse=True)
        return tensor.permute(order).contiguous()
    return tensor.contiguous()


def in_panels(memory: torch.Tensor, panels: WeightPanels) -> torch.Tensor:
    """A tensor as it would be stored -> [panels, depth, width], with zeros beside the last column."""
    flat = memory.reshape(-1)
    shape, strides = (panels.columns, panels.depth), (panels.column_stride, 1)
    columns = flat.as_strided(shape, strides, flat.storage_offset() + panels.offset // flat.element_size())
    padded = F.pad(columns, (0, 0, 0, -panels.columns % panels.width))
    return padded.reshape(-1, panels.width, panels.depth).transpose(1, 2).contiguous()


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the bytes are equal: each lowering makes constants anew."""
    same_kind = left.dtype == right.dtype and left.shape == right.shape
    return same_kind and bytes(_contents(left).data) == bytes(_contents(right).data)


def _contents(tensor: torch.Tensor) -> StoredTensor:
    raw = tensor.cpu().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return StoredTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), memoryview(raw.numpy()))
