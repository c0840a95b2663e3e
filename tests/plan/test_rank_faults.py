"""Faults planted in the plans of ranks: validate_ranks finds all that plans can show, simulate_ranks the others too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from measured import examples
from plan.oracle import broken
from plan.rank_strategies import RankCase, awaits, collect, pass_on, publish, rank_cases, sends
from plan.strategies import PLAIN, kernel
from plan.test_faults import moved, put, steps_of

from superkernel.model.op import Op, Place
from superkernel.model.options import Options
from superkernel.model.ranks import RankGroup
from superkernel.model.window_layout import WindowLayout
from superkernel.plan import Plan, simulate_ranks, validate, validate_ranks
from superkernel.plan.steps import AwaitRanks, Barrier, Call, NotifyRanks, Step, Wait

pytestmark = pytest.mark.slow

Fault = Callable[[list[Plan], random.Random], list[Plan] | None]  # None: these plans have nothing to break
SEEDS = st.integers(0, 9999)


def in_one_plan(plant: Callable[[Plan, random.Random], Plan | None]) -> Fault:
    def plant_in(plans: list[Plan], rng: random.Random) -> list[Plan] | None:
        for at in rng.sample(range(len(plans)), len(plans)):
            faulty = plant(plans[at], rng)
            if faulty is not None:
                return [*plans[:at], faulty, *plans[at + 1 :]]
        return None

    return plant_in


def one_of(plan: Plan, rng: random.Random, kind: type[Step]) -> int | None:
    places = steps_of(plan, kind)
    return rng.choice(places) if places else None


def dropped(kind: type[Step]) -> Fault:
    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        at = one_of(plan, rng, kind)
        return None if at is None else put(plan, at)

    return in_one_plan(plant)


def repeated(plan: Plan, rng: random.Random) -> Plan | None:
    at = one_of(plan, rng, NotifyRanks)
    return None if at is None else put(plan, at, plan.steps[at], plan.steps[at])


def notified_by_two_cores(plan: Plan, rng: random.Random) -> Plan | None:
    at = one_of(plan, rng, NotifyRanks)
    if at is None or plan.cores < 2:
        return None
    return put(plan, at, replace(plan.steps[at], cores=(0, 1)))


def call_of(plan: Plan, step: Step) -> int:
    return next(at for at in steps_of(plan, Call) if plan.steps[at].op == step.op)  # type: ignore[attr-defined]


def notified_before_its_call(plan: Plan, rng: random.Random) -> Plan | None:
    at = one_of(plan, rng, NotifyRanks)
    return None if at is None else moved(plan, at, call_of(plan, plan.steps[at]))


def notified_before_the_last_block(plan: Plan, rng: random.Random) -> Plan | None:
    """Without the wait of the notifying core for the others."""
    sending = {plan.steps[at].op for at in steps_of(plan, NotifyRanks)}  # type: ignore[attr-defined]
    waits = [at for at in steps_of(plan, Wait) if plan.steps[at].op in sending and plan.steps[at].behind]  # type: ignore[attr-defined]
    return put(plan, rng.choice(waits)) if waits else None


def awaited_behind_its_call(plan: Plan, rng: random.Random) -> Plan | None:
    at = one_of(plan, rng, AwaitRanks)
    if at is None:
        return None
    call = call_of(plan, plan.steps[at])
    return moved(plan, call, at) if call > at else None


def awaited_before_it_is_notified(plan: Plan, rng: random.Random) -> Plan | None:
    for at in steps_of(plan, AwaitRanks):
        for to in steps_of(plan, NotifyRanks):
            if to < at and plan.steps[to].collective == plan.steps[at].collective:  # type: ignore[attr-defined]
                return moved(plan, at, to)
    return None


def of_another_collective(kind: type[Step]) -> Fault:
    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        for at in steps_of(plan, kind):
            step = plan.steps[at]
            assert isinstance(step, NotifyRanks | AwaitRanks)
            others = [each for each in plan.graph.collectives if each.group.size > 1 and each.name != step.collective]
            if others:
                other = rng.choice(others)
                return put(plan, at, replace(step, collective=other.name, group=other.group))
        return None

    return in_one_plan(plant)


def of_another_group(kind: type[Step]) -> Fault:
    """Of the first rank alone, or with its ranks in another order."""

    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        at = one_of(plan, rng, kind)
        if at is None:
            return None
        step = plan.steps[at]
        assert isinstance(step, NotifyRanks | AwaitRanks)
        group = step.group
        turned = RankGroup(group.name, group.ranks[::-1], group.size - 1 - group.rank)
        other = rng.choice((RankGroup(group.name, group.ranks[:1], 0), turned))
        return put(plan, at, replace(step, group=other)) if other != group else None

    return in_one_plan(plant)


def notifies_swapped(plan: Plan, rng: random.Random) -> Plan | None:
    """Two notifies announce each other's collective."""
    notifies = steps_of(plan, NotifyRanks)
    if len(notifies) < 2:
        return None
    first, second = sorted(rng.sample(notifies, 2))
    one, other = plan.steps[first], plan.steps[second]
    assert isinstance(one, NotifyRanks)
    assert isinstance(other, NotifyRanks)
    changed = put(plan, first, replace(one, collective=other.collective, group=other.group))
    return put(changed, second, replace(other, collective=one.collective, group=one.group))


