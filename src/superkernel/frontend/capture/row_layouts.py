"""frontend.capture.row_layouts: where the rows of a tensor are, and a call of an operator as rules of rows see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

Shape = tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class RowLayout:
    """Dimension `dim` of a tensor has outer * rows * inner elements, in this order of significance."""

    dim: int
    outer: sympy.Expr = sympy.S.One
    inner: sympy.Expr = sympy.S.One
    step: sympy.Expr | None = None  # the elements of row i are all i * step; None: they are others

    def at(self, dim: int) -> RowLayout:
        return RowLayout(dim, self.outer, self.inner, self.step)

    def computed(self, dim: int | None = None) -> RowLayout:
        """The layout of values computed from these."""
        return RowLayout(self.dim if dim is None else dim, self.outer, self.inner)

    def renamed(self, names: Mapping[sympy.Symbol, sympy.Symbol]) -> RowLayout:
        """With other symbols in its sizes."""
        return RowLayout(self.dim, self.outer.xreplace(names), self.inner.xreplace(names))

    def same_rows(self, other: RowLayout) -> bool:
        return (self.dim, self.outer, self.inner) == (other.dim, other.outer, other.inner)


class RowsMix(Exception):  # caught by prove_rows_independent, which adds the op and its source line
    """Why an op makes rows depend on each other; raised by rules."""

    advice = (
        "A call is padded to its bucket, so each row must be computed from that row alone: leave this dimension out "
        "of buckets, or compute what combines rows outside of the compiled model"
    )


class PaddingFails(RowsMix):
    """Why an op may raise an error on rows that are added, though it raises none on the rows of the call."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass(frozen=True)
class OpCall:
    """One op of the graph, as rules see it."""

    node: Node
    rows: sympy.Symbol
    layouts: Mapping[Node, Any]
    arguments: Mapping[str, Any]  # by name, with defaults

    def layout(self, value: Any) -> RowLayout | None:
        """The layout of an argument; None: it does not depend on the rows."""
        return self.layouts.get(value) if isinstance(value, Node) else None

    def of(self, name: str) -> RowLayout | None:
        return self.layout(self.arguments[name])

    def shape(self, value: Any) -> Shape:
        return shape_of(value.meta["val"])

    @property
    def output_shape(self) -> Shape:
        value = self.node.meta["val"]
        return shape_of(value[0] if isinstance(value, list | tuple) else value)

    @property
    def tensors(self) -> list[Node]:
        nodes = [node for node in tree_leaves((self.node.args, self.node.kwargs)) if isinstance(node, Node)]
        return [node for node in nodes if not is_number(node)]

    @property
    def with_rows(self) -> list[tuple[Node, RowLayout]]:
        return [(node, layout) for node in self.tensors if (layout := self.layout(node)) is not None]

    def counts_rows(self, value: Any) -> bool:
        """Whether a number was computed from the number of rows."""
        return self.rows in expression(value).free_symbols

    def dimension(self, name: str, tensor: str = "self") -> int:
        return self.wrapped(self.arguments[name], len(self.shape(self.arguments[tensor])))

    def wrapped(self, dimension: Any, count: int) -> int:
        return int(dimension) % max(count, 1)

    def only(self, *names: str) -> RowLayout:
        """The layout of the named argument that has rows; no other argument may have any."""
        allowed = [self.arguments.get(name) for name in names]
        for node, _ in self.with_rows:
            if node not in allowed:
                raise RowsMix(f"argument {self._name_of(node)!r} depends on the rows")
        found = [layout for value in allowed if (layout := self.layout(value)) is not None]
        if not found:
            raise RowsMix("it computes with the number of rows")
        if any(not layout.same_rows(found[0]) for layout in found):
            raise RowsMix("its arguments have their rows in different places")
        return found[0]

    def _name_of(self, node: Node) -> str:
        return next((name for name, value in self.arguments.items() if node in tree_leaves(value)), node.name)


Rule = Callable[[OpCall], Any]  # the layout of the result, or of each result


def expression(value: Any) -> sympy.Expr:
    """A size as an expression: a number, a SymInt, or a node whose value is one of them."""
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    return sympy.sympify(value) if isinstance(value, bool | int | float) else sympy.S.Zero


def shape_of(tensor: Any) -> Shape:
    return tuple(expression(size) for size in tensor.shape)


def is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def argument_values(node: Node) -> dict[str, Any]:
    """The arguments of an op by name, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(index): value for index, value in enumerate(node.args)} | dict(node.kwargs)
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    named = zip((argument.name for argument in schema.arguments), node.args, strict=False)
    return {**defaults, **dict(named), **node.kwargs}
