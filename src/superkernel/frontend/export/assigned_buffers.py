"""frontend.export.assigned_buffers: a module that assigns its buffers -> one that writes into them, while it is traced.

torch.export keeps what is assigned to a buffer of the module that it traces, and forgets it for modules inside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_tensors
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_map_only

from ...errors import UnsupportedError
from .entry_requests import OWNER
from .held_values import tensor_paths


@dataclass(frozen=True)
class AssignedBuffer:
    """A buffer that was assigned the memory of another one, or (`other` is itself) elements that are one memory."""

    name: str
    other: str
    is_other_assigned: bool


@dataclass
class BufferChanges:
    """What a call did to buffers, beside giving them new values."""

    aliases: list[AssignedBuffer] = field(default_factory=list)
    moved: set[tuple[str, str]] = field(default_factory=set)  # from a buffer to one that was assigned its memory
    written: set[str] = field(default_factory=set)  # in place


@dataclass(frozen=True)
class _Place:
    """A buffer, a parameter or another tensor that the model holds, as it was before a call."""

    path: str
    tensor: torch.Tensor | None
    version: int
    memory: int
    name: str = ""
    module: torch.nn.Module | None = None  # of a buffer

    @classmethod
    def of(cls, path: str, tensor: torch.Tensor | None, name: str = "", module: Any = None) -> _Place:
        version = 0 if tensor is None or tensor.is_inference() else tensor._version
        return cls(path, tensor, version, 0 if tensor is None else _memory(tensor), name, module)

    @property
    def now(self) -> torch.Tensor | None:
        return self.tensor if self.module is None else self.module._buffers.get(self.name)

    @property
    def is_written(self) -> bool:
        """Of tensors that were made in inference mode torch counts no versions."""
        return self.tensor is not None and (self.tensor.is_inference() or self.tensor._version != self.version)


@contextmanager
def assignments_as_writes(module: torch.nn.Module, entry: str) -> Iterator[BufferChanges]:
    """At the end of each call, new values of buffers are written into the tensors that were the buffers before."""
    changes = BufferChanges()
    buffers: list[_Place] = []
    others: list[_Place] = []  # that a buffer may be assigned
    registered: dict[torch.nn.Module, Mapping[str, Any]] = {}
    shared = _shared_buffers(module)

    def remember(module: torch.nn.Module, args: Any) -> None:
        registered.clear()
        registered.update((inner, {**inner._parameters, **inner._buffers}) for inner in module.modules())
        paths = [(path, inner) for path, inner in module.named_modules()]
        buffers[:] = [
            _Place.of(_path(path, name), tensor, name, inner)
            for path, inner in paths
            for name, tensor in inner._buffers.items()
        ]
        parameters = [(_path(path, name), each) for path, inner in paths for name, each in inner._parameters.items()]
        others[:] = [_Place.of(*place) for place in (*parameters, *tensor_paths(module))]

    def write(module: torch.nn.Module, args: Any, result: Any) -> Any:
        _check_registered(module, registered, entry)
        places = [*buffers, *others]
        changes.written = {place.path for place in places if place.is_written}
        assigned = [(buffer, _new_value(buffer, entry)) for buffer in buffers if buffer.now is not buffer.tensor]
        for buffer in buffers:
            if buffer.now is buffer.tensor is not None and _memory(buffer.tensor) != buffer.memory:
                raise UnsupportedError(
                    f"entry {entry!r}: the model gives its buffer {buffer.path!r} other memory, as with .data = or "
                    "set_(): write into it with copy_, or assign the buffer itself"
                )
        if place := next((buffer.path for buffer, _ in assigned if buffer.path in shared), None):
            raise UnsupportedError(
                f"entry {entry!r}: the model assigns a tensor to its buffer {place!r}, which shares memory with "
                "another tensor of the model before the call: write into it with copy_, or give one of them a copy"
            )
        if not assigned:
            return result
        traced = _traced_memory(others, [value for _, value in assigned])
        now = [(place.path, tensor, traced.get(_memory(tensor), _memory(tensor))) for place, tensor in _now(places)]
        new = {buffer.path for buffer, _ in assigned}
        changes.aliases = _aliases(now, new)
        changes.moved = {
            (source.path, path)
            for path, _, memory in now
            for source in places
            if path in new and source.path != path and source.memory == memory
        }
        written = {buffer.memory for buffer, _ in assigned}
        # the old value of a buffer may be returned, or be the new value of another one
        result = tree_map_only(torch.Tensor, lambda tensor: _apart(tensor, written), result)
        for buffer, value in [(buffer, _apart(value, written)) for buffer, value in assigned]:
            assert buffer.tensor is not None
            buffer.tensor.copy_(value)
            setattr(buffer.module, buffer.name, buffer.tensor)  # what torch.export takes for the new value
        return result

    hooks = (module.register_forward_pre_hook(remember, prepend=True), module.register_forward_hook(write))
    try:
        yield changes
    finally:
        for hook in hooks:
            hook.remove()


def _check_registered(
    module: torch.nn.Module, registered: Mapping[torch.nn.Module, Mapping[str, Any]], entry: str
) -> None:
    """Refuses parameters that the call assigned, and buffers that it made."""
    for path, inner in module.named_modules():
        known = registered.get(inner)
        for name, value in () if known is None else (*inner._parameters.items(), *inner._buffers.items()):
            assert known is not None
            where = _path(path, name)
            is_parameter = name in inner._parameters
            if is_parameter and name in known and not isinstance(known[name], torch.nn.Parameter | None):
                raise UnsupportedError(
                    f"entry {entry!r}: the model assigns a parameter to its buffer {where!r}, which is then no buffer: "
                    "assign a copy, as with .clone()"
                )
            if is_parameter and known.get(name) is not value:
                raise UnsupportedError(
                    f"entry {entry!r}: the model assigns a new parameter to {where!r}, and a package keeps the first "
                    "one: make it a buffer (register_buffer), which becomes a state of the package"
                )
            if name not in known:
                raise UnsupportedError(
                    f"entry {entry!r}: the call registers the buffer {where!r}: register it before, in __init__, so "
                    "that it becomes a state of the package"
                )


def _shared_buffers(module: torch.nn.Module) -> set[str]:
    """Buffers whose memory the model holds elsewhere as well. What is assigned to a buffer, others do not see."""
    buffers = {
        _path(path, name): buffer.data_ptr()
        for path, inner in module.named_modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None and buffer.layout is torch.strided and buffer.is_cpu and buffer.numel()
    }
    counts = Counter([*buffers.values(), *(tensor.data_ptr() for _, tensor in tensor_paths(module))])
    return {place for place, address in buffers.items() if counts[address] > 1}


def _path(module_path: str, name: str) -> str:
    return f"{module_path}.{name}".removeprefix(f"{OWNER}.").removeprefix(".")


def _now(places: Sequence[_Place]) -> list[tuple[_Place, torch.Tensor]]:
    return [(place, tensor) for place in places if (tensor := place.now) is not None and tensor.numel()]


def _traced_memory(others: Sequence[_Place], values: Sequence[torch.Tensor]) -> dict[int, int]:
    """The memory that torch traces with in the place of the memory of other tensors of the model."""
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    real = [(place, place.tensor) for place in others if mode is not None and type(place.tensor) is torch.Tensor]
    return {_memory(mode.from_tensor(tensor, static_shapes=True)): place.memory for place, tensor in real if mode}


def _aliases(now: Sequence[tuple[str, torch.Tensor, int]], assigned: Collection[str]) -> list[AssignedBuffer]:
    """Pairs of tensors by paths, at least one of them a buffer that was assigned, that now share elements."""
    by_memory: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor, memory in sorted(now, key=lambda place: place[0] not in assigned):
        by_memory.setdefault(memory, []).append((path, tensor))
    found: list[AssignedBuffer] = []
    for same in by_memory.values():
        for index, (path, tensor) in enumerate(same):
            if path not in assigned:
                break
            if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                found.append(AssignedBuffer(path, path, True))
            others = same[index + 1 :]
            found += [AssignedBuffer(path, name, name in assigned) for name, other in others if _overlap(tensor, other)]
    return found


def _overlap(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors in one memory."""
    return tensor.dtype != other.dtype or bool(compute_overlapping_tensors([tensor, other], symbolic=False))


def _new_value(buffer: _Place, entry: str) -> torch.Tensor:
    value = buffer.now
    kinds = [
        None if tensor is None else f"a tensor of {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for tensor in (buffer.tensor, value)
    ]
    if value is None or kinds[0] != kinds[1]:
        raise UnsupportedError(
            f"entry {entry!r}: the model assigns {kinds[1]} to its buffer {buffer.path!r}, which is {kinds[0]} before "
            "the call: a state keeps its shape and element type; give it the largest shape, and write into a part of it"
        )
    return value


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _apart(tensor: torch.Tensor, written: set[int]) -> torch.Tensor:
    """The tensor, or a copy of it where it lies in memory that is written."""
    return tensor.clone() if _memory(tensor) in written else tensor
