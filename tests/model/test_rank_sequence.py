"""Orders of collectives in groups that overlap: where ranks would wait in a circle, and where they would not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.params import Param
from superkernel.model.rank_sequence import RankSequences, find_circle, rank_events
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.model.subkernel import Binary, Form, SubKernel

RING = ((0, 1), (1, 2), (2, 0))


def kernel(name: str, params: list[str]) -> SubKernel:
    return SubKernel(name, Binary(Form.SOURCE, Path("ranks.cpp")), 1, tuple(map(Param.parse, params)))


PUBLISH = kernel("publish", ["in:x:uint8[8]", "out:w:uint8[1024]"])
COLLECT = kernel("collect", ["in:w:uint8[1024]", "out:y:uint8[8]"])


def graph_of(rank: int, pairs: tuple[tuple[int, int], ...], numbers: list[int], starts_first: bool = False) -> Graph:
    """The collectives of some pairs, in that order; `starts_first`: all begin before the first is waited for."""
    starts, finishes = [], []
    for number in numbers:
        group = RankGroup(f"pair{number}", pairs[number], pairs[number].index(rank))
        name, window = f"sum{number}", f"w{number}"
        starts.append(Op(PUBLISH, ["x", window], f"start{number}", ranks=RankSync(name, group, window, True)))
        finish = Op(COLLECT, [window, f"y{number}"], f"finish{number}", ranks=RankSync(name, group, window, False))
        finishes.append(finish)
    joined = [op for pair in zip(starts, finishes, strict=True) for op in pair]
    return build_graph([*starts, *finishes] if starts_first else joined, f"rank{rank}")


def ring_graphs(ordered: bool, starts_first: bool = False) -> list[Graph]:
    """Each rank begins with the pair that it has with the next rank; `ordered`: with the pair that comes first."""
    graphs = []
    for rank in range(3):
        numbers = [rank, (rank - 1) % 3]
        graphs.append(graph_of(rank, RING, sorted(numbers) if ordered else numbers, starts_first))
    return graphs


def test_ranks_that_would_wait_in_a_circle_are_named_with_collectives_and_groups() -> None:
    known = {rank: rank_events(graph) for rank, graph in enumerate(ring_graphs(ordered=False))}
    assert find_circle(known) == (
        "rank 0 waits in 'sum0' of group pair0 (0,1) for rank 1; "
        "rank 1 waits in 'sum1' of group pair1 (1,2) for rank 2; "
        "rank 2 waits in 'sum2' of group pair2 (2,0) for rank 0"
    )


@pytest.mark.parametrize(("ordered", "starts_first"), [(True, False), (False, True), (True, True)])
def test_a_common_order_and_collectives_that_all_begin_first_are_no_circle(ordered: bool, starts_first: bool) -> None:
    graphs = ring_graphs(ordered, starts_first)
    assert find_circle({rank: rank_events(graph) for rank, graph in enumerate(graphs)}) == ""


def test_what_is_not_known_of_a_rank_is_taken_to_be_right() -> None:
    graphs = ring_graphs(ordered=False)
    assert find_circle({rank: rank_events(graphs[rank]) for rank in (0, 1)}) == ""


def test_a_rank_of_one_group_is_known_and_has_nothing_to_tell() -> None:
    assert RankSequences(graph_of(0, RING, [0])).to_json() == {"0": []}


def test_turns_are_the_groups_between_the_ranks_that_are_farthest_apart() -> None:
    """A row of four ranks in three pairs: the ends are in one group each."""
    row = ((0, 1), (1, 2), (2, 3))
    numbers = [[0], [0, 1], [1, 2], [2]]
    sequences = [RankSequences(graph_of(rank, row, numbers[rank])) for rank in range(4)]
    assert sequences[0].turns == 0  # its group is all that it knows
    assert sequences[1].turns == 3  # of three ranks it has heard
    for first in sequences:
        for second in sequences:
            first.learn(json.loads(json.dumps(second.to_json())))
    assert [each.turns for each in sequences] == [3] * 4
