"""ranks: the processes that run one model together: a group of ranks, and how an op synchronises with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import GraphError, shown
from .json_value import JsonValue, located
from .params import check_name
from .plain_values import truth_value, whole_number

MOST_RANKS = 1 << 10  # of one group, on one machine
_MOST_RANK = 2**31 - 1


@dataclass(frozen=True)
class RankGroup:
    """Processes that take part in collectives together, each known by its global rank."""

    name: str
    ranks: tuple[int, ...]  # the global ranks, in the order of the group
    rank: int  # the place of this process in `ranks`

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a group of ranks")
        where = f"group {shown(self.name)}: "
        given: object = self.ranks
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise GraphError(f"{where}ranks is a list of whole numbers, not {shown(given)}")
        ranks = [whole_number(rank) for rank in given]
        if any(rank is None or not 0 <= rank <= _MOST_RANK for rank in ranks):
            raise GraphError(f"{where}ranks is {shown(self.ranks)}; each must be a whole number from 0")
        if not 1 <= len(ranks) <= MOST_RANKS or len(set(ranks)) < len(ranks):
            raise GraphError(f"{where}ranks is {shown(self.ranks)}; 1 to {MOST_RANKS} different ranks are needed")
        place = whole_number(self.rank)
        if place is None or not 0 <= place < len(ranks):
            raise GraphError(
                f"{where}rank is {shown(self.rank)}; it is the place of this process among the {len(ranks)} ranks, "
                f"from 0 to {len(ranks) - 1}"
            )
        object.__setattr__(self, "ranks", tuple(ranks))
        object.__setattr__(self, "rank", place)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def global_rank(self) -> int:
        """The global rank of this process."""
        return self.ranks[self.rank]

    def __str__(self) -> str:
        return f"{self.name} ({','.join(map(str, self.ranks))})"


@dataclass(frozen=True)
class RankSync:
    """How an op synchronises with the same op of the other ranks of a group, through a window in shared memory.

    sends: when the op is done, this rank has arrived at `collective`. Otherwise the op begins when all ranks have.
    """

    collective: str
    group: RankGroup
    window: str  # the name of the op's argument that all ranks of the group see
    sends: bool
    terms: str = ""  # what all ranks must agree on beside the kernels: reduction, number of elements, ...

    def __post_init__(self) -> None:
        check_name(self.collective, "the name of a collective")
        where = f"collective {shown(self.collective)}: "
        if not isinstance(self.group, RankGroup):
            raise GraphError(f"{where}group is {shown(self.group)}; a RankGroup is needed")
        check_name(self.window, f"{where}the window")
        sends = truth_value(self.sends)
        if sends is None:
            raise GraphError(f"{where}sends is {shown(self.sends)}; True or False is needed")
        object.__setattr__(self, "sends", sends)
        if not isinstance(self.terms, str):
            raise GraphError(f"{where}terms is {shown(self.terms)}; a text is needed")


def checked_ranks(given: object, where: str) -> tuple[RankSync, ...]:
    """The `ranks` of an op, as a tuple."""
    if isinstance(given, RankSync):
        return (given,)
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise GraphError(f"{where}ranks is a list of RankSync, not {shown(given)}")
    for sync in given:
        if not isinstance(sync, RankSync):
            raise GraphError(f"{where}ranks contains {shown(sync)}, which is no RankSync")
    if len({(sync.collective, sync.sends) for sync in given}) < len(given):
        raise GraphError(f"{where}ranks names a collective twice")
    return tuple(given)


def ranks_to_json(syncs: Sequence[RankSync]) -> list[dict[str, object]]:
    """As `ranks` of an op in ops.json."""
    return [
        {
            "collective": sync.collective,
            "group": {"name": sync.group.name, "ranks": list(sync.group.ranks), "rank": sync.group.rank},
            "window": sync.window,
            "sends": sync.sends,
            "terms": sync.terms,
        }
        for sync in syncs
    ]


def ranks_from_json(value: JsonValue) -> tuple[RankSync, ...]:
    """What `ranks_to_json` wrote, or a person; an error names the field."""
    return tuple(_rank_sync(item) for item in value.items())


def group_from_json(value: JsonValue) -> RankGroup:
    """{"name", "ranks", "rank"}"""
    fields = value.fields(("name", "ranks", "rank"), required=("name", "ranks", "rank"))
    with located(value):
        ranks = tuple(item.whole() for item in fields["ranks"].items())
        return RankGroup(fields["name"].text(), ranks, fields["rank"].whole())


def _rank_sync(value: JsonValue) -> RankSync:
    required = ("collective", "group", "window", "sends")
    fields = value.fields((*required, "terms"), required=required)
    group = group_from_json(fields["group"])
    with located(value):
        return RankSync(
            fields["collective"].text(),
            group,
            fields["window"].text(),
            fields["sends"].truth(),
            fields["terms"].line() if "terms" in fields else "",
        )
