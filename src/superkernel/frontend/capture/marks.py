"""frontend.capture.marks: an AOTAutograd graph in; the scope mark of every op and the options of every scope out."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node
from torch.fx.traceback import GRADIENT_ACC_SPECIAL_STACK

from ...errors import OptionError
from ...model.options import Options
from ..scope import ANNOTATION, check
from .source_lines import opening_line

_NEUTRAL = ("placeholder", "get_attr", "output")
_TRACED = frozenset({"stack_trace", "from_node", "original_aten", "seq_nr"})  # keys that tracing writes


@dataclass(frozen=True)
class ScopeMark:
    """The arguments of the innermost `with super_kernel(...)` around an op, as written; no name excludes the op."""

    scope: str | None
    options: str = ""


def mark_of(node: Node) -> ScopeMark | None:
    """The mark that tracing left on the node."""
    custom = node.meta.get("custom")
    written = custom.get(ANNOTATION) if isinstance(custom, dict) else None
    return None if written is None else ScopeMark(*written)


def read_marks(graph: Graph) -> dict[Node, ScopeMark | None]:
    """The mark of every op, also of those that AOTAutograd added after tracing; None: the op is unmarked."""
    traced = {node: mark_of(node) for node in graph.nodes if node.op not in _NEUTRAL}
    origins: dict[Node, ScopeMark | None] = {}  # the mark of the op that computed the node's value
    from_inputs: set[Node] = set()  # views and sizes of the graph's inputs
    for node, mark in traced.items():
        values, later = _values(node), _inserted_later(node)
        computed = [value for value in values if value in origins and not (later and value in from_inputs)]
        origins[node] = mark or _common([origins[value] for value in computed])
        if (later or _computes_nothing(node)) and all(value.op in _NEUTRAL or value in from_inputs for value in values):
            from_inputs.add(node)
    marks = dict(traced)
    # Backwards, so that the marks of a node's users are final when the node is reached.
    for node in reversed([node for node, mark in traced.items() if mark is None]):
        origin = origins[node]
        users = [marks[user] for user in node.users if user.op != "output"]
        if _writes_an_input(node) or _adds_gradients(node):
            marks[node] = origin
        elif _inserted_later(node):
            marks[node] = origin or (_common(users) if node in from_inputs else None)
        elif _computes_nothing(node):
            marks[node] = _common([origin, *users]) or (_common(users) if node in from_inputs else None)
    return marks


def _common(marks: list[ScopeMark | None]) -> ScopeMark | None:
    """The first of the marks if all name one scope."""
    first = marks[0] if marks else None
    return first if first and all(mark and mark.scope == first.scope for mark in marks) else None


def _values(node: Node) -> list[Node]:
    """The nodes from which an unmarked node takes its value; none for an op that computes."""
    if _writes_an_input(node):
        return [value for value in node.args[1:2] if isinstance(value, Node)]
    if _is_view(node):
        return [value for value in node.args[:1] if isinstance(value, Node)]
    follows = _computes_nothing(node) or _adds_gradients(node) or _inserted_later(node)
    return list(node.all_input_nodes) if follows else []


def _writes_an_input(node: Node) -> bool:
    """AOTAutograd computes the new value of a mutated input and copies it back at the end."""
    return node.target is torch.ops.aten.copy_.default


def _adds_gradients(node: Node) -> bool:
    return GRADIENT_ACC_SPECIAL_STACK in (node.meta.get("stack_trace") or "")


def _inserted_later(node: Node) -> bool:
    """A graph pass inserted it after tracing, as for a Python float that became an input."""
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


def scope_options(marks: Mapping[Node, ScopeMark | None], default: str = "") -> dict[str, Options]:
    """The options of every name in the graph; `default` where all of its blocks leave them empty."""
    found: dict[str, tuple[Options, ScopeMark, Node] | None] = {}
    for node, mark in marks.items():
        if mark is None:
            continue
        try:
            options = check(mark.scope, mark.options)
        except OptionError as error:
            raise OptionError(f"{error} (at {opening_line(node)})") from None
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
                f"{opening_line(earlier[2])}, and {mark.options!r} at {opening_line(node)}; "
                "give them in one place and leave them empty in the others, or name two scopes"
            )
    return {name: Options.parse(default) if given is None else given[0] for name, given in found.items()}
