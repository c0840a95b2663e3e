"""plan.placement: few blocks run in one group, blocks that meet among themselves need no feeding, copies per core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.strategies import kernel

from superkernel.errors import PlanError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import Costs, Machine, Plan, make_plan, simulate, validate
from superkernel.plan.steps import Call, Feed, Preload, Wait
from superkernel.plan.verify.vector_clocks import ClassAgents

SMS, SLOTS = 4, 3
GROUPS = tuple(tuple(range(sm, SMS * SLOTS, SMS)) for sm in range(SMS))
GPU = Machine(SMS * SLOTS, GROUPS, Costs(sync_ns=900.0, near_sync_ns=50.0), feeds_sync_all=False)
PAIR = ("in:x:float32[24]", "out:y:float32[24]")


def graph_of(*blocks: int, **flags: object) -> Graph:
    """A chain: op i has so many blocks, reads x<i> and writes x<i + 1>."""
    ops = [Op(replace(kernel(f"k{i}", n, *PAIR), **flags), [f"x{i}", f"x{i + 1}"]) for i, n in enumerate(blocks)]
    return build_graph(ops)


def planned(graph: Graph, machine: Machine = GPU, options: str = "") -> Plan:
    plan = make_plan(graph, Options.parse(options), machine)
    assert validate(plan, plan.layout).ok, str(validate(plan, plan.layout))
    simulate(plan, 1)
    return plan


def test_one_block_runs_on_one_core_and_few_blocks_in_one_group() -> None:
    plan = planned(graph_of(12, 1, 3, 4, 12))
    assert [plan.placements[op] for op in (1, 2)] == [(0,), (0, 4, 8)], "the slots of one SM"
    assert plan.placements[3] == (0, 1, 2, 3), "more blocks than the group has cores"
    assert plan.sync_counts["near"] == 1, "from the one block to the three"


def test_a_chain_of_single_blocks_has_no_wait() -> None:
    plan = planned(graph_of(1, 1, 1, 1))
    assert plan.cores == 1 and plan.blocking_steps == 0 and plan.sync_counts == {"local": 3}


def test_machines_without_groups_place_from_core_0_on() -> None:
    plan = planned(graph_of(12, 3), Machine(12))
    assert plan.placements[1] == (0, 1, 2)


def test_few_blocks_that_move_much_or_an_unknown_amount_are_spread_over_groups() -> None:
    large, untyped = kernel("large", 3, "in:x", "out:y:float32[33000]"), kernel("untyped", 3, "in:x", "out:y")
    wide = kernel("wide", 12, "in:x", "out:y")
    plan = planned(build_graph([Op(wide, ["a", "b"]), Op(large, ["b", "c"]), Op(untyped, ["b", "d"])]))
    assert plan.placements[1:] == ((0, 1, 2), (0, 1, 2))


def test_a_launch_without_the_whole_group_uses_what_there_is_of_it() -> None:
    plan = planned(graph_of(6, 2))
    assert plan.cores == 6 and plan.placements[1] == (0, 4)


def test_blocks_that_meet_among_themselves_need_no_feeding() -> None:
    plan = planned(graph_of(12, 3, 12, sync_all=True))
    calls = [step for step in plan.steps if isinstance(step, Call)]
    assert all(call.team == call.cores for call in calls)
    assert not any(isinstance(step, Feed) for step in plan.steps)
    with pytest.raises(PlanError, match="the idle cores would never arrive"):
        make_plan(graph_of(12, 3, sync_all=True), Options(), replace(GPU, feeds_sync_all=True))


def test_more_blocks_that_meet_than_cores_are_refused() -> None:
    with pytest.raises(PlanError, match="calls sync_all with 13 blocks, but there are 12 cores"):
        make_plan(graph_of(13, sync_all=True), Options(), GPU)


def test_every_core_may_compute_a_copy_of_its_own() -> None:
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0))
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 12, *PAIR)
    graph = build_graph([Op(wide, ["x0", "x1"]), Op(pure, ["x1", "x2"]), Op(wide, ["x2", "x3"])])
    by_group, by_core = planned(graph, machine), planned(graph, replace(machine, copies_per_core=True))
    assert [len(plan.copies[1]) for plan in (by_group, by_core)] == [SMS, SMS * SLOTS]
    assert sum(isinstance(step, Wait) for step in by_core.steps) < sum(isinstance(s, Wait) for s in by_group.steps)
    assert len(ClassAgents(by_core).classes) < len(ClassAgents(by_group).classes), "alike cores are one class"


def test_wide_ops_are_not_copied_where_every_core_would_compute_all_of_them() -> None:
    costs = replace(GPU.costs, shared_bytes_per_ns=100.0)
    plan = planned(graph_of(12, 1, 12, pure=True, may_fail=False), replace(GPU, costs=costs, copies_per_core=True))
    assert set(plan.copies) == {1}


def test_weights_are_asked_for_before_a_replicated_op_in_front() -> None:
    """The op behind a replicated op waits for nothing itself."""
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 12, "in:w:float32[24]", *PAIR)
    ops = [Op(wide, ["w0", "x0", "x1"]), Op(pure, ["x1", "x2"]), Op(wide, ["w1", "x2", "x3"])]
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0), copies_per_core=True)
    plan = planned(build_graph(ops), machine, "prefetch-weights=1")
    kinds = [(type(step).__name__, getattr(step, "op", None)) for step in plan.steps if not isinstance(step, Preload)]
    assert kinds.index(("PrefetchWeights", 2)) < kinds.index(("Wait", 1)) < kinds.index(("Call", 1))
    apart = planned(build_graph(ops), replace(machine, replicates=False), "prefetch-weights=1")
    kinds = [(type(step).__name__, getattr(step, "op", None)) for step in apart.steps]
    assert kinds.index(("Call", 1)) < kinds.index(("PrefetchWeights", 2)) < kinds.index(("Wait", 2))
