"""targets.ranks.membership: ranks introduce themselves -> they may share memory, or an error on all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ...errors import LaunchError, UnsupportedError
from ...model.rank_sequence import RankSequences
from ...model.ranks import RankGroup
from .process_identity import ProcessIdentity, host_id
from .store_exchange import Missing, Said, StoreExchange, names_of


class GivenUpError(Exception):
    """A rank has waited for this one for too long, and has given up this attempt to share memory."""


def introduce(
    exchange: StoreExchange,
    group: RankGroup,
    windows: Mapping[str, int],
    digest: str,
    listing: Sequence[str],
    folder: Path,
    ended: Callable[[Missing], str] = lambda missing: "",
    sequences: RankSequences | None = None,
) -> list[Said]:
    """What every rank says of itself, once all can share memory and have the same collectives.

    GivenUpError: one has given up waiting for the others.
    """
    host = host_id(folder)
    exchange.say(
        "member",
        {
            "host": host,
            "user": os.getuid(),
            "process": asdict(ProcessIdentity.current()),
            "digest": digest,
            "listing": list(listing),
            "slots": list(windows.values()),
            "sequences": {} if sequences is None else sequences.to_json(),
        },
    )
    members = exchange.hear_all("member", ended)
    if any(member.get("given_up") for place, member in enumerate(members) if place != group.rank):
        raise GivenUpError
    where = f"collectives of group {group}: "
    _raise_errors(group, [place for place, member in enumerate(members) if "digest" not in member], members, where)
    mine = members[group.rank]
    apart = [place for place, member in enumerate(members) if member["host"] != mine["host"]]
    if apart:
        raise UnsupportedError(
            f"{where}collective across machines: {names_of(group, apart)} does not share memory with "
            f"{names_of(group, [group.rank])}"
        )
    others = [place for place, member in enumerate(members) if member["user"] != mine["user"]]
    if others:
        raise LaunchError(
            f"{where}{names_of(group, others)} belongs to user {members[others[0]]['user']} and "
            f"{names_of(group, [group.rank])} to user {mine['user']}; shared memory is for one user"
        )
    _compare(group, members, where)
    if sequences is not None:
        for member in members:
            sequences.learn(member["sequences"])
    _raise_errors(group, range(group.size), members, where)
    return members


def _raise_errors(group: RankGroup, places: Sequence[int], members: Sequence[Said], where: str) -> None:
    for place in places:
        if "error" in members[place]:
            raise LaunchError(f"{where}{names_of(group, [place])}: {members[place]['error']}")


def _compare(group: RankGroup, members: Sequence[Said], where: str) -> None:
    """Every rank compares all with the first of the group, and so raises the same error."""
    first = members[0]
    for place, member in enumerate(members):
        same = member["digest"] == first["digest"] and len(member["slots"]) == len(first["slots"])
        if same:
            continue
        raise LaunchError(
            f"{where}{names_of(group, [0])} and {names_of(group, [place])} have different collectives: "
            f"{_difference(group, first, member, place)}. Nothing was run. All ranks must run the same model with the "
            "same shapes, dtypes and order of collectives, and ops that are not fused between the same collectives"
        )


def _difference(group: RankGroup, first: Said, other: Said, place: int) -> str:
    here, there = names_of(group, [0]), names_of(group, [place])
    for number, (left, right) in enumerate(zip(first["listing"], other["listing"], strict=False)):
        if left != right:
            return f"number {number} is {left!r} on {here} and {right!r} on {there}"
    counts = len(first["listing"]), len(other["listing"])
    if counts[0] != counts[1]:
        longer = max(first["listing"], other["listing"], key=len)
        extra = longer[min(counts)]
        return f"{here} has {counts[0]} and {there} has {counts[1]}; the first that one lacks is {extra!r}"
    return f"{len(first['slots'])} windows on {here} and {len(other['slots'])} on {there}"
