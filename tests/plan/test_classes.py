"""Planning by classes of cores gives what planning core by core gives; counters and copies are proven core by core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.oracle import broken, order_of
from plan.per_core import plan_per_core
from plan.strategies import kernel, layered_case, wide_case

from superkernel.errors import GraphError
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import Costs, Machine, Plan, SyncKind, make_plan, simulate, validate
from superkernel.plan.classes import CoreClasses, partner_groups
from superkernel.plan.replication import Copy
from superkernel.plan.steps import Call

GRAPHS = 1000
PARTS = 10
# A fifth of the graphs in every run, all of them in `make conformance`.
SOME_PARTS = [pytest.param(part, marks=[] if part < PARTS // 5 else pytest.mark.conformance) for part in range(PARTS)]


@pytest.mark.parametrize("part", SOME_PARTS)
def test_classes_give_the_order_and_the_syncs_of_single_cores(part: int) -> None:
    compared = 0
    for seed in range(part, GRAPHS, PARTS):
        case = wide_case(seed)
        try:
            graph = case.graph
        except GraphError:  # two ops disagree about the shape of a buffer
            continue
        plan = make_plan(graph, case.options, Machine(case.cores, replicates=False))
        apart = plan_per_core(graph, case.options, case.cores)
        by_class, by_core = order_of(plan), order_of(apart)
        for where in by_core.bodies:
            assert by_class.calls_before(where) == by_core.calls_before(where), f"seed {seed}: {where}"
        assert plan.sync_counts == apart.sync_counts, f"seed {seed}"
        compared += 1
    assert compared > GRAPHS // PARTS // 2


@pytest.mark.parametrize("part", SOME_PARTS)
def test_copies_are_proven_core_by_core(part: int) -> None:
    copied = 0
    for seed in range(part, GRAPHS, PARTS):
        case = layered_case(seed)
        groups = ((0, 1), tuple(range(2, case.cores))) if seed % 3 == 0 and case.cores > 2 else ()
        machine = Machine(case.cores, groups, Costs(sync_ns=2000.0, near_sync_ns=100.0))
        plan = make_plan(case.graph, replace(case.options, stream_fusion=False), machine)
        copied += len(plan.copies)
        assert validate(plan).ok, f"seed {seed}: {validate(plan)}"
        assert not broken(plan), f"seed {seed}"
        outcome = simulate(plan, seed)
        assert outcome.ok, f"seed {seed}: {outcome}"
    assert copied > 20


def test_a_partition_is_as_coarse_as_its_sets_allow() -> None:
    classes = CoreClasses(8, [(0, 1, 2, 3), (2, 3, 4), tuple(range(8))])
    assert classes.members == ((0, 1), (2, 3), (4,), (5, 6, 7))
    assert classes.split((2, 3, 4)) == (1, 2)
    assert classes.cores((2, 0)) == (0, 1, 4)


@pytest.mark.parametrize(("producer_blocks", "consumer_blocks"), [(4, 8), (8, 4), (3, 12), (12, 8), (5, 5), (1, 7)])
@pytest.mark.parametrize(("producer_cores", "consumer_cores"), [(4, 4), (2, 5), (5, 3)])
def test_ranged_edges_cover_every_block_that_a_consumer_may_touch(
    producer_blocks: int, consumer_blocks: int, producer_cores: int, consumer_cores: int
) -> None:
    """P20, against elements: with 840 of them every block is a whole number of elements."""
    producers = tuple(range(min(producer_cores, producer_blocks)))
    consumers = tuple(range(min(consumer_cores, consumer_blocks)))
    needed: dict[int, set[int]] = {core: set() for core in consumers}
    for element in range(840):
        consumer = consumers[element * consumer_blocks // 840 % len(consumers)]
        needed[consumer].add(producers[element * producer_blocks // 840 % len(producers)])
    found: dict[int, set[int]] = {}
    for group in partner_groups(producers, consumers, (producer_blocks, consumer_blocks)):
        for core in group.consumers:
            found[core] = set(group.producers) or {core}
    assert found == needed


def test_a_ranged_edge_waits_for_the_producers_of_its_range_only() -> None:
    few = kernel("few", 2, "out:x:float32[64]@block")
    many = kernel("many", 4, "in:x:float32[64]@block", "out:y:float32[64]@block")
    plan = make_plan(build_graph([Op(few, ["a"]), Op(many, ["a", "b"])]), Options(), 4)
    order = order_of(plan)
    assert [sorted(where[1] for where in order.calls_before((1, core))) for core in range(4)] == [[], [0], [1], [1]]
    assert validate(plan).ok


NORM = kernel("norm", 1, "in:x:float32[64]", "out:y:float32[64]", pure=True, may_fail=False)
WIDE = kernel("wide", 4, "in:x:float32[64]", "out:y:float32[64]")


def _replicated() -> Plan:
    ops = [Op(WIDE, ["a", "b"], "first"), Op(NORM, ["b", "n"], "norm"), Op(WIDE, ["n", "c"], "second")]
    return make_plan(build_graph(ops), Options(), Machine(4))


def test_a_cheap_op_between_wide_ops_is_computed_by_every_core() -> None:
    plan = _replicated()
    assert [copy.cores for copy in plan.copies[1]] == [(0,), (1,), (2,), (3,)]
    assert plan.sync_counts == {"local": 1, "barrier": 1}
    assert "norm" in plan.notes[0]
    assert "norm" in str(plan)
    assert "us without" in str(plan)
    assert validate(plan).ok
    assert all(simulate(plan, seed).ok for seed in range(20))


def test_an_op_is_not_replicated_where_that_is_estimated_to_be_slower() -> None:
    ops = [Op(WIDE, ["a", "b"]), Op(NORM, ["b", "n"]), Op(WIDE, ["n", "c"])]
    assert not make_plan(build_graph(ops), Options(), Machine(4, costs=Costs(sync_ns=1.0))).copies
    assert not make_plan(build_graph(ops), Options(), Machine(4, replicates=False)).copies
    impure = replace(NORM, pure=False)
    assert not make_plan(build_graph([ops[0], Op(impure, ["b", "n"]), ops[2]]), Options(), Machine(4)).copies


def test_a_copy_per_group_is_awaited_near() -> None:
    machine = Machine(4, groups=((0, 1), (2, 3)), costs=Costs(sync_ns=2000.0, near_sync_ns=100.0))
    ops = [Op(WIDE, ["a", "b"]), Op(NORM, ["b", "n"]), Op(WIDE, ["n", "c"])]
    plan = make_plan(build_graph(ops), Options(), machine)
    assert [(copy.cores, copy.readers) for copy in plan.copies[1]] == [((0,), (0, 1)), ((2,), (2, 3))]
    assert validate(plan).ok
    assert not broken(plan)
    assert all(simulate(plan, seed).ok for seed in range(20))


def test_syncs_within_a_group_are_near() -> None:
    pair = kernel("pair", 2, "in:x", "out:y")
    ops = [Op(WIDE, ["a", "b"]), Op(pair, ["p", "q"]), Op(pair, ["q", "r"])]
    plan = make_plan(build_graph(ops), Options(), Machine(4, groups=((0, 1), (2, 3))))
    assert [sync.kind for sync in plan.syncs] == [SyncKind.NEAR]


def _with_copies(plan: Plan, *copies: Copy) -> Plan:
    return replace(plan, copies={1: copies})


FAULTS = {
    "a copy is read by another group": lambda plan: _with_copies(
        plan, *(Copy(c.cores, (plan.copies[1][i - 1].readers)) for i, c in enumerate(plan.copies[1]))
    ),
    "a reader has no copy": lambda plan: _with_copies(plan, *plan.copies[1][:3]),
    "a reader has two copies": lambda plan: _with_copies(
        plan, *plan.copies[1][:3], replace(plan.copies[1][3], readers=(2, 3))
    ),
    "the call computes one copy": lambda plan: replace(
        plan,
        steps=tuple(replace(s, copies=1) if isinstance(s, Call) and s.op == 1 else s for s in plan.steps),
    ),
    "the replicated op writes in place": lambda plan: replace(
        plan,
        graph=build_graph(
            [
                Op(WIDE, ["a", "n"], "first"),
                Op(kernel("norm", 1, "inout:y:float32[64]", pure=True, may_fail=False), ["n"], "norm"),
                Op(WIDE, ["n", "c"], "second"),
            ]
        ),
    ),
    "the replicated op is not pure": lambda plan: replace(
        plan,
        graph=build_graph(
            [
                Op(WIDE, ["a", "b"], "first"),
                Op(replace(NORM, pure=False), ["b", "n"], "norm"),
                Op(WIDE, ["n", "c"], "second"),
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_copy_is_refused(name: str) -> None:
    faulty = FAULTS[name](_replicated())
    assert "P19" in {error.property for error in validate(faulty).errors}
