"""frontend.capture.fusibility: an op of a graph -> why it cannot be in a super kernel; asked before any lowering."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from .source_lines import source_line

# Custom operators that write into their arguments: Inductor removes these wrappers.
_WRAPPERS = frozenset({auto_functionalized, auto_functionalized_v2})
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Cause(Enum):
    """What kind of obstacle keeps an operator out of a super kernel."""

    NO_KERNEL = "no sub-kernel"
    COLLECTIVE = "collective"
    LIBRARY_FASTER = "torch's function is faster than the sub-kernel"
    HIGHER_ORDER = "higher-order operator"
    DATA_DEPENDENT_NUMBER = "data-dependent number"
    DATA_DEPENDENT_SIZE = "data-dependent size"
    OUTSIDE_SCOPE = "between the ops of another scope"


@dataclass(frozen=True)
class Unfusible:
    """An operator that is not part of a super kernel, and why."""

    op: str
    reason: str
    origins: tuple[str, ...] = ()  # lines of the model
    cause: Cause = Cause.NO_KERNEL

    def __str__(self) -> str:
        where = f" ({self.origins[0]})" if self.origins else ""
        return f"{self.op}: {self.reason}{where}"


def unfusible_node(node: Node, reason: str, cause: Cause) -> Unfusible:
    line = source_line(node)
    return Unfusible(str(_operator(node)), reason, () if line is None else (line,), cause)


def _operator(node: Node) -> object:
    """What a node calls; not the wrapper that keeps calls with effects in their order."""
    return node.args[1] if node.target is torch.ops.higher_order.with_effects else node.target


def why_unfusible(node: Node) -> Unfusible | None:
    """None: nothing in the graph keeps the op out of a super kernel."""
    if node.target is torch.ops.higher_order.with_effects:
        return unfusible_node(node, "an operator with effects is left to Inductor", Cause.NO_KERNEL)
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in _WRAPPERS:
        return unfusible_node(node, "a higher-order operator is left to Inductor", Cause.HIGHER_ORDER)
    values = [value for used in (node, *node.all_input_nodes) for value in tree_leaves(used.meta.get("val"))]
    if any(isinstance(value, torch.Tensor) and free_unbacked_symbols(value) for value in values):
        return unfusible_node(node, "its size depends on data", Cause.DATA_DEPENDENT_SIZE)
    if any(isinstance(value, _NUMBERS) and value.node.maybe_as_int() is None for value in values):
        reason = "it makes or takes a number that is only known when it runs"
        return unfusible_node(node, reason, Cause.DATA_DEPENDENT_NUMBER)
    return None
