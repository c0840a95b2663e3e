"""The plans of all ranks together: random programs on several groups validate and run, for rounds in a row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import examples
from plan.rank_strategies import RankCase, awaits, collect, publish, rank_case, rank_cases, sends
from plan.strategies import OPTIONS, PLAIN

from superkernel.model.op import Op
from superkernel.model.ranks import RankGroup
from superkernel.model.window_layout import FAILED, has_arrived
from superkernel.plan import simulate, simulate_ranks, validate_ranks

pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 9999)


@settings(max_examples=examples(120))
@given(rank_cases(options=OPTIONS), SEEDS)
def test_no_interleaving_of_ranks_reads_early_overwrites_or_hangs(case: RankCase, seed: int) -> None:
    report = validate_ranks(case.plans)
    assert report.ok, report
    outcome = simulate_ranks(case.plans, seed)
    assert outcome.ok, outcome
    assert set(outcome.rounds.values()) == {3}


@pytest.mark.conformance
@pytest.mark.parametrize("part", range(10))
def test_many_programs_of_ranks(part: int) -> None:
    for seed in range(1000 * part, 1000 * (part + 1)):
        case = rank_case(seed, 1 + seed % 4, [seed // 4**k % 10 for k in range(seed % 9)], OPTIONS[seed % len(OPTIONS)])
        assert validate_ranks(case.plans).ok, (seed, case)
        outcome = simulate_ranks(case.plans, seed, rounds=4)
        assert outcome.ok, (seed, case, outcome)


def exchange(ranks: int, options: int = 0) -> RankCase:
    """One collective on two cores of each rank."""
    ops = []
    for rank in range(ranks):
        group = RankGroup("tp", tuple(range(ranks)), rank)
        start = Op(publish(2), ["x", "window_c"], ranks=[sends("c", group)])
        ops.append((start, Op(collect(2), ["window_c", "x"], ranks=[awaits("c", group)])))
    return RankCase(tuple(ops), PLAIN[options], (2,) * ranks)


def test_a_rank_is_a_round_ahead_of_another_at_times() -> None:
    outcomes = [simulate_ranks(exchange(2).plans, seed, rounds=5) for seed in range(20)]
    assert all(outcome.ok for outcome in outcomes)
    assert {outcome.most_ahead for outcome in outcomes} == {1}  # two rounds ahead it would have to wait


def test_ranks_that_share_no_group_are_two_rounds_apart_at_times() -> None:
    """Rank 1 stands between the others."""
    ops: list[list[Op]] = [[], [], []]
    for name, members in (("left", (0, 1)), ("right", (1, 2))):
        for rank in members:
            group = RankGroup(name, members, members.index(rank))
            ops[rank].append(Op(publish(1), ["x", f"window_{name}"], ranks=[sends(name, group)]))
            ops[rank].append(Op(collect(1), [f"window_{name}", "x"], ranks=[awaits(name, group)]))
    case = RankCase(tuple(map(tuple, ops)), PLAIN[0], (1, 1, 1))
    outcomes = [simulate_ranks(case.plans, seed, rounds=6) for seed in range(20)]
    assert all(outcome.ok for outcome in outcomes)
    assert max(outcome.most_ahead for outcome in outcomes) == 2


def test_rounds_may_wrap() -> None:
    first = dict.fromkeys(range(3), FAILED - 4)
    assert all(simulate_ranks(exchange(3).plans, seed, rounds=6, first_rounds=first).ok for seed in range(10))
    assert has_arrived(2, FAILED - 1) and not has_arrived(FAILED - 1, 2) and not has_arrived(0, 1)
    assert not has_arrived(FAILED, 1) and has_arrived(5, 5)


def test_a_group_of_one_rank_runs_by_itself() -> None:
    outcome = simulate_ranks(exchange(1).plans, 1)
    assert outcome.ok and outcome.rounds == {0: 3} and outcome.most_ahead == 0


@given(case=rank_cases(), seed=SEEDS)
@settings(max_examples=examples(40))
def test_one_rank_alone_is_simulated_as_if_the_others_came_with_it(case: RankCase, seed: int) -> None:
    assert all(simulate(plan, seed).ok for plan in case.plans)


def test_the_same_seed_gives_the_same_interleaving() -> None:
    case = rank_case(3, 3, [0, 7, 2, 5, 8], PLAIN[0])
    assert simulate_ranks(case.plans, 5, rounds=4) == simulate_ranks(case.plans, 5, rounds=4)
    assert str(simulate_ranks(case.plans, 5)) == "ok"
