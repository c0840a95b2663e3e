"""frontend.capture.row_proof: a graph with a symbolic number of rows -> proof that padding changes no row.

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
from .row_layouts import OpCall, RowLayout, RowsMix, Rule, argument_values, is_number, shape_of
from .row_numbers import RowNumbers
from .source_lines import source_line

# arguments that are sizes of a result, which is compared with its layout; other numbers must not count the rows
_SIZE_ARGUMENTS = frozenset({"size", "sizes", "shape", "length", "end", "N", "repeats"})


@dataclass(frozen=True)
class ProvenRows:
    """A graph whose rows do not mix."""

    outputs: list[RowLayout | None]  # None: the output does not depend on the rows
    is_limited: bool  # the padding is known to raise no error up to the largest bucket, and not beyond


def _is_shape(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, list | tuple) and all(isinstance(size, int | torch.SymInt) for size in value)


def prove_rows_independent(
    module: GraphModule,
    rows: sympy.Symbol,
    inputs: Mapping[int, int],
    rules: Callable[[Any], Rule | None],
    largest: Mapping[sympy.Symbol, int],
    what: str,
) -> ProvenRows:
    """`inputs`: index -> the dimension that counts rows; `largest`: the largest bucket of each symbol in the graph;
    `what` names the dimension in errors."""
    layouts: dict[Node, Any] = {}
    numbers = RowNumbers(module, layouts, largest)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, dimension in inputs.items():
        layouts[placeholders[index]] = RowLayout(dimension)
    for node in module.graph.nodes:
        if node.op != "call_function" or is_number(node) or _is_shape(node):
            continue
        try:
            layouts[node] = _result_layouts(node, rows, layouts, rules)
            numbers.check(node)
        except RowsMix as reason:
            raise UnsupportedError(_refusal(node, reason, what)) from None
    (results,) = module.graph.output_node().args
    outputs = [layouts.get(value) if isinstance(value, Node) else None for value in results]
    return ProvenRows(outputs, numbers.is_limited)


def _refusal(node: Node, reason: RowsMix, what: str) -> str:
    line = source_line(node)
    return f"{what} cannot have buckets: {node.target}: {reason}{f' ({line})' if line else ''}. {reason.advice}"


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