def window_shared(plans: list[Plan], rng: random.Random) -> list[Plan] | None:
    """On every rank the second collective of a group has the window of the first."""
    groups: dict[str, list[str]] = {}
    for collective in plans[0].graph.collectives:
        if collective.group.size > 1:
            groups.setdefault(collective.group.name, []).append(collective.name)
    pairs = [names[:2] for names in groups.values() if len(names) > 1]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return [_with_window(plan, second, f"window_{second}", f"window_{first}") for plan in plans]


def _with_window(plan: Plan, collective: str, old: str, new: str) -> Plan:
    def changed(op: Op) -> Op:
        args = [new if arg == old else arg for arg in op.args]
        syncs = [replace(sync, window=new) if sync.collective == collective else sync for sync in op.ranks]
        return replace(op, args=args, ranks=syncs)

    graph = plan.graph
    nodes = tuple(replace(node, op=changed(node.op)) for node in graph.nodes)
    collectives = tuple(replace(c, window=new) if c.name == collective else c for c in graph.collectives)
    return replace(plan, graph=replace(graph, nodes=nodes, collectives=collectives))


# how each is planted in random plans; validate_ranks must find P23
IN_STEPS: dict[str, Fault] = {
    "ranks are not awaited": dropped(AwaitRanks),
    "ranks are awaited behind the call": in_one_plan(awaited_behind_its_call),
    "ranks are awaited before this one has notified them": in_one_plan(awaited_before_it_is_notified),
    "the ranks of another window are awaited": of_another_collective(AwaitRanks),
    "the ranks of another group are awaited": of_another_group(AwaitRanks),
    "ranks are not notified": dropped(NotifyRanks),
    "ranks are notified twice": in_one_plan(repeated),
    "ranks are notified by two cores": in_one_plan(notified_by_two_cores),
    "ranks are notified before the call": in_one_plan(notified_before_its_call),
    "ranks are notified before the last block": in_one_plan(notified_before_the_last_block),
    "ranks are notified in another window": of_another_collective(NotifyRanks),
    "ranks of another group are notified": of_another_group(NotifyRanks),
    "two collectives are notified in each other's place": in_one_plan(notifies_swapped),
    "two collectives share a window": window_shared,
}


@pytest.mark.parametrize("name", IN_STEPS)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(case=rank_cases(least_ranks=2), seed=SEEDS)
def test_a_planted_fault_is_found(name: str, case: RankCase, seed: int) -> None:
    faulty = IN_STEPS[name](case.plans, random.Random(seed))
    assume(faulty is not None)
    assert faulty is not None
    found = {error.property for error in validate_ranks(faulty).errors}
    assert "P23" in found, f"{name}: found {found}"


@settings(max_examples=examples(60))
@given(case=rank_cases(least_ranks=2), name=st.sampled_from(sorted(IN_STEPS)), seed=SEEDS)
def test_what_simulate_ranks_finds_validate_ranks_finds(case: RankCase, name: str, seed: int) -> None:
    faulty = IN_STEPS[name](case.plans, random.Random(seed))
    assume(faulty is not None)
    assert faulty is not None
    outcome = simulate_ranks(faulty, seed, rounds=2)
    assert outcome.ok or not validate_ranks(faulty).ok, f"{name}\n{outcome}"


