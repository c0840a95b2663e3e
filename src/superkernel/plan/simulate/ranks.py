"""plan.simulate.ranks: the plans of all ranks and a seed -> what one random interleaving of all their cores does.

Every rank runs its rounds as fast as it can: nothing but its waits for ranks holds it back, so that one may be a round
ahead of another. What the ops compute differs from round to round and from rank to rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..plan import Plan
from ..verify.rank_order import check_orders, match_ranks
from ..verify.validate import Finding
from ..verify.vector_clocks import ClassAgents
from .actors import Actor, Blocked, Moves, interleave
from .memory import Row, Rows
from .rank_launch import RankLaunch, SimulatedRank
from .simulate import FoundErrors
from .windows import LayoutOf, RankMemory, SeenWindow, WindowKey, Windows, usual_layout, windows_of

PAUSES = (0, 0, 1, 10, 100)  # moves between two rounds of a rank


@dataclass(frozen=True)
class RankOutcome(FoundErrors):
    """What happened in all rounds of all ranks."""

    deadlock: tuple[str, ...]  # which core of which rank waits for what
    rounds: dict[int, int] = field(hash=False)  # by global rank: the rounds that have ended
    most_ahead: int  # by how many rounds one rank was ahead of another


def simulate_ranks(
    plans: Sequence[Plan],
    seed: int = 0,
    *,
    rounds: int = 3,
    first_rounds: Mapping[int, int] | None = None,
    layout_of: LayoutOf = usual_layout,
) -> RankOutcome:
    """Run the plans of all ranks of all their groups together, interleaved at random, for some rounds in a row.

    Where the ranks state different collectives nothing runs, as at the first launch of a segment.
    first_rounds: global rank -> the number of the round before its first; 0 for ranks that are not in it.
    layout_of: where the slots of a window lie, as a rank knows it. Tests plant faults with these two.
    """
    ranked, errors = match_ranks(plans)
    if ranked is None:
        return RankOutcome(tuple(errors), (), {}, 0)
    rng, windows, ranks = random.Random(seed), Windows(), dict[int, SimulatedRank]()
    first = first_rounds or {}
    seen = _seen_windows({rank_plan.rank: windows_of(rank_plan.plan, layout_of) for rank_plan in ranked})
    for rank_plan in ranked:
        memory = RankMemory(rank_plan.plan, seen[rank_plan.rank])
        words = {event.label: 0 for event in rank_plan.plan.graph.events}
        before = first.get(rank_plan.rank, 0)
        for window in seen[rank_plan.rank].values():
            windows.arrived.setdefault(window.key, [0] * window.group.size)[window.group.rank] = before
        classes = ClassAgents(rank_plan.plan).classes
        ranks[rank_plan.rank] = SimulatedRank(
            rank_plan.rank, rank_plan.plan, classes, memory, memory.fresh(), words, before
        )
    for rank in ranks.values():
        for _ in range(rounds):
            rank.add_launch(rng, windows, ranks)
    return _Simulation(list(ranks.values()), rng, check_orders(ranked)).run()


def _seen_windows(windows: Mapping[int, dict[str, SeenWindow]]) -> dict[int, dict[str, SeenWindow]]:
    """With the size of every slot: that of the rank that stores into it."""
    cells: dict[tuple[WindowKey, int], int] = {}
    for found in windows.values():
        cells |= {(window.key, window.group.rank): window.layout.slot_bytes for window in found.values()}
    return {
        rank: {
            name: replace(window, cells=tuple(cells[window.key, place] for place in range(window.group.size)))
            for name, window in found.items()
        }
        for rank, found in windows.items()
    }


class _Simulation:
    """All actors of all ranks; for every rank a host begins its rounds and checks them."""

    def __init__(self, ranks: list[SimulatedRank], rng: random.Random, errors: list[Finding]) -> None:
        self.ranks, self.rng, self.errors = ranks, rng, errors
        self.begun = {rank.number: 0 for rank in ranks}
        self.most_ahead = 0

    def run(self) -> RankOutcome:
        reference = None if self.errors else _Reference(self.ranks)  # in a cycle of orders there is none
        teams = [self._team(rank, reference) for rank in self.ranks]
        waiting = interleave(teams, self.rng, lambda: False)
        deadlock = tuple(f"rank {self.ranks[team].number}, {text}" for team, text in _waits(teams, waiting, self.ranks))
        if deadlock:
            self.errors.append(Finding("P4", "deadlock: " + "; ".join(deadlock)))
        found = [error for rank in self.ranks for launch in rank.launches for error in launch.errors]
        errors = tuple(dict.fromkeys([*self.errors, *found]))
        return RankOutcome(errors, deadlock, {rank.number: rank.ended for rank in self.ranks}, self.most_ahead)

    def _team(self, rank: SimulatedRank, reference: _Reference | None) -> list[Actor]:
        team = [Actor("its host", self._host(rank, reference))]
        for core in range(rank.plan.cores):
            team.append(Actor(f"core {core}", self._in_rounds(rank, lambda launch, core=core: launch.core_moves(core))))  # type: ignore[misc]
        if rank.words:
            team.append(Actor("the outside", self._in_rounds(rank, RankLaunch.outside_moves)))
        if any(node.dynamic for node in rank.plan.graph.nodes):
            for launch in rank.launches:
                team.append(Actor("the control agent", launch.control_moves(), serves=True))
        return team

    def _in_rounds(self, rank: SimulatedRank, moves: Callable[[RankLaunch], Moves]) -> Moves:
        for launch in rank.launches:
            yield Blocked(lambda number=launch.number: self.begun[rank.number] > number, "its next round")  # type: ignore[misc]
            yield from moves(launch)
            launch.over += 1

    def _host(self, rank: SimulatedRank, reference: _Reference | None) -> Moves:
        actors = rank.plan.cores + bool(rank.words)
        for launch in rank.launches:
            for node in rank.plan.graph.nodes:
                rank.words.update(dict.fromkeys(node.notifies, 0))  # their receivers have seen them
            self.begun[rank.number] += 1
            self.most_ahead = max(self.most_ahead, max(self.begun.values()) - min(self.begun.values()))
            yield Blocked(lambda launch=launch: launch.over == actors, f"the end of round {launch.number}")  # type: ignore[misc]
            if reference is not None:
                launch.check(*reference.of[rank.number, launch.number])
            rank.ended += 1
            for _ in range(self.rng.choice(PAUSES)):
                yield None


def _waits(teams: list[list[Actor]], waiting: list[Actor], ranks: list[SimulatedRank]) -> Iterator[tuple[int, str]]:
    blocked = set(map(id, waiting))
    for place, (team, rank) in enumerate(zip(teams, ranks, strict=True)):
        for actor in team[1:]:
            if id(actor) in blocked:
                yield place, rank.launches[0].waits_of(actor)


class _Reference:
    """What a serial run of all ranks leaves: round by round, each op when the ranks it waits for have sent."""

    def __init__(self, ranks: Sequence[SimulatedRank]) -> None:
        self.of: dict[tuple[int, int], tuple[Rows, dict[tuple[int, int], int]]] = {}  # (rank, index of its round)
        slots: dict[tuple[WindowKey, int], Row] = {}
        memory = {}
        for rank in ranks:
            rows = {name: row.copy() for name, row in rank.own.items()}
            for name, (window, place) in rank.memory.slots.items():
                rows[name] = slots.setdefault((window.key, place), Row([0] * window.cells[place]))
            memory[rank.number] = rows
        for number in range(len(ranks[0].launches)):
            self._run_round(ranks, number, memory)

    def _run_round(self, ranks: Sequence[SimulatedRank], number: int, memory: Mapping[int, Rows]) -> None:
        sent: set[tuple[WindowKey, int]] = set()
        digests: dict[int, dict[tuple[int, int], int]] = {rank.number: {} for rank in ranks}
        rest = {rank.number: list(rank.plan.graph.order) for rank in ranks}
        while any(rest.values()):
            before = sum(map(len, rest.values()))
            for rank in ranks:
                ops, launch, rows = rest[rank.number], rank.launches[number], memory[rank.number]
                while ops and rank.awaited(ops[0]) <= sent:
                    op = ops.pop(0)
                    digests[rank.number] |= rank.memory.serial_op(op, rows, launch.answers, launch.outside, launch.salt)
                    sent |= rank.sent(op)
            assert sum(map(len, rest.values())) < before, "the ranks have a common order"
        for rank in ranks:
            rows = {name: row.copy() for name, row in memory[rank.number].items()}
            self.of[rank.number, number] = rows, digests[rank.number]
