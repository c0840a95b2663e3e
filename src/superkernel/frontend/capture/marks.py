"""frontend.marks: a graph of AOTAutograd comes in, the scope of every op and the options of every scope go out."""

from __future__ import annotations

import ast
import linecache
import operator
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.fx import Graph, Node
from torch.fx.traceback import GRADIENT_ACC_SPECIAL_STACK

from ...errors import OptionError
from ...model.options import Options
from ..scope import ANNOTATION, check
from .scope_detection import is_marked, note_mark, root_callable

__all__ = [
    "Mark",
    "is_marked",
    "mark_of",
    "note_mark",
    "read_marks",
    "root_callable",
    "scope_options",
    "source_line",
]

_NEUTRAL = ("placeholder", "get_attr", "output")
_TRACED = frozenset({"stack_trace", "from_node", "original_aten", "seq_nr"})  # what tracing knows of a node
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))


@dataclass(frozen=True)
class Mark:
    """What the innermost `with` around an op said, as it was written; no name excludes the op."""

    scope: str | None
    options: str = ""


def mark_of(node: Node) -> Mark | None:
    """The mark that tracing left on the node."""
    custom = node.meta.get("custom")
    written = custom.get(ANNOTATION) if isinstance(custom, dict) else None
    return None if written is None else Mark(*written)


def read_marks(graph: Graph) -> dict[Node, Mark | None]:
    """The mark of every op, also of those that AOTAutograd added after tracing; None: the op is unmarked."""
    traced = {node: mark_of(node) for node in graph.nodes if node.op not in _NEUTRAL}
    origins: dict[Node, Mark | None] = {}  # the mark of the op that computed the node's value
    from_inputs: set[Node] = set()  # what no op computed: views and sizes of the graph's inputs
    for node, mark in traced.items():
        values = _values(node)
        computed = [value for value in values if value in origins and not (_came_later(node) and value in from_inputs)]
        origins[node] = mark or _common([origins[value] for value in computed])
        free = _computes_nothing(node) or _came_later(node)
        if free and all(value.op in _NEUTRAL or value in from_inputs for value in values):
            from_inputs.add(node)
    marks = dict(traced)
    # Backwards, so that the marks of a node's users are final when the node is reached.
    for node in reversed([node for node, mark in traced.items() if mark is None]):
        origin = origins[node]
        users = [marks[user] for user in node.users if user.op != "output"]
        if _writes_an_input(node) or _adds_gradients(node):
            marks[node] = origin
        elif _came_later(node):
            marks[node] = origin or (_common(users) if node in from_inputs else None)
        elif _computes_nothing(node):
            marks[node] = _common([origin, *users]) or (_common(users) if node in from_inputs else None)
    return marks


def _common(marks: list[Mark | None]) -> Mark | None:
    """The first of the marks if all name one scope."""
    first = marks[0] if marks else None
    return first if first and all(mark and mark.scope == first.scope for mark in marks) else None


def _values(node: Node) -> list[Node]:
    """The nodes that an unmarked node, unless it is an op of its own, has its value from."""
    if _writes_an_input(node):
        return [value for value in node.args[1:2] if isinstance(value, Node)]
    if _is_view(node):
        return [value for value in node.args[:1] if isinstance(value, Node)]
    follows = _computes_nothing(node) or _adds_gradients(node) or _came_later(node)
    return list(node.all_input_nodes) if follows else []


def _writes_an_input(node: Node) -> bool:
    """AOTAutograd computes the new value of a mutated input and copies it back at the end."""
    return node.target is torch.ops.aten.copy_.default


def _adds_gradients(node: Node) -> bool:
    return GRADIENT_ACC_SPECIAL_STACK in (node.meta.get("stack_trace") or "")


def _came_later(node: Node) -> bool:
    """A pass put it in place of an op that was traced, as for a Python float that became an input."""
    return not _TRACED & node.meta.keys()


def _computes_nothing(node: Node) -> bool:
    return _is_view(node) or node.target is operator.getitem or _is_symbolic(node)


def _is_view(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        target.is_view or target is torch.ops.aten._unsafe_view.default
    )


def _is_symbolic(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target.name().startswith(("aten::sym_", "aten::_assert_scalar")))
    sizes = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(node.meta.get("val"), sizes)


def scope_options(marks: Mapping[Node, Mark | None], default: str = "") -> dict[str, Options]:
    """The options of every name in the graph; `default` where all of its blocks leave them empty."""
    found: dict[str, tuple[Options, Mark, Node] | None] = {}
    for node, mark in marks.items():
        if mark is None:
            continue
        try:
            options = check(mark.scope, mark.options)
        except OptionError as error:
            raise OptionError(f"{error} (at {_opening_line(node)})") from None
        if mark.scope is None:
            continue
        earlier = found.setdefault(mark.scope, None)
        if not mark.options.strip():
            continue
        if earlier is None:
            found[mark.scope] = (options, mark, node)
        elif earlier[0] != options:
            raise OptionError(
                f"{ANNOTATION} {mark.scope!r} is given different options: {earlier[1].options!r} at "
                f"{_opening_line(earlier[2])}, and {mark.options!r} at {_opening_line(node)}; "
                "give them in one place and leave them empty in the others, or name two scopes"
            )
    return {name: Options.parse(default) if given is None else given[0] for name, given in found.items()}


@dataclass(frozen=True)
class _Place:
    """One line of one file."""

    file: str
    line: int

    def __str__(self) -> str:
        here = f"{Path.cwd()}{os.sep}"
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.file.removeprefix(here)}:{self.line}: {code}".removesuffix(": ")


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ')


def _user_places(node: Node) -> list[_Place]:
    """Where the op stands in the user's files, the innermost call first."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [
        _Place(file, int(line))
        for file, line in reversed(frames)
        if not file.startswith((*_NOT_THE_USERS, "<eval_with_"))
    ]


def source_line(node: Node) -> str | None:
    """The line of the user's model that the op comes from, as "model.py:12: y = x.sin()"."""
    places = _user_places(node)
    return str(places[0]) if places else None


def _opening_line(node: Node) -> str:
    """The line that opens the scope of the op; the op's own line if that is all that can be found."""
    places = _user_places(node)
    opening = next((opened for place in places for opened in _openings(place)), None)
    return str(opening or (places[0] if places else "an unknown line"))


def _openings(place: _Place) -> Iterator[_Place]:
    """The `with super_kernel(...)` and `@super_kernel(...)` lines around a line, the innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(place.file)))
    except SyntaxError:
        return
    imported = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {"super_kernel", *(alias.asname or alias.name for alias in imported if alias.name == "super_kernel")}
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            openers = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            openers = node.decorator_list
        else:
            continue
        if node.lineno <= place.line <= (node.end_lineno or 0):
            lines += [opener.lineno for opener in openers if _called_name(opener) in names]
    yield from (_Place(place.file, line) for line in sorted(lines, reverse=True))


def _called_name(expression: ast.expr) -> str | None:
    called = expression.func if isinstance(expression, ast.Call) else None
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None
