"""frontend.fitness: an op of a graph in, why it stays out of super kernels out; asked before anything is generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

# Custom operators that write into their arguments: Inductor takes these wrappers off again.
_WRAPPERS = frozenset({auto_functionalized, auto_functionalized_v2})
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Misfit:
    """Why an op cannot be in a super kernel."""

    reason: str
    depends_on_data: bool = False
    sizes: bool = False  # not only numbers but sizes of tensors depend on data


def misfit(node: Node) -> Misfit | None:
    """None: nothing in the graph speaks against it."""
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in _WRAPPERS:
        return Misfit("a higher-order operator is left to Inductor")
    values = list(_values(node))
    if any(isinstance(value, torch.Tensor) and free_unbacked_symbols(value) for value in values):
        return Misfit("its size depends on data", True, True)
    if any(isinstance(value, _NUMBERS) and value.node.maybe_as_int() is None for value in values):
        return Misfit("it makes or takes a number that is only known when it runs", True)
    return None


def _values(node: Node) -> Iterator[Any]:
    for one in (node, *node.all_input_nodes):
        yield from tree_leaves(one.meta.get("val"))
