"""Ranks whose collectives are in different segments make the same memory in one order, and settle their orders once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import permutations
from typing import Any, cast

import pytest
from model.test_rank_sequence import graph_of
from targets.test_rank_orders import Meeting

from superkernel.errors import LaunchError
from superkernel.frontend.program_rounds import ProgramRounds
from superkernel.frontend.rank_rounds import RankRounds
from superkernel.model.rank_sequence import RankSequences
from superkernel.targets.cpu.collectives import CpuCollectives

PAIRS = ((0, 1), (0, 2), (1, 2))


class Segment:
    """The rounds of a segment, whose groups are pairs; their memory is what the two ranks have told each other."""

    def __init__(
        self, rank: int, pairs: Sequence[tuple[int, int]], numbers: list[int], meetings: list[Meeting]
    ) -> None:
        self.graph = graph_of(rank, tuple(pairs), numbers)
        self._meetings = {f"pair{number}": meetings[number] for number in numbers}

    @property
    def group_names(self) -> Any:
        return self._meetings.keys()

    def make_area(self, name: str, sequences: RankSequences) -> None:
        for said in self._meetings[name].tell("member", sequences.to_json()):
            sequences.learn(said)

    def talk(self, name: str) -> Meeting:
        return self._meetings[name]


def outcomes(pairs: Sequence[tuple[int, int]], segments: Sequence[list[list[int]]]) -> list[str]:
    """What each rank raises; `segments`: of each rank, the numbers of the pairs in each."""
    meetings = [Meeting() for _ in pairs]
    found = ["it has not ended"] * len(segments)

    def run(rank: int) -> None:
        rounds = [Segment(rank, pairs, numbers, meetings) for numbers in segments[rank]]
        program = ProgramRounds(cast(list[RankRounds], rounds), {}, CpuCollectives())
        try:
            program.make_areas()
            found[rank] = ""
        except LaunchError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(segments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("divided", range(3))
@pytest.mark.parametrize("named", permutations(PAIRS))
def test_a_rank_may_have_two_segments_where_others_have_one(divided: int, named: Sequence[tuple[int, int]]) -> None:
    """Whatever the order of the names of the groups; the program uses them in the order of PAIRS."""
    used = [[named.index(pair) for pair in PAIRS if rank in pair] for rank in range(3)]
    segments = [[[number] for number in numbers] if rank == divided else [numbers] for rank, numbers in enumerate(used)]
    assert outcomes(named, segments) == [""] * 3


def test_a_circle_through_two_segments_is_found_before_anything_runs() -> None:
    texts = outcomes(PAIRS, [[[0], [1]], [[2, 0]], [[1, 2]]])
    assert len(set(texts)) == 1 and "would wait for each other for ever" in texts[0]
    assert texts[0].count("waits in") == 3
