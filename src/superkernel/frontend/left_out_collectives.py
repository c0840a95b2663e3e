"""frontend.left_out_collectives: collectives that torch runs on this rank -> the other ranks are told so, once.

All ranks of a group must leave out the same collectives. A rank that fuses what another leaves to torch would wait for
it in vain: it learns from the store that it need not wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import LaunchError, UnsupportedError
from ..targets.collectives import CollectiveSupport
from .capture.partition import GraphPart
from .collective_calls import WAIT, collectives_of, communicates
from .process_groups import find_process_group, find_session
from .run_parts import PartFunction
from .segments import ProgramStep, TorchCall

LeftOut = Mapping[str, str]  # name of a process group -> why torch runs collectives of it


def group_names(part: GraphPart) -> set[str]:
    """Of the process groups of its collectives."""
    calls = (node for node in part.module.graph.nodes if str(node.target).startswith("_c10d_functional."))
    return {node.args[-1] for node in calls if node.args and isinstance(node.args[-1], str)}


def left_out_of(steps: Sequence[ProgramStep]) -> LeftOut:
    """The groups of collectives that torch runs between segments."""
    found: dict[str, str] = {}
    for step in steps:
        if not isinstance(step, TorchCall) or not communicates(name := step.call.op._schema.name) or name == WAIT:
            continue
        try:
            names = [collective.group_name for collective in collectives_of(step.call)]
        except UnsupportedError:
            continue  # of an operator that no rank fuses
        found |= {group: f"{name}: {step.why.reason}" for group in names if isinstance(group, str)}
    return found


def tell_ranks(left_out: LeftOut, support: CollectiveSupport) -> None:
    """Tells the ranks of each group that this rank leaves collectives to torch. Nothing waits here."""
    for name, reason in sorted(left_out.items()):
        try:
            found = find_process_group(name)
        except UnsupportedError:
            continue  # torch says what is wrong with it
        session = find_session(found)
        if session is not None and found.group.size > 1 and len(set(session.hosts)) == 1:
            with suppress(LaunchError):  # torch needs no store from here on
                support.leave_out(found.store, found.group, session, reason)


def telling_ranks(
    function: PartFunction, names: Collection[str], reason: str, support: CollectiveSupport
) -> PartFunction:
    """A part that torch runs; before its first call the other ranks are told."""
    left_out = {name: reason or "the collective lies outside of all scopes" for name in names}
    untold = [left_out]

    def call(args: list[Any]) -> Sequence[Any]:
        if untold:
            tell_ranks(untold.pop(), support)
        return function(args)

    return call
