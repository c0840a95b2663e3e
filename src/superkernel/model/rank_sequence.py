"""rank_sequence: in which order each rank arrives at collectives and waits for them -> where they wait in a circle.

Groups that overlap only in part may be used in orders that no pair of ranks can see to be wrong. A rank tells the ranks
of each of its groups what it knows of the orders of all, until each knows of all. What is not known of a rank is taken
to be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .graph import Graph

Meeting = tuple[str, tuple[int, ...], int]  # name and ranks of a group; the place of a collective among those of it


@dataclass(frozen=True)
class RankEvent:
    """A rank arrives at a collective, or waits until all ranks of the group have."""

    arrives: bool
    meeting: Meeting
    name: str  # of the collective, for people

    @property
    def group(self) -> str:
        name, ranks, _ = self.meeting
        return f"{name} ({','.join(map(str, ranks))})"


def rank_events(*graphs: Graph) -> tuple[RankEvent, ...]:
    """In the serial order of the graphs, which run one after the other."""
    places: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found: list[RankEvent] = []
    for graph in graphs:
        arrivals: dict[int, list[RankEvent]] = {}
        waits: dict[int, list[RankEvent]] = {}
        for collective in graph.collectives:
            key = collective.group.name, collective.group.ranks
            meeting = (*key, places[key])
            places[key] += 1
            if collective.sender is not None:
                arrivals.setdefault(collective.sender, []).append(RankEvent(True, meeting, collective.name))
            for receiver in collective.receivers:
                waits.setdefault(receiver, []).append(RankEvent(False, meeting, collective.name))
        found += [event for op in graph.order for events in (waits, arrivals) for event in events.get(op, ())]
    return tuple(found)


class RankSequences:
    """What a rank knows of the events of all ranks."""

    def __init__(self, *graphs: Graph) -> None:
        """`graphs`: of this rank, one after the other."""
        groups = {each.group.name: each.group for graph in graphs for each in graph.collectives}
        self._known: dict[int, tuple[RankEvent, ...]] = {}
        if groups:  # a rank of one group waits for no other group: it is no part of a circle
            rank = next(iter(groups.values())).global_rank
            self._known[rank] = rank_events(*graphs) if len(groups) > 1 else ()

    def to_json(self) -> dict[str, list[list[object]]]:
        return {
            str(rank): [[event.arrives, *event.meeting, event.name] for event in events]
            for rank, events in self._known.items()
        }

    def learn(self, told: Mapping[str, Iterable[Sequence[object]]]) -> None:
        """What another rank knows, as `to_json` wrote it."""
        for rank, events in told.items():
            self._known.setdefault(int(rank), tuple(map(_event, events)))

    @property
    def turns(self) -> int:
        """How often all ranks must tell the ranks of their groups what they know, until each knows of all.

        As often as there are groups between the two ranks that are farthest apart. All ranks find the same number,
        some of them sooner; a rank that does not know of all ranks yet finds one turn for each rank of which it has
        heard, which is no fewer.
        """
        groups = {event.meeting[1] for events in self._known.values() for event in events}
        neighbours: dict[int, set[int]] = {rank: set() for ranks in groups for rank in ranks}
        for ranks in groups:
            for rank in ranks:
                neighbours[rank].update(ranks)
        if not neighbours.keys() <= self._known.keys():
            return len(neighbours)
        return max((_farthest(rank, neighbours) for rank in neighbours), default=0)

    def circle(self) -> str:
        """The ranks that would wait for each other, in words; "": none would."""
        return find_circle(self._known)


def _event(fields: Sequence[object]) -> RankEvent:
    arrives, group, ranks, place, name = fields
    assert isinstance(ranks, Sequence) and isinstance(place, int)
    return RankEvent(bool(arrives), (str(group), tuple(ranks), place), str(name))


def _farthest(rank: int, neighbours: Mapping[int, set[int]]) -> int:
    """Steps from a rank to the one that is farthest away."""
    seen, edge, steps = {rank}, {rank}, 0
    while edge := {other for place in edge for other in neighbours[place]} - seen:
        seen |= edge
        steps += 1
    return steps


def find_circle(known: Mapping[int, Sequence[RankEvent]]) -> str:
    """Lets all ranks run as far as they can; those that are left wait for each other."""
    reached = dict.fromkeys(known, 0)
    arrived: set[tuple[int, Meeting]] = set()
    expected = {(rank, event.meeting) for rank, events in known.items() for event in events if event.arrives}

    def missing(event: RankEvent) -> list[int]:
        """The ranks that will arrive there, and have not."""
        ranks = event.meeting[1]
        return [rank for rank in ranks if (rank, event.meeting) in expected and (rank, event.meeting) not in arrived]

    moved = True
    while moved:
        moved = False
        for rank, events in known.items():
            while reached[rank] < len(events):
                event = events[reached[rank]]
                if event.arrives:
                    arrived.add((rank, event.meeting))
                elif missing(event):
                    break
                reached[rank] += 1
                moved = True
    stuck = {rank: events[reached[rank]] for rank, events in known.items() if reached[rank] < len(events)}
    return "; ".join(
        f"rank {rank} waits in {event.name!r} of group {event.group} for {_ranks(missing(event))}"
        for rank, event in sorted(stuck.items())
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
