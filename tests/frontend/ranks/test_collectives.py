"""Functional collectives through torch.compile, between processes: one super kernel, the bits of a serial reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from frontend.ranks.cases import CASES, make_groups, overlapped, run_case
from frontend.ranks.rank_processes import RankProcesses, rank_processes

# by case: collectives, and waits for ranks of one core; a group of one rank waits for none
COUNTS = {
    "sums_of_every_dtype": (7, 7),
    "every_reduction": (10, 10),
    "moves_of_every_dtype": (33, 33),
    "gathers": (4, 4),
    "scatters": (2, 2),
    "exchanges": (2, 2),
    "coalesced": (6, 6),
    "ops_between_start_and_wait": (3, 3),
    "large": (2, 3),
    "other_ops_on_one_rank": (2, 4),
    "permuted": (3, 4),
    "empty_and_single": (1, 1),
    "several_groups": (5, 2),
    "groups_of_one_behind_each_other": (3, 1),
    "reduction_then_norm": (1, 1),
    "updated_inputs": (1, 1),
    "unused_result": (1, 1),
}

QUICK = ("several_groups",)
LONG = pytest.mark.conformance


def check(ranks: RankProcesses, name: str) -> None:
    outcomes = ranks.call(run_case, name)
    for outcome in outcomes:
        (segment,) = outcome.segments
        collectives, syncs = COUNTS[name]
        assert segment["collectives"] == collectives
        assert segment["awaits"] == segment["notifies"] == syncs
        assert outcome.torch_calls == []
    if CASES[name].alike:
        assert len({outcome.digest for outcome in outcomes}) == 1


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=LONG) for name in COUNTS])
def test_collectives_are_ops_of_one_super_kernel(pair: RankProcesses, name: str) -> None:
    check(pair, name)


@LONG
@pytest.mark.parametrize("is_used_together", [False, True])
def test_ops_between_start_and_wait_run_while_other_ranks_arrive(pair: RankProcesses, is_used_together: bool) -> None:
    """With two cores: both publish, multiply, then wait for ranks, and reduce a half each."""
    for overlap in pair.call(overlapped, is_used_together):
        steps = [(kind, name) for kind, name, _ in overlap["order"]]
        notify, wait = steps.index(("notify", "all_reduce_0_publish")), steps.index(("await", "all_reduce_0_reduce"))
        assert notify < steps.index(("call", "mm_2")) < wait
        assert overlap["blocks"]["all_reduce_0_reduce"] == 2 and overlap["order"][wait][2] == (0, 1)


def test_every_case_is_counted() -> None:
    assert set(COUNTS) == set(CASES)


@pytest.mark.conformance
@pytest.mark.parametrize("name", [name for name in COUNTS if name != "several_groups"])  # counted for two ranks
def test_three_ranks(three: RankProcesses, name: str) -> None:
    check(three, name)


@pytest.fixture(scope="module")
def three() -> Iterator[RankProcesses]:
    with rank_processes(3) as ranks:
        ranks.call(make_groups, ["0", "1", "2", "0,1"])
        yield ranks
