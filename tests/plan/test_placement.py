"""plan.placement: few blocks run in one group, blocks that meet among themselves need no feeding, copies per group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.strategies import kernel

from superkernel.errors import PlanError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import Costs, Machine, Plan, make_plan, simulate, validate
from superkernel.plan.cost import estimate, estimate_near
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


def test_the_cores_of_a_group_wait_for_their_copy_by_a_need_that_all_groups_share() -> None:
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0))
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 12, *PAIR)
    graph = build_graph([Op(wide, ["x0", "x1"]), Op(pure, ["x1", "x2"]), Op(wide, ["x2", "x3"])])
    by_need, by_class = planned(graph, replace(machine, near_needs=True)), planned(graph, machine)
    for plan in (by_need, by_class):
        assert [copy.cores for copy in plan.copies[1]] == [(0,), (1,), (2,), (3,)]
    waits = [step for step in by_need.steps if isinstance(step, Wait)]
    assert [(wait.op, need.cores, need.near) for wait in waits for need in wait.needs] == [
        (1, tuple(range(12)), False),
        (2, (0, 1, 2, 3), True),
    ]
    assert waits[1].cores == tuple(range(4, 12)), "the core that computes a copy does not wait for it"
    assert "small done on 0-3, each in its group" in str(by_need)
    assert by_need.sync_counts["near"] == 1
    assert len(waits) < sum(isinstance(step, Wait) for step in by_class.steps)
    assert len(ClassAgents(by_need).classes) == 2 < len(ClassAgents(by_class).classes), "alike cores are one class"


def test_a_near_need_without_its_signal_or_for_another_group_is_found() -> None:
    plan = near_plan()
    waits = [step for step in plan.steps if isinstance(step, Wait) and any(need.near for need in step.needs)]
    for step in waits:
        without = replace(plan, steps=tuple(s for s in plan.steps if s is not step))
        assert any(error.property == "P2" for error in validate(without).errors), "the copy may not be there yet"
        assert any(not simulate(without, seed).ok for seed in range(20))
    shifted = (*GROUPS[1:], GROUPS[0])
    moved = replace(
        plan, near_groups=tuple(tuple(sorted({a[0], *b[1:]})) for a, b in zip(GROUPS, shifted, strict=True))
    )
    assert any(error.property == "P19" for error in validate(moved).errors), "a copy for cores of another group"


def near_plan() -> Plan:
    """Wide and small ops in turn, the small ones replicated; what a wide op writes is written again two ops later."""
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0), near_needs=True)
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 10, *PAIR)
    ops = []
    for number in range(4):
        ops += [Op(pure, [f"y{number % 2}", f"h{number}"]), Op(wide, [f"h{number}", f"y{(number + 1) % 2}"])]
    return planned(build_graph(ops), machine)


def test_what_all_groups_know_of_themselves_is_known_of_all() -> None:
    """The small ops of two layers before have read what a wide op overwrites: every group has heard so of its own."""
    plan = near_plan()
    needs = {(wait.op, need.mark.op): need.near for wait in plan.steps if isinstance(wait, Wait) for need in wait.needs}
    assert len(plan.copies) == 4
    assert needs == {
        (1, 0): True, (2, 1): False, (3, 2): True, (4, 3): False, (5, 4): True, (6, 5): False, (7, 6): True,
    }  # fmt: skip
    assert all(simulate(plan, seed).ok for seed in range(30))


def test_small_ops_may_run_on_the_last_cores() -> None:
    """They have one block fewer than the others of a wide op that does not divide evenly."""
    graph = graph_of(20, 1, 3, 5, 20)
    plan = planned(graph, replace(GPU, small_ops_last=True))
    assert [plan.placements[op] for op in (1, 2, 3)] == [(11,), (3, 7, 11), (7, 8, 9, 10, 11)]
    assert planned(graph_of(12, 7), replace(GPU, small_ops_last=True)).placements[1] == tuple(range(7))
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0), near_needs=True, small_ops_last=True)
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 12, *PAIR)
    plan = planned(build_graph([Op(wide, ["x0", "x1"]), Op(pure, ["x1", "x2"]), Op(wide, ["x2", "x3"])]), machine)
    assert plan.placements[1] == (8, 9, 10, 11), "one copy per group, on its last core"


TEAMS = (tuple(range(SMS)), tuple(range(SMS, SMS * SLOTS)))
DIVIDED = replace(
    GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0), near_needs=True, early_loads=True, teams=TEAMS
)


def layers(blocks: int, small_blocks: int = 1, weights: int = 1024, **flags: object) -> Graph:
    """Layers of a small op and a wide one that reads so many weights per block before its wait."""
    pure = replace(kernel("small", small_blocks, *PAIR), pure=True, may_fail=False)
    wide = replace(
        kernel("wide", blocks, f"in:w:float32[{weights * blocks}]", *PAIR),
        waits_inside=True,
        early_start=("w",),
        **flags,
    )
    ops = []
    for number in range(3):
        ops += [Op(pure, [f"y{number}", f"h{number}"]), Op(wide, [f"w{number}", f"h{number}", f"y{number + 1}"])]
    return build_graph(ops)


def test_wide_ops_that_start_early_have_a_team_of_their_own() -> None:
    plan = planned(layers(8, weights=4096), DIVIDED)
    assert plan.teams == TEAMS and plan.cores == 12
    assert [plan.placements[op] for op in (0, 1)] == list(TEAMS)
    inside = [step for step in plan.steps if isinstance(step, Wait) and step.inside]
    assert [(wait.cores, wait.needs[0].near) for wait in inside] == [(TEAMS[1], True)] * 3
    assert "two teams: cores 4-11 run the ops that start early, cores 0-3 the ops between them" in str(plan)
    assert all(simulate(plan, seed).ok for seed in range(20))


def test_no_teams_where_ops_would_need_a_second_round() -> None:
    """The second team has eight cores."""
    plan = planned(layers(12), DIVIDED)
    assert not plan.teams and plan.placements[1] == tuple(range(12))


def test_teams_are_chosen_by_the_estimate() -> None:
    """Without weights to ask for, a wide op gains nothing from cores of its own."""
    plan = planned(layers(8, weights=1), DIVIDED)
    assert not plan.teams and plan.placements[1] == tuple(range(8))
    assert any(note.startswith("teams: estimated") for note in plan.notes)


def test_copies_that_would_hold_up_early_loads_are_not_made() -> None:
    """With one core per group the copy is computed by the core that could ask for weights meanwhile."""
    costs = replace(GPU.costs, shared_bytes_per_ns=100.0)
    machine = Machine(SMS, tuple((core,) for core in range(SMS)), costs, near_needs=True, feeds_sync_all=False)
    graph = layers(SMS, weights=1 << 16)
    assert planned(graph, machine).copies
    assert not planned(graph, replace(machine, early_loads=True)).copies


@pytest.mark.parametrize("options", ["early-start=0", "early-start=2"])
def test_without_early_start_there_are_no_teams(options: str) -> None:
    assert not planned(layers(8), DIVIDED, options).teams


def test_small_ops_with_several_blocks_spread_over_the_first_team() -> None:
    plan = planned(layers(8, small_blocks=3), DIVIDED)
    assert not plan.teams or plan.placements[0][:3] == (0, 1, 2)
    meeting = planned(layers(8, sync_all=True), DIVIDED)
    assert not meeting.teams, "the blocks of such an op must all be resident"


def test_no_group_computes_an_op_that_has_blocks_for_several_groups() -> None:
    costs = replace(GPU.costs, shared_bytes_per_ns=100.0)
    plan = planned(graph_of(12, 1, 12, pure=True, may_fail=False), replace(GPU, costs=costs, near_needs=True))
    assert set(plan.copies) == {1}


def test_weights_are_asked_for_before_a_replicated_op_in_front() -> None:
    """The op behind a replicated op waits for nothing itself."""
    pure = replace(kernel("small", 1, *PAIR), pure=True, may_fail=False)
    wide = kernel("wide", 12, "in:w:float32[24]", *PAIR)
    ops = [Op(wide, ["w0", "x0", "x1"]), Op(pure, ["x1", "x2"]), Op(wide, ["w1", "x2", "x3"])]
    machine = replace(GPU, costs=replace(GPU.costs, shared_bytes_per_ns=100.0), near_needs=True)
    plan = planned(build_graph(ops), machine, "prefetch-weights=1")
    kinds = [(type(step).__name__, getattr(step, "op", None)) for step in plan.steps if not isinstance(step, Preload)]
    assert kinds.index(("PrefetchWeights", 2)) < kinds.index(("Wait", 1)) < kinds.index(("Call", 1))
    apart = planned(build_graph(ops), replace(machine, replicates=False), "prefetch-weights=1")
    kinds = [(type(step).__name__, getattr(step, "op", None)) for step in apart.steps]
    assert kinds.index(("Call", 1)) < kinds.index(("PrefetchWeights", 2)) < kinds.index(("Wait", 2))


def test_a_sync_within_a_group_is_estimated_to_cost_less() -> None:
    graph, costs = graph_of(3, 3, 3), GPU.costs
    near, far = ((0, 4, 8),) * 3, ((0, 1, 2),) * 3
    alone = 3 * costs.call_ns + 3 * 2 * 96 / 3 / costs.bytes_per_ns
    assert estimate_near(graph, near, GPU, 12) == pytest.approx(alone + 2 * costs.near_sync_ns)
    assert estimate_near(graph, far, GPU, 12) == pytest.approx(alone + 2 * costs.sync_ns)
    assert estimate_near(graph, far, GPU, 12) == estimate(graph, far, GPU, 12)
    # what another group stored is seen late, also by the cores of a near producer
    wide = (tuple(range(12)), (0, 4, 8), (1, 5, 9))
    assert estimate_near(graph, wide, GPU, 12) == pytest.approx(alone + 2 * costs.sync_ns)
