"""frontend.export.same_program: a program for any number of rows and one for one row -> whether they are the same.

A model may ask for its number of rows in ways that leave no condition on it: it may have a branch for one row, which
torch takes to be no size of a dynamic dimension, or may look at the type of the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_map

from ..capture.row_layouts import argument_values, expression, is_number, shape_of
from ..capture.row_view_rules import NO_END
from ..capture.source_lines import source_line


@dataclass(frozen=True)
class ProgramCall:
    """An operator call with sizes put in, or the return at the end of a program; calls are compared without lines."""

    what: str
    line: str | None


def program_calls(program: ExportedProgram, rows: int) -> tuple[ProgramCall, ...]:
    """The calls that compute tensors, in order, and what the program returns, for a number of rows."""
    numbers: dict[Node, int] = {}
    following = count()
    calls: list[ProgramCall] = []

    def described(value: Any) -> Any:
        if isinstance(value, Node) and not is_number(value):
            return f"%{numbers.get(value)}"
        if isinstance(value, Node | torch.SymInt | torch.SymFloat | torch.SymBool):
            return _number(expression(value), rows)
        return _number(sympy.sympify(value), rows) if isinstance(value, float) else str(value)

    def shapes(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return str(value.dtype), [_number(size, rows) for size in shape_of(value)]
        return described(value)

    for node in program.graph_module.graph.nodes:
        has_tensors = node.op != "output" and not is_number(node) and node.meta.get("val") is not None
        if _is_whole(node):
            numbers[node] = numbers[node.args[0]]
            continue
        if has_tensors:
            numbers[node] = next(following)
        if node.op == "output" or (node.op == "call_function" and has_tensors):
            arguments = tree_map(described, (node.args, node.kwargs))
            what = f"{node.target}{arguments} -> {tree_map(shapes, node.meta.get('val'))}"
            calls.append(ProgramCall(what, source_line(node)))
    return tuple(calls)


def first_difference(calls: tuple[ProgramCall, ...], others: tuple[ProgramCall, ...]) -> ProgramCall | None:
    """The first of the other calls that is not the same; None: the programs are the same."""
    for call, other in zip(calls, others, strict=False):
        if call.what != other.what:
            return other
    return None if len(calls) == len(others) else max(calls, others, key=len)[-1]


def _is_whole(node: Node) -> bool:
    """A slice of everything, which torch leaves out where sizes are known."""
    if node.target is not torch.ops.aten.slice.Tensor:
        return False
    given = argument_values(node)
    to_end = given["end"] is None or (isinstance(given["end"], int) and given["end"] >= NO_END)
    return to_end and given["start"] in (None, 0) and given["step"] == 1


def _number(value: sympy.Expr, rows: int) -> str:
    """As text; the only symbol in a program is the number of rows."""
    known = value.subs(dict.fromkeys(value.free_symbols, rows))
    return str(known) if known.is_Integer or not known.is_Number else f"{float(known):g}"
