"""frontend.capture.row_layouts: a graph with a symbolic number of rows -> proof that no row depends on another row.

The graph is walked in order. Each tensor either does not depend on the rows, or has a RowLayout: the dimension that
counts them. A rule per operator (row_rules) derives the layouts of its results; an operator that combines rows, or
for which there is no rule, ends the proof with its name and source line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ...errors import UnsupportedError
from .source_lines import source_line

Shape = tuple[sympy.Expr, ...]
# arguments that are sizes of a result, which is compared with its layout; other numbers must not count the rows
_SIZE_ARGUMENTS = frozenset({"size", "sizes", "shape", "length", "end", "N"})


@dataclass(frozen=True)
class RowLayout:
    """Dimension `dim` of a tensor has outer * rows * inner elements, in this order of significance."""

    dim: int
    outer: sympy.Expr = sympy.S.One
    inner: sympy.Expr = sympy.S.One
    numbered: bool = False  # the elements of row i are all i

    def at(self, dim: int) -> RowLayout:
        return RowLayout(dim, self.outer, self.inner, self.numbered)

    def computed(self, dim: int | None = None) -> RowLayout:
        """The layout of values computed from these."""
        return RowLayout(self.dim if dim is None else dim, self.outer, self.inner)

    def renamed(self, names: Mapping[sympy.Symbol, sympy.Symbol]) -> RowLayout:
        """With other symbols in its sizes."""
        return RowLayout(self.dim, self.outer.xreplace(names), self.inner.xreplace(names), self.numbered)

    def same_rows(self, other: RowLayout) -> bool:
        return (self.dim, self.outer, self.inner) == (other.dim, other.outer, other.inner)


class RowsMix(Exception):  # caught by prove_rows_independent, which adds the op and its source line
    """Why an op makes rows depend on each other; raised by rules."""


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


def _is_shape(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, list | tuple) and all(isinstance(size, int | torch.SymInt) for size in value)


def prove_rows_independent(
    module: GraphModule, rows: sympy.Symbol, inputs: Mapping[int, int], rules: Callable[[Any], Rule | None], what: str
) -> list[RowLayout | None]:
    """The layout of every output. `inputs`: index -> the dimension that counts rows; `what` names it in errors."""
    layouts: dict[Node, Any] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, dimension in inputs.items():
        layouts[placeholders[index]] = RowLayout(dimension)
    for node in module.graph.nodes:
        if node.op != "call_function" or is_number(node) or _is_shape(node):
            continue
        try:
            layouts[node] = _result_layouts(node, rows, layouts, rules)
        except RowsMix as reason:
            raise UnsupportedError(_refusal(node, str(reason), what)) from None
    (results,) = module.graph.output_node().args
    return [layouts.get(value) if isinstance(value, Node) else None for value in results]


def _refusal(node: Node, reason: str, what: str) -> str:
    line = source_line(node)
    return (
        f"{what} cannot have buckets: {node.target}: {reason}"
        f"{f' ({line})' if line else ''}. A call is padded to its bucket, so each row must be computed from that row "
        "alone: leave this dimension out of buckets, or compute what combines rows outside of the compiled model"
    )


def _result_layouts(node: Node, rows: sympy.Symbol, layouts: Mapping[Node, Any], rules: Any) -> Any:
    target = node.target
    if getattr(target, "__name__", "") == "getitem":
        chosen = layouts.get(node.args[0])
        return chosen[node.args[1]] if isinstance(chosen, tuple) else chosen
    call = OpCall(node, rows, layouts, argument_values(node))
    counted = [name for name, value in call.arguments.items() if any(map(call.counts_rows, tree_leaves(value)))]
    if not call.with_rows and not counted:
        return None
    is_random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    if is_random and call.arguments.get("dropout_p") != 0.0:
        raise RowsMix("it draws random numbers, and how many depends on the number of rows")
    rule = rules(target)
    if rule is None:
        raise RowsMix("it is not known to keep rows apart")
    if not _SIZE_ARGUMENTS.issuperset(counted):
        raise RowsMix("it computes with the number of rows")
    result = rule(call)
    _check(result, node.meta.get("val"), rows)
    return result


def argument_values(node: Node) -> dict[str, Any]:
    """The arguments of an op by name, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(index): value for index, value in enumerate(node.args)} | dict(node.kwargs)
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    named = zip((argument.name for argument in schema.arguments), node.args, strict=False)
    return {**defaults, **dict(named), **node.kwargs}


def _check(layouts: Any, values: Any, rows: sympy.Symbol) -> None:
    """Each result has its rows where its layout says, and nowhere else."""
    for layout, value in _pairs(layouts, values):
        if not isinstance(value, torch.Tensor):
            continue
        shape = shape_of(value)
        found = [dim for dim, size in enumerate(shape) if rows in size.free_symbols]
        if found != ([] if layout is None else [layout.dim]):
            raise RowsMix(f"its result of shape {_text(shape)} does not have one dimension that counts the rows")
        if layout is not None and sympy.expand(shape[layout.dim] - layout.outer * rows * layout.inner) != 0:
            raise RowsMix(f"its result of shape {_text(shape)} does not keep every row")


def _pairs(layouts: Any, values: Any) -> Iterator[tuple[RowLayout | None, Any]]:
    if not isinstance(values, list | tuple):
        yield layouts, values
        return
    each = layouts if isinstance(layouts, tuple) else (layouts,) * len(values)
    yield from zip(each, values, strict=True)


def _text(shape: Sequence[sympy.Expr]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
