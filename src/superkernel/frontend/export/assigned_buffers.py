"""frontend.export.assigned_buffers: a module that assigns its buffers -> one that writes into them, while it is traced.

torch.export keeps what is assigned to a buffer of the module that it traces, and forgets it for modules inside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ...errors import UnsupportedError
from .entry_requests import OWNER
from .held_values import tensor_paths


@dataclass(frozen=True)
class AssignedBuffer:
    """A buffer that was assigned the memory of another one, which stays that memory."""

    name: str
    other: str


@contextmanager
def assignments_as_writes(module: torch.nn.Module, entry: str) -> Iterator[list[AssignedBuffer]]:
    """At the end of each call, new values of buffers are written into the tensors that were the buffers before.

    The list holds, after a call, the buffers that are then the memory of another buffer.
    """
    aliases: list[AssignedBuffer] = []
    before: dict[tuple[str, str], torch.Tensor | None] = {}
    shared = _shared_buffers(module)

    def remember(module: torch.nn.Module, args: Any) -> None:
        before.clear()
        for path, inner in module.named_modules():
            before.update({(path, name): buffer for name, buffer in inner._buffers.items()})

    def write(module: torch.nn.Module, args: Any, result: Any) -> Any:
        assigned: list[tuple[torch.nn.Module, str, torch.Tensor, torch.Tensor]] = []
        for (path, name), buffer in before.items():
            inner = module.get_submodule(path)
            value = inner._buffers.get(name)
            if value is buffer:
                continue
            where = _path(path, name)
            if name in inner._parameters:
                raise UnsupportedError(
                    f"entry {entry!r}: the model assigns a parameter to its buffer {where!r}, which is then no buffer: "
                    "assign a copy, as with .clone()"
                )
            if (path, name) in shared:
                raise UnsupportedError(
                    f"entry {entry!r}: the model assigns a tensor to its buffer {where!r}, which shares memory with "
                    "another tensor of the model before the call: write into it with copy_, or give one of them a copy"
                )
            _check_assigned(where, buffer, value, entry)
            assert buffer is not None and value is not None
            assigned.append((inner, name, buffer, value))
        if not assigned:
            return result
        aliases[:] = _aliases(module, assigned)
        written = {_memory(buffer) for _, _, buffer, _ in assigned}
        # the old value of a buffer may be returned, or be the new value of another one
        result = tree_map_only(torch.Tensor, lambda tensor: _apart(tensor, written), result)
        for inner, name, buffer, value in [(*place, _apart(value, written)) for *place, value in assigned]:
            buffer.copy_(value)
            setattr(inner, name, buffer)  # what torch.export takes for the new value
        return result

    hooks = (module.register_forward_pre_hook(remember, prepend=True), module.register_forward_hook(write))
    try:
        yield aliases
    finally:
        for hook in hooks:
            hook.remove()


def _shared_buffers(module: torch.nn.Module) -> set[tuple[str, str]]:
    """Buffers whose memory the model holds elsewhere as well. What is assigned to a buffer, others do not see."""
    buffers = {
        (path, name): buffer.data_ptr()
        for path, inner in module.named_modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None and buffer.layout is torch.strided and buffer.is_cpu and buffer.numel()
    }
    counts = Counter([*buffers.values(), *(tensor.data_ptr() for _, tensor in tensor_paths(module))])
    return {place for place, address in buffers.items() if counts[address] > 1}


def _path(module_path: str, name: str) -> str:
    return f"{module_path}.{name}".removeprefix(f"{OWNER}.").removeprefix(".")


def _aliases(
    module: torch.nn.Module, assigned: Sequence[tuple[torch.nn.Module, str, torch.Tensor, torch.Tensor]]
) -> list[AssignedBuffer]:
    places = {(id(inner), name) for inner, name, *_ in assigned}
    names = {id(inner): path for path, inner in module.named_modules()}
    others = {
        _memory(buffer): _path(path, name)
        for path, inner in module.named_modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None and (id(inner), name) not in places
    }
    return [
        AssignedBuffer(_path(names[id(inner)], name), others[_memory(value)])
        for inner, name, _, value in assigned
        if _memory(value) in others
    ]


def _check_assigned(name: str, buffer: torch.Tensor | None, value: torch.Tensor | None, entry: str) -> None:
    kinds = [
        None if tensor is None else f"a tensor of {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for tensor in (buffer, value)
    ]
    if kinds[0] is None or kinds[0] != kinds[1]:
        raise UnsupportedError(
            f"entry {entry!r}: the model assigns {kinds[1]} to its buffer {name!r}, which is {kinds[0]} before the "
            "call: a state keeps its shape and element type; give it the largest shape, and write into a part of it"
        )


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _apart(tensor: torch.Tensor, written: set[int]) -> torch.Tensor:
    """The tensor, or a copy of it where it lies in memory that is written."""
    return tensor.clone() if _memory(tensor) in written else tensor
