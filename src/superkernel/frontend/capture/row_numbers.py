"""frontend.capture.row_numbers: values computed from the numbers of rows -> whether padding may raise an error.

Padding repeats rows, which raises no error that those rows do not raise, except where an op takes the number of a row,
as in table[torch.arange(x.shape[0])]: the rows that are added have larger numbers. Values that are computed from
these numbers alone are computed for the largest bucket and looked at; others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from .row_layouts import PaddingFails, argument_values, expression, is_number, shape_of

_RANGES = ("aten.arange", "prims.iota")
_BY_INDICES = ("aten.index", "aten._unsafe_index", "aten.index_put", "aten._unsafe_index_put")
_BY_INDEX = (
    *("aten.index_select", "aten.index_add", "aten.index_copy", "aten.index_fill", "aten.index_reduce"),
    *("aten.gather", "aten.scatter", "aten.scatter_add", "aten.scatter_reduce"),
)
_OF_TABLES = ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")
_DIVISIONS = ("aten.div", "aten.floor_divide", "aten.remainder", "aten.fmod", "prims.div", "prims.remainder")
_ASSERTION = "aten._assert_async"
_AS_INPUT = "pass what is computed from the numbers of rows as an input, which is padded with copies of its rows"


class RowNumbers:
    """Which values of a graph depend on the numbers of rows, followed from op to op."""

    def __init__(self, module: GraphModule, layouts: Mapping[Node, Any], largest: Mapping[sympy.Symbol, int]) -> None:
        """`layouts` grows as the graph is walked; `largest`: the largest bucket of each symbol."""
        self.is_limited = False  # whether an op was looked at, which is done for the largest bucket
        self._module, self._layouts, self._largest = module, layouts, largest
        self._numbered: set[Node] = set()
        self._without_inputs: set[Node] = set()
        self._values: dict[Node, Any] = {}

    def check(self, node: Node) -> None:
        """Follows one op, whose layout is known; PaddingFails: it may raise an error on rows that are added."""
        used = node.all_input_nodes
        if all(is_number(value) or value.op == "get_attr" or value in self._without_inputs for value in used):
            self._without_inputs.add(node)
        name = str(getattr(node.target, "overloadpacket", node.target))
        is_range = name in _RANGES and self._layouts.get(node) is not None
        if is_range or any(value in self._numbered for value in used):
            self._check_operands(node, name, argument_values(node))
            rows = self._indices_of_rows(name, argument_values(node))
            if is_range or any(value in self._numbered and value not in rows for value in used):
                self._numbered.add(node)

    def _indices_of_rows(self, name: str, given: Mapping[str, Any]) -> list[Node]:
        """In x[torch.arange(x.shape[0]), ids] each row is taken from itself: copies of rows give copies."""
        layout = self._layouts.get(given["self"]) if name in _BY_INDICES else None
        return [index for dim, index in enumerate(given["indices"]) if dim == layout.dim] if layout is not None else []

    def _check_operands(self, node: Node, name: str, given: Mapping[str, Any]) -> None:
        for index, expected, takes_negative in _indices(name, given):
            if index in self._numbered and index not in self._indices_of_rows(name, given):
                values, size = self._values_in_bucket(index, "its index may be out of bounds"), self._number(expected)
                is_wrong = (values < (-size if takes_negative else 0)) | (values >= size)
                self._refuse_rows(index, is_wrong, f"its index is out of bounds for size {size}")
        divisor, asserted = given.get("other"), given.get("self")
        if name in _DIVISIONS and divisor in self._numbered and not node.meta["val"].dtype.is_floating_point:
            self._refuse_rows(divisor, self._values_in_bucket(divisor, "its divisor may be 0") == 0, "its divisor is 0")
        if name == _ASSERTION and asserted in self._numbered and not self._values_in_bucket(asserted, "it may fail"):
            raise PaddingFails("it fails for the largest bucket", f"Choose smaller buckets, or {_AS_INPUT}")

    def _refuse_rows(self, node: Node, is_wrong: Tensor, problem: str) -> None:
        layout = self._layouts[node]
        outer, inner = self._number(layout.outer), self._number(layout.inner)
        in_row = is_wrong.movedim(layout.dim, 0).unflatten(0, (outer, -1, inner)).movedim(1, 0).flatten(1).any(1)
        first = int(in_row.int().argmax())
        if in_row.any() and first:  # where row 0 is wrong, every call fails
            raise PaddingFails(
                f"{problem} on row {first} of a bucket", f"Choose buckets of at most {first} rows, or {_AS_INPUT}"
            )

    def _values_in_bucket(self, node: Node, problem: str) -> Tensor:
        self.is_limited = True
        if node not in self._without_inputs:
            raise PaddingFails(
                f"it computes with the numbers of rows and with inputs, and {problem} on rows that a bucket adds",
                f"To use buckets, {_AS_INPUT}",
            )
        value: Tensor = self._value(node)
        return value

    def _value(self, node: Node) -> Any:
        """For the largest bucket."""
        if is_number(node):
            return self._number(expression(node))
        if node.op == "get_attr":
            return attrgetter(str(node.target))(self._module)
        if node not in self._values:
            args, keywords = torch.fx.map_arg((node.args, node.kwargs), self._value)
            self._values[node] = node.target(*args, **keywords)
        return self._values[node]

    def _number(self, size: sympy.Expr) -> Any:
        value = size.subs(self._largest)
        return int(value) if value.is_Integer else bool(value) if value.is_Boolean else float(value)


def _indices(name: str, given: Mapping[str, Any]) -> Iterator[tuple[Any, sympy.Expr, bool]]:
    """Each index that an op checks, the size of its dimension, and whether it may count from the end."""
    if name in _BY_INDICES:
        shape = shape_of(given["self"].meta["val"])
        yield from ((index, size, True) for index, size in zip(given["indices"], shape, strict=False))
    if name in _BY_INDEX:
        shape = shape_of(given["self"].meta["val"])
        yield given["index"], shape[given["dim"]] if shape else sympy.S.One, False
    if name in _OF_TABLES:
        yield given["indices"], shape_of(given["weight"].meta["val"])[0], False
