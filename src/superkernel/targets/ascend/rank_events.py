"""targets.ascend.rank_events: the collectives of a graph -> external events between ranks, and the proof of P23.

A chip has no word that counts rounds; it has events, words that are 0 or 1. The sender of a collective notifies one
event for each other rank; an op that reads the window receives one from each. The rank that waits for an event resets
it at the end of its launch. Windows and the words of these events exist twice, and the launches of a rank use them in
turn: when a rank notifies an event in launch n, the rank that waits for it has reset it in launch n - 2. For it has
waited, in launch n - 1, for that rank, which arrived there after its launch n - 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import GraphError, UnsupportedError, shown
from ...model.collectives import Collective
from ...model.graph import Graph
from ...model.node import Node
from ...model.ranks import RankSync
from ...plan.plan import BasePlan
from ...plan.steps import Notify
from ...plan.verify.agents import Fault, named, steps_of


@dataclass(frozen=True)
class RankEvent:
    """One rank of a group tells another that it has arrived at a collective; both are places in the group."""

    collective: str
    sender: int
    receiver: int

    @property
    def label(self) -> str:
        return f"arrival at {self.collective}, {self.sender} to {self.receiver}"


def with_rank_events(graph: Graph) -> Graph:
    """The same graph, whose ops send and receive the events of its collectives."""
    between = [collective for collective in graph.collectives if collective.group.size > 1]
    if between and graph.part:
        node = graph.nodes[_first_op(between[0])]
        raise UnsupportedError(
            f"super_kernel_scope {shown(graph.name)}: op {shown(node.name)} synchronises with the ranks of "
            f"{between[0].group}; on the ascend target its collective runs inside one super kernel, not op by op"
        )
    taken = rank_labels(graph)
    for label in (label for node in graph.nodes for label in (*node.sends, *node.receives)):
        if label in taken:
            raise GraphError(
                f"super_kernel_scope {shown(graph.name)}: event {shown(label)} is called like one between ranks; "
                "rename it"
            )
    return replace(graph, nodes=tuple(map(_with_events, graph.nodes))) if between else graph


def rank_events(collective: Collective) -> tuple[list[RankEvent], list[RankEvent]]:
    """What this rank sends at a collective, and what it waits for."""
    group, name = collective.group, collective.name
    others = [place for place in range(group.size) if place != group.rank]
    sent = [RankEvent(name, group.rank, other) for other in others]
    return sent, [RankEvent(name, other, group.rank) for other in others]


def rank_labels(graph: Graph) -> frozenset[str]:
    """The labels of all events between ranks that ops of the graph send or receive."""
    found = (events for collective in graph.collectives for events in rank_events(collective))
    return frozenset(event.label for events in found for event in events)


def check_rank_events(plan: BasePlan, fault: Fault) -> None:
    """P23. That a notify comes after all cores of its op, that no core of a receiver begins before its events are seen,
    and that no notify stands behind a wait of a later op, is P6; that each word is reset, P7."""
    for collective in plan.graph.collectives:
        if collective.group.size == 1:
            continue
        sent, awaited = ([event.label for event in events] for events in rank_events(collective))
        if collective.sender is not None:
            _check_events(plan, collective.sender, plan.graph.nodes[collective.sender].notifies, sent, fault)
        for op in collective.receivers:
            _check_events(plan, op, plan.graph.nodes[op].awaits, awaited, fault)
        if not collective.receivers:
            fault("P23", f"no op waits for collective {collective.name!r}: its window could be overwritten in use")
    _check_order(plan, fault)


def _check_events(plan: BasePlan, op: int, found: tuple[str, ...], wanted: list[str], fault: Fault) -> None:
    for label in wanted:
        if label not in found:
            fault("P23", f"{named(plan, op)} has no part in {label}")


def _check_order(plan: BasePlan, fault: Fault) -> None:
    """Every rank notifies the collectives in the same order: the one of the serial order."""
    owner = {event.label: each.name for each in plan.graph.collectives for event in rank_events(each)[0]}
    notified = [owner[step.event] for step in steps_of(plan, Notify) if step.event in owner]
    order = list(dict.fromkeys(notified))
    expected = [each.name for each in plan.graph.collectives if each.group.size > 1 and each.sender is not None]
    if order != expected:
        fault("P23", f"collectives are notified in the order {order}; the other ranks expect {expected}")


def _first_op(collective: Collective) -> int:
    return collective.receivers[0] if collective.sender is None else collective.sender


def _with_events(node: Node) -> Node:
    sent = [event.label for sync in node.sends_to_ranks for event in _events_of(sync)]
    awaited = [event.label for sync in node.waits_for_ranks for event in _events_of(sync)]
    if not sent and not awaited:
        return node
    return replace(
        node,
        sends=(*node.sends, *sent),
        receives=(*node.receives, *awaited),
        notifies=(*node.notifies, *sent),
        awaits=(*node.awaits, *awaited),
    )


def _events_of(sync: RankSync) -> list[RankEvent]:
    sent, awaited = rank_events(Collective(sync.collective, sync.group, sync.window, None, ()))
    return sent if sync.sends else awaited
