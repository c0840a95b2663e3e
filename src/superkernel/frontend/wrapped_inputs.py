"""frontend.wrapped_inputs: inputs that wrap tensors, such as a DTensor -> the tensors inside, in their place.

A wrapper has no memory of its own: its address is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch.fx import GraphModule, map_arg
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_Names = tuple[str, ...]  # of attributes, from an input to a tensor that it wraps


@dataclass(frozen=True)
class PlainInputs:
    """The inputs of a graph, and in place of each wrapper its tensors."""

    sources: tuple[int, ...]  # by tensor: which input it is, or is a part of
    getters: tuple[Callable[[Any], Any] | None, ...]  # by tensor; None: the input itself

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(self.sources, self.getters, strict=True)
        return tuple([args[index] if inner is None else inner(args[index]) for index, inner in pairs])


def find_wrapped(inputs: Sequence[Any]) -> PlainInputs | None:
    """None: no input is a wrapper."""
    if not any(is_traceable_wrapper_subclass(value) for value in inputs):
        return None
    found = [(index, names) for index, value in enumerate(inputs) for names in _inside(value, ())]
    getters = [attrgetter(".".join(names)) if names else None for _, names in found]
    return PlainInputs(tuple(index for index, _ in found), tuple(getters))


def unwraps(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether an input or an output of Dynamo's graph is a wrapper.

    AOTAutograd then compiles a graph of the tensors inside, and what it says of inputs and outputs is of that graph.
    """
    (results,) = module.graph.output_node().args
    found: list[Any] = []
    map_arg(results, lambda node: found.append(node.meta.get("example_value")))
    return any(is_traceable_wrapper_subclass(value) for value in (*inputs, *found))


def _inside(value: Any, names: _Names) -> Iterator[_Names]:
    if not is_traceable_wrapper_subclass(value):
        yield names
        return
    for name in value.__tensor_flatten__()[0]:
        yield from _inside(getattr(value, name), (*names, name))
