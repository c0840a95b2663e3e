"""collectives: ops that synchronise with other ranks -> the collectives of a graph, each with its window, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import GraphError, nearest, shown
from .node import Node
from .params import Kind
from .ranks import RankGroup, RankSync


@dataclass(frozen=True)
class Collective:
    """What the ranks of a group do together: `sender` stores into the window, `receivers` read what all have stored.

    Of a graph that is a part of a longer list the sender, or the receivers, may be in another part.
    """

    name: str
    group: RankGroup
    window: str
    sender: int | None  # index of an op
    receivers: tuple[int, ...]  # in the serial order
    terms: str = ""


def find_collectives(nodes: tuple[Node, ...], order: tuple[int, ...], part: bool) -> tuple[Collective, ...]:
    """The collectives in the serial order of their senders, checked; before them those that another part sends.

    part: other ops of the same round, launched before and after these, may send and receive as well.
    """
    if not any(node.ranks for node in nodes):
        return ()
    sent: dict[str, tuple[Node, RankSync]] = {}
    received: dict[str, list[tuple[Node, RankSync]]] = {}
    for index in order:
        node = nodes[index]
        for sync in node.ranks:
            _check_window(node, sync)
            if not sync.sends:
                received.setdefault(sync.collective, []).append((node, sync))
            elif sync.collective in sent:
                first = sent[sync.collective][0].name
                raise GraphError(
                    f"collective {shown(sync.collective)} has two senders: op {shown(first)} and op {shown(node.name)}"
                )
            else:
                sent[sync.collective] = node, sync
    elsewhere = []
    for name, ((node, sync), *others) in received.items():
        if name not in sent and part:
            receivers = tuple(receiver.index for receiver, _ in ((node, sync), *others))
            elsewhere.append(Collective(name, sync.group, sync.window, None, receivers, sync.terms))
        elif name not in sent:
            known = f"op {shown(node.name)} waits for the ranks of collective {shown(name)}"
            raise GraphError(f"{known}, which no op sends{nearest(name, sent)}")
    place = {op: at for at, op in enumerate(order)}
    joined = (_join(node, sync, received.get(name, []), place, part) for name, (node, sync) in sent.items())
    found = (*elsewhere, *joined)
    _check_windows(nodes, found)
    return found


def _join(
    sender: Node, sync: RankSync, receivers: list[tuple[Node, RankSync]], place: Mapping[int, int], part: bool
) -> Collective:
    where = f"collective {shown(sync.collective)}: "
    if not receivers and not part:
        raise GraphError(
            f"{where}op {shown(sender.name)} sends it and no op waits for it; the next launch could then overwrite the "
            f"window {shown(sync.window)} while another rank reads it"
        )
    for node, other in receivers:
        if place[node.index] <= place[sender.index]:
            raise GraphError(
                f"{where}op {shown(node.name)} waits for it before op {shown(sender.name)} has sent it: every rank "
                "would wait for the others"
            )
        if other.window != sync.window:
            windows = f"{shown(sync.window)} in op {shown(sender.name)} and {shown(other.window)} in {shown(node.name)}"
            raise GraphError(f"{where}its window is {windows}")
        if other.group != sync.group:
            groups = f"{sync.group} in op {shown(sender.name)} and {other.group} in op {shown(node.name)}"
            raise GraphError(f"{where}its group is {groups}")
        if other.terms and other.terms != sync.terms:
            terms = f"{shown(sync.terms)} in op {shown(sender.name)} and {shown(other.terms)} in {shown(node.name)}"
            raise GraphError(f"{where}its terms are {terms}")
    indices = tuple(node.index for node, _ in receivers)
    return Collective(sync.collective, sync.group, sync.window, sender.index, indices, sync.terms)


def _check_window(node: Node, sync: RankSync) -> None:
    where = f"op {shown(node.name)}, collective {shown(sync.collective)}: "
    params = [param for param, place in node.places() if place.name == sync.window]
    if not params:
        names = [place.name for _, place in node.places()]
        raise GraphError(
            f"{where}the window {shown(sync.window)} is no argument of the op{nearest(sync.window, names)}"
        )
    wanted = Kind.OUT if sync.sends else Kind.IN
    if any(param.kind is not wanted for param in params) or any(
        place.offset for _, place in node.places() if place.name == sync.window
    ):
        found = ", ".join(str(param.kind.value) for param in params)
        raise GraphError(
            f"{where}the window {shown(sync.window)} must be an `{wanted.value}` argument from its beginning; "
            f"here it is {found}"
        )
    if node.dynamic:
        raise GraphError(f"{where}an op with task='dynamic' cannot synchronise with other ranks")


def _check_windows(nodes: tuple[Node, ...], collectives: tuple[Collective, ...]) -> None:
    """Each window belongs to one collective, and only its ops access it."""
    owner: dict[str, Collective] = {}
    groups: dict[str, RankGroup] = {}
    for collective in collectives:
        first = owner.setdefault(collective.window, collective)
        if first is not collective:
            raise GraphError(
                f"the window {shown(collective.window)} serves the collectives {shown(first.name)} and "
                f"{shown(collective.name)}; each needs a window of its own"
            )
        known = groups.setdefault(collective.group.name, collective.group)
        if known != collective.group:
            raise GraphError(
                f"two groups of ranks are called {shown(known.name)}: {known} as rank {known.rank}, and "
                f"{collective.group} as rank {collective.group.rank}"
            )
    for node in nodes:
        for param, name in node.arguments():
            window = owner.get(name)
            if window is None or node.index == window.sender or node.index in window.receivers:
                continue
            what = "writes" if param.kind.writes else "reads"
            raise GraphError(
                f"op {shown(node.name)} {what} {shown(name)}, the window of collective {shown(window.name)}, and is "
                "neither its sender nor waits for it: give the op a RankSync"
            )