def thinned(plan: Plan, rng: random.Random) -> Iterator[tuple[str, Plan]]:
    """Plans in which something that orders cores is gone: a wait for ranks or for cores, or one core of it."""
    for at in steps_of(plan, (AwaitRanks, Wait, Barrier)):
        step = plan.steps[at]
        yield f"without: {plan.describe(step)}", put(plan, at)
        if len(step.cores) > 1:
            lost = rng.choice(step.cores)
            less = replace(step, cores=tuple(core for core in step.cores if core != lost))
            yield f"on all but core {lost}: {plan.describe(step)}", put(plan, at, less)


@settings(max_examples=examples(60))
@given(rank_cases(least_ranks=2), SEEDS)
def test_validate_finds_a_missing_wait_for_ranks_exactly_when_it_was_needed(case: RankCase, seed: int) -> None:
    rng = random.Random(seed)
    for text, faulty in thinned(rng.choice(case.plans), rng):
        found = [error for error in validate(faulty).errors if error.property in ("P2", "P6", "P23")]
        assert bool(found) == bool(broken(faulty)), text


# --- a fixed program in which simulate_ranks sees every one of them

GROUP = (0, 1, 2)


def fixed(ranks: int = 3, cores: int = 2, options: Options = PLAIN[0]) -> RankCase:
    """Two collectives at once, a third that hands on what the first has, and ops while ranks arrive."""
    first, update = kernel("first", 3, "in:x", "out:y"), kernel("update", 2, "in:x", "in:y", "inout:z")
    listed = []
    for rank in range(ranks):
        group = RankGroup("tp", GROUP[:ranks], rank)
        listed.append(
            (
                Op(first, ["a", "x"]),
                Op(publish(3), ["x", "window_c"], ranks=[sends("c", group)]),
                Op(publish(3), ["a", "window_d"], ranks=[sends("d", group)]),
                Op(first, ["b", "free"]),
                Op(pass_on(3), ["window_c", "x", "window_e"], ranks=[awaits("c", group), sends("e", group)]),
                Op(collect(2), ["window_d", "s"], ranks=[awaits("d", group)]),
                Op(collect(2), ["window_c", "t"], ranks=[awaits("c", group)]),
                Op(collect(2), ["window_e", "u"], ranks=[awaits("e", group)]),
                Op(update, ["s", "t", "a"]),
                Op(update, ["u", "free", "b"]),
            )
        )
    return RankCase(tuple(listed), options, (cores,) * ranks)


@pytest.mark.parametrize("name", IN_STEPS)
def test_simulate_ranks_sees_a_planted_fault(name: str) -> None:
    plans = fixed().plans
    found: set[str] = set()
    for seed in range(12):
        faulty = IN_STEPS[name](plans, random.Random(seed))
        assert faulty is not None
        found |= {error.property for error in simulate_ranks(faulty, seed, rounds=2).errors}
    assert {"P23", "P4", "P2"} & found, f"{name}: found {found}"  # P2: other values than in a serial run


class OneSlot(WindowLayout):
    """Every round has the same slots."""

    def slot(self, round_number: int, rank: int) -> int:
        return super().slot(0, rank)


class OtherParity(WindowLayout):
    """The slots of a round are those of the next."""

    def slot(self, round_number: int, rank: int) -> int:
        return super().slot(round_number + 1, rank)


def test_one_slot_instead_of_two_is_overwritten_in_use() -> None:
    plans = fixed().plans
    outcomes = [
        simulate_ranks(plans, seed, layout_of=lambda group, cells: OneSlot(group.size, cells)) for seed in range(12)
    ]
    messages = [error.message for outcome in outcomes for error in outcome.errors]
    assert any("overwrites its slot in the window" in message for message in messages)
    assert any("read other values than in a serial run" in message for message in messages)


def test_a_rank_with_other_slots_in_a_round_reads_what_is_not_there() -> None:
    def layout_of(group: RankGroup, cells: int) -> WindowLayout:
        return (OtherParity if group.rank == 1 else WindowLayout)(group.size, cells)

    plans = fixed().plans
    assert all(not simulate_ranks(plans, seed, layout_of=layout_of).ok for seed in range(10))


@pytest.mark.parametrize("first_rounds", [{1: 1}, {0: 1, 2: 1}, {2: 2}])
def test_a_rank_whose_rounds_have_other_numbers_is_seen(first_rounds: dict[int, int]) -> None:
    plans = fixed().plans
    outcomes = [simulate_ranks(plans, seed, first_rounds=first_rounds) for seed in range(6)]
    assert all(not outcome.ok for outcome in outcomes)


# --- ranks that do not agree: nothing runs


def swapped(ops: list[Op]) -> list[Op]:
    return [ops[0], ops[2], ops[1], *ops[3:]]


