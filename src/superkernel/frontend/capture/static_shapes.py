"""frontend.capture.static_shapes: a graph with symbolic sizes -> the same graph, every symbol bound to a number."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ...errors import UnsupportedError

_log = logging.getLogger("superkernel")
_LOCAL = re.compile(r"^[LG]\['(\w+)'\]")


def specialise(module: GraphModule, inputs: Sequence[Any], bucketed: Collection[sympy.Symbol] = ()) -> None:
    """Sizes that Dynamo left symbolic become numbers: it guards them and recompiles for another shape.

    Sizes that depend on the `bucketed` symbols stay as they are.
    """
    pairs = list(zip(_placeholders(module), inputs, strict=True))
    # Tensors first: a message that names a dimension of a tensor says more than one that names a size input.
    for node, value in sorted(pairs, key=lambda pair: not isinstance(pair[0].meta.get("example_value"), torch.Tensor)):
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymInt):
            _bind(example, f"input {user_name(node)!r}", bucketed)
        elif isinstance(example, torch.Tensor) and example.layout is torch.strided:
            marked_dynamic = getattr(value, "_dynamo_dynamic_indices", ())
            for dimension, size in enumerate(example.shape):
                what = f"input {user_name(node)!r}, dimension {dimension},"
                is_bucketed = isinstance(size, torch.SymInt) and not size.node.expr.free_symbols.isdisjoint(bucketed)
                if dimension in marked_dynamic and isinstance(size, torch.SymInt) and not is_bucketed:
                    raise UnsupportedError(
                        f"super_kernel_scope: {what} was marked dynamic, but a super kernel is compiled for one shape: "
                        f"use torch._dynamo.mark_static(tensor, {dimension}) instead of mark_dynamic, or the back end "
                        "option 'buckets' (docs/torch.md)"
                    )
                _bind(size, what, bucketed)
            for stride in example.stride():
                _bind(stride, f"input {user_name(node)!r}, a stride,", bucketed)


def nested_input(module: GraphModule) -> str | None:
    """The name of an input that is a nested tensor, if there is one."""
    for node in _placeholders(module):
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.is_nested:
            return user_name(node)
    return None


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _bind(size: Any, what: str, bucketed: Collection[sympy.Symbol] = ()) -> None:
    if not isinstance(size, torch.SymInt) or size.node.maybe_as_int() is not None:
        return
    if not size.node.expr.free_symbols.isdisjoint(bucketed):
        return
    try:
        value = int(size)
    except GuardOnDataDependentSymNode as reason:
        raise UnsupportedError(
            f"super_kernel_scope: {what} has a size that depends on data; a super kernel is compiled for one shape: "
            "use torch._dynamo.mark_static, or leave it out of the scope"
        ) from reason
    _log.info("%s is compiled for %d; another size compiles anew", what.removesuffix(","), value)


def user_name(node: Node) -> str:
    """The input in the user's words: x, or self._parameters['weight']."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    return _LOCAL.sub(r"\1", str(name() if callable(name) else name))
