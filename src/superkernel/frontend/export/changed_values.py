"""frontend.export.changed_values: a module that is traced -> the Python values that a call of it changes.

torch.export computes with the values before the call. It finds tensors that are assigned to attributes of modules; it
overlooks numbers, texts, containers that grow, and everything in objects of other classes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from ...errors import shown
from .held_values import ORDER, SHARED_GENERATORS, Holder, content_now, holders, put, same_content
from .opaque_state import OpaqueState


@dataclass(frozen=True)
class ChangedValue:
    """What an object holds for one key, before and after a call; a key that is not there has no value."""

    holder: Holder
    key: Any
    after: Mapping[Any, Any]

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.after.get(self.key), torch.Tensor)

    @property
    def had_tensor(self) -> bool:
        return isinstance(self.holder.content.get(self.key), torch.Tensor)

    @property
    def path(self) -> str:
        return self.holder.path_of(self.key)

    @property
    def is_drawn(self) -> bool:
        """Of an iterator, or random numbers: what the next call gets is not known."""
        return any(isinstance(state, OpaqueState) and state.is_drawn for state in self.holder.content.values())

    def lies_in(self, tensor: torch.Tensor) -> bool:
        """Whether the elements of the tensor are those of an array that is put back."""
        value = self.holder.value
        if not isinstance(value, np.ndarray | bytearray | array | memoryview) or not tensor.numel():
            return False
        elements = value if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8)
        begin: int = elements.__array_interface__["data"][0]
        return bool(begin <= tensor.data_ptr() < begin + elements.nbytes)

    @property
    def is_shared(self) -> bool:
        """Whether other threads draw from the same generator of random numbers."""
        return any(self.holder.value is generator for generator in SHARED_GENERATORS.values())

    def __str__(self) -> str:
        if isinstance(state := self.after.get(self.key), OpaqueState):
            return f"{self.path} (a {state.kind}, whose state the call changes)"
        before, after = (
            shown(content[self.key]) if self.key in content else "nothing"
            for content in (self.holder.content, self.after)
        )
        return f"{self.path} (from {before} to {after})"


@contextmanager
def observed_values(module: torch.nn.Module) -> Iterator[list[ChangedValue]]:
    """The list holds, after a call of the module, the values that it changed."""
    before: list[Holder] = []
    changed: list[ChangedValue] = []

    def remember(module: torch.nn.Module, args: Any) -> None:
        before[:] = holders(module)

    def compare(module: torch.nn.Module, args: Any, result: Any) -> None:
        changed[:] = [change for holder in before for change in _changes(holder)]

    hooks = (module.register_forward_pre_hook(remember, prepend=True), module.register_forward_hook(compare))
    try:
        yield changed
    finally:
        for hook in hooks:
            hook.remove()


def _changes(holder: Holder) -> Iterator[ChangedValue]:
    after = content_now(holder)
    has_same_keys = holder.content.keys() == after.keys()
    for key in dict.fromkeys([*holder.content, *after]):
        values = [content[key] for content in (holder.content, after) if key in content]
        if key is ORDER and not has_same_keys:
            continue
        if len(values) != 2 or not same_content(*values):
            yield ChangedValue(holder, key, after)


@contextmanager
def values_after_a_call(changed: Sequence[ChangedValue]) -> Iterator[None]:
    """The model as the call left it, with other tensors in the place of those that were traced."""
    for value in changed:
        put(value.holder, tree_map_only(torch.Tensor, _other_tensor, value.after), [value.key])
    try:
        yield
    finally:
        for value in changed:
            put(value.holder, value.holder.content, [value.key])


def _other_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Of the same kind; a program that reads it is another program."""
    return torch.rand(tensor.shape).mul(100).to(tensor.dtype)
