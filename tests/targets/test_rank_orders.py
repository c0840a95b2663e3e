"""Ranks of overlapping groups tell each other their orders: a circle is found on every rank, and none is invented."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from model.test_rank_sequence import graph_of

from superkernel.errors import LaunchError
from superkernel.model.rank_sequence import RankSequences
from superkernel.targets.ranks.rank_orders import settle_orders

Pairs = tuple[tuple[int, int], ...]
_LIMIT_S = 600.0


class Meeting:
    """What the two ranks of a pair say to each other, each in a thread."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}
        self._change = threading.Condition()

    def tell(self, subject: str, said: Mapping[str, Any]) -> list[Any]:
        with self._change:
            heard = self._said.setdefault(subject, [])
            heard.append(json.dumps(said))
            self._change.notify_all()
            assert self._change.wait_for(lambda: len(heard) == 2, _LIMIT_S), f"a rank was left alone in {subject}"
            return [json.loads(each) for each in heard]


def outcomes(pairs: Pairs, numbers: Sequence[list[int]]) -> list[str]:
    """What each rank raises; `numbers`: the pairs of each rank, in the order of its collectives."""
    meetings = [Meeting() for _ in pairs]
    found = ["it has not ended"] * len(numbers)

    def run(rank: int) -> None:
        sequences = RankSequences(graph_of(rank, pairs, numbers[rank]))
        met = [meetings[number] for number in sorted(numbers[rank])]
        for meeting in met:
            for said in meeting.tell("member", sequences.to_json()):
                sequences.learn(said)
        try:
            settle_orders(sequences, met)
            found[rank] = ""
        except LaunchError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    return found


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7, 8, 9, 12])
@pytest.mark.parametrize("seed", range(3))
def test_a_ring_of_any_length_is_found_on_every_rank_however_groups_are_named(ranks: int, seed: int) -> None:
    """Each rank begins with the pair that it has with the next one; pairs meet in the order of their names."""
    places = list(range(ranks))
    random.Random(seed).shuffle(places)  # place of the pair of a rank and the next
    pairs: list[tuple[int, int]] = [(0, 0)] * ranks
    for rank, place in enumerate(places):
        pairs[place] = (rank, (rank + 1) % ranks)
    numbers = [[places[rank], places[rank - 1]] for rank in range(ranks)]
    texts = outcomes(tuple(pairs), numbers)
    assert len(set(texts)) == 1
    assert "would wait for each other for ever" in texts[0] and texts[0].count("waits in") == ranks
    assert outcomes(tuple(pairs), [sorted(each) for each in numbers]) == [""] * ranks


def test_a_row_of_pairs_is_no_circle() -> None:
    row = tuple((rank, rank + 1) for rank in range(6))
    numbers = [[0], *([rank, rank - 1] for rank in range(1, 6)), [5]]
    assert outcomes(row, numbers) == [""] * 7
