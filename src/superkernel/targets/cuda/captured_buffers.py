"""targets.cuda.captured_buffers: tensors of launches -> buffers by name, one for all tensors that share memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ...model.op import Place
from ...model.params import DTYPES

_NO_WORD = re.compile(r"\W+")
_MOST_LISTED = 4096  # members of a list or dict that are looked through for a tensor


@dataclass(frozen=True)
class TensorUse:
    """A tensor that a launch takes: where it begins in its buffer, and what it is."""

    place: Place
    dtype: str | None  # None: sub-kernels have no name for it
    shape: tuple[int, ...]
    whole: bool  # it is all of its buffer, in order


class CapturedBuffers:
    """The memory that captured launches use. The storage of a tensor is one buffer."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}  # by name: all of the memory of a buffer
        self._names: dict[tuple[str, int], str] = {}  # device and key of a storage -> name
        self._kept: list[Any] = []  # while a tensor exists, no other has its storage

    def use(self, tensor: Any, frames: Sequence[FrameType]) -> TensorUse:
        """Where a tensor lies. `frames` are those of callers, whose variables name new buffers."""
        storage = tensor.untyped_storage()
        key = str(tensor.device), storage._cdata
        name = self._names.get(key)
        if name is None:
            name = self._new_name(tensor, frames)
            self._names[key] = name
            self._kept.append(storage)
            self.tensors[name] = tensor if _covers(tensor) else _all_of(tensor)
        offset = tensor.storage_offset() * tensor.element_size()
        shape = tuple(map(int, tensor.shape))
        return TensorUse(Place(name, offset), dtype_name(tensor), shape, offset == 0 and _covers(tensor))

    def name_of(self, tensor: Any) -> str | None:
        """The name of the buffer that a tensor lies in, if a launch has taken it."""
        return self._names.get((str(tensor.device), tensor.untyped_storage()._cdata))

    def _new_name(self, tensor: Any, frames: Sequence[FrameType]) -> str:
        base = variable_name(tensor, frames) or f"t{len(self.tensors)}"
        name, count = base, 0
        while name in self.tensors:
            count += 1
            name = f"{base}_{count}"
        return name


def dtype_name(tensor: Any) -> str | None:
    name = str(tensor.dtype).removeprefix("torch.")
    return name if name in DTYPES else None


def variable_name(tensor: Any, frames: Sequence[FrameType]) -> str | None:
    """What callers call a tensor: a variable, else a member of a list, dict or object that is one."""
    for frame in frames:
        for name, value in frame.f_locals.items():
            if value is tensor and _speaks(name):
                return name
    for frame in frames:
        for name, value in frame.f_locals.items():
            for member, held in _members(value) if _speaks(name) else ():
                if held is tensor:
                    word = _NO_WORD.sub("_", member).strip("_")
                    return word if name == "self" and word else f"{name}_{word}"
    return None


def _speaks(name: str) -> bool:
    """Whether a variable is named by its author, and not by the interpreter."""
    return name.isidentifier() and not name.startswith("_")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple) and len(value) <= _MOST_LISTED:
        yield from ((str(index), held) for index, held in enumerate(value))
    elif isinstance(value, Mapping) and len(value) <= _MOST_LISTED:
        yield from ((str(key), held) for key, held in value.items())
    elif hasattr(value, "named_parameters") and hasattr(value, "named_buffers"):
        yield from value.named_parameters()
        yield from value.named_buffers()
    elif hasattr(value, "__dataclass_fields__"):
        yield from vars(value).items() if hasattr(value, "__dict__") else ()


def _covers(tensor: Any) -> bool:
    """Whether a tensor is all of its storage, in order."""
    nbytes = tensor.numel() * tensor.element_size()
    return bool(tensor.is_contiguous() and tensor.storage_offset() == 0 and nbytes == tensor.untyped_storage().nbytes())


def _all_of(tensor: Any) -> Any:
    """All of the storage of a tensor, in one dimension."""
    import torch

    storage = tensor.untyped_storage()
    dtype = tensor.dtype if storage.nbytes() % tensor.element_size() == 0 else torch.uint8
    size = storage.nbytes() // torch.empty((), dtype=dtype).element_size()
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (size,))