def turned(ops: list[Op]) -> list[Op]:
    """The ranks of the group in another order."""
    group = RankGroup("tp", (2, 1, 0), 1)
    return [replace(op, ranks=[replace(sync, group=group) for sync in op.ranks]) for op in ops]


def smaller(ops: list[Op]) -> list[Op]:
    group = RankGroup("tp", (0, 1), 1)
    return [replace(op, ranks=[replace(sync, group=group) for sync in op.ranks]) for op in ops]


def other_terms(ops: list[Op]) -> list[Op]:
    return [replace(op, ranks=[replace(sync, terms="") for sync in op.ranks]) for op in ops]


def one_less(ops: list[Op]) -> list[Op]:
    return [ops[0], ops[1], *ops[3:5], *ops[6:8]]


AGREED = [swapped, turned, smaller, other_terms, one_less]


@pytest.mark.parametrize("change", AGREED, ids=[change.__name__ for change in AGREED])
def test_ranks_that_state_different_collectives_are_refused(change: Callable[[list[Op]], list[Op]]) -> None:
    case = fixed()
    ops = [tuple(change(list(own))) if rank == 1 else own for rank, own in enumerate(case.ops)]
    plans = RankCase(tuple(ops), case.options, case.cores).plans
    assert all(validate(plan).ok for plan in plans)  # each by itself is right
    outcome = simulate_ranks(plans)
    assert any("state different collectives" in error.message for error in outcome.errors)
    assert outcome.rounds == {}
    assert set(outcome.errors) <= set(validate_ranks(plans).errors)


def test_plans_that_are_not_those_of_all_ranks_are_refused() -> None:
    plans = fixed().plans
    assert "there is no plan of rank 2" in str(simulate_ranks(plans[:2]))
    assert "two plans are of rank 1" in str(validate_ranks([*plans, plans[1]]))
    alone = RankCase(((Op(kernel("k", 1, "out:x"), ["x"]),),), PLAIN[0], (1,)).plans
    assert "plan 3 is of 0 ranks" in str(simulate_ranks([*plans, *alone]))
    part = replace(plans[0], graph=replace(plans[0].graph, part=True))
    assert "part of a longer list" in str(simulate_ranks([part, *plans[1:]]))


def ring(ranks: int = 3) -> RankCase:
    """Each rank shares a group with the next, and finishes that collective before it starts the one with the last."""
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    ops = []
    for rank in range(ranks):
        own: list[Op] = []
        for number in (rank, (rank - 1) % ranks):
            group = RankGroup(f"pair{number}", pairs[number], pairs[number].index(rank))
            own.append(Op(publish(1), ["x", f"window_{number}"], ranks=[sends(str(number), group)]))
            own.append(Op(collect(1), [f"window_{number}", "x"], ranks=[awaits(str(number), group)]))
        ops.append(tuple(own))
    return RankCase(tuple(ops), PLAIN[0], (1,) * ranks)


def test_orders_that_form_a_cycle_across_groups_are_found() -> None:
    """Each plan validates, and no group has two orders."""
    plans = ring().plans
    assert all(validate(plan).ok for plan in plans)
    report = validate_ranks(plans)
    assert [error.property for error in report.errors] == ["P23"]
    assert "pair0 (0,1), pair1 (1,2), pair2 (2,0) in orders that form a cycle" in str(report)
    assert all(simulate_ranks(plans, seed).deadlock for seed in range(5))


def test_a_deadlock_names_ranks_cores_and_groups() -> None:
    faulty = dropped(NotifyRanks)(fixed(2).plans, random.Random(1))
    assert faulty is not None
    outcome = simulate_ranks(faulty, 1)
    assert outcome.deadlock
    assert any(text.startswith("rank 0, core 0 waits: wait for ranks of tp (0,1)") for text in outcome.deadlock)
    assert set(outcome.rounds.values()) == {0}


def test_faults_are_of_places_too() -> None:
    """Another op that takes the window, from anywhere in it."""
    plan = fixed().plans[0]
    node = plan.graph.nodes[3]
    stranger = replace(node, op=replace(node.op, args=[Place("window_c", 64), "free"]))
    nodes = (*plan.graph.nodes[:3], stranger, *plan.graph.nodes[4:])
    report = validate(replace(plan, graph=replace(plan.graph, nodes=nodes)))
    assert "accesses 'window_c', the window of collective 'c'" in str(report)
