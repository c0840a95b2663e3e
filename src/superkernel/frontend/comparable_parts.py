"""frontend.comparable_parts: a part of a graph -> whether it may run several times on trial, and what it writes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from .capture.fusibility import Unfusible
from .capture.partition import GraphPart
from .capture.written_arguments import written_values
from .lowering.program_trace import LibraryCall
from .segments import MatchedProgram

_TORCH = ("aten", "prims")  # namespaces of operators without effects beyond their arguments


def library_calls(matched: MatchedProgram) -> list[int]:
    """The calls that have a sub-kernel and could be left to torch, as indices among the calls of the program."""
    return [
        index
        for index, (call, match) in enumerate(matched.calls)
        if isinstance(call, LibraryCall) and isinstance(match, list) and not _writes_arguments(call.op)
    ]


def is_comparable(part: GraphPart, matched: MatchedProgram) -> bool:
    """Whether stock Inductor could be faster, and trial runs have no effect that the user sees.

    Without library calls Inductor would run the same kernels, one launch each. Random numbers would be others.
    Operators that are neither torch's nor have a sub-kernel may do anything. A collective needs the other ranks.
    """
    if not library_calls(matched) or matched.has_collectives:
        return False
    foreign = (
        isinstance(match, Unfusible) and isinstance(call, LibraryCall) and call.op.namespace not in _TORCH
        for call, match in matched.calls
    )
    return not any(foreign) and all(map(_is_plain, part.nodes))


def _is_plain(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return is_operator and torch.Tag.nondeterministic_seeded not in node.target.tags


def written_inputs(part: GraphPart) -> list[int]:
    """The inputs that the part writes, directly or through views."""
    placeholders = [node for node in part.module.graph.nodes if node.op == "placeholder"]
    found: set[int] = set()
    for node in part.module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            bases = map(_base, written_values(node.target, node.args, node.kwargs))
            found |= {placeholders.index(base) for base in bases if base in placeholders}
    return sorted(found)


def _base(value: Any) -> Any:
    """What a chain of views begins with."""
    while isinstance(value, Node) and getattr(value.target, "is_view", False):
        value = value.args[0]
    return value


def _writes_arguments(overload: Any) -> bool:
    """It writes an argument that is not an `out`."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out
        for argument in overload._schema.arguments
    )


class TrialInputs:
    """The inputs of a call for trial runs: those that are written are copies, restored before each run."""

    def __init__(self, args: Sequence[Any], written: Sequence[int]) -> None:
        self._originals = {index: args[index] for index in written}
        self.args = list(args)
        for index, original in self._originals.items():
            self.args[index] = torch.empty_strided(
                original.size(), original.stride(), dtype=original.dtype, device=original.device
            )
        self.restore()

    def restore(self) -> None:
        for index, original in self._originals.items():
            self.args[index].copy_(original)
