"""What is shown of collectives: graphs, plans, reports and the estimated time of a sync across ranks."""

from __future__ import annotations

from plan.rank_strategies import awaits, collect, publish, sends
from plan.strategies import kernel

from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.ranks import RankGroup
from superkernel.plan import Costs, Machine, make_plan, validate
from superkernel.plan.cost import RANK_SYNC, estimate
from superkernel.plan.wait_causes import WaitCauses


def exchange(group: RankGroup) -> Graph:
    return build_graph(
        [
            Op(publish(2), ["x", "window_c"], ranks=[sends("c", group)]),
            Op(kernel("other", 2, "in:x", "out:y"), ["x", "y"]),
            Op(collect(2), ["window_c", "z"], ranks=[awaits("c", group)]),
        ],
        "exchange",
    )


PAIR = RankGroup("tp", (4, 6), 1)


def test_graph_plan_and_report_name_group_and_collective() -> None:
    graph = exchange(PAIR)
    assert "publish<2>(in x, out window_c)  notifies the ranks of tp (4,6): c" in str(graph)
    assert "collect<2>(in window_c, out z)  waits for the ranks of tp (4,6): c" in str(graph)
    plan = make_plan(graph, Options(), 2)
    text = str(plan)
    assert "collectives: 1 with the ranks of tp (4,6); waits for ranks: 1" in text
    assert "kept by 1 ranks" in text
    order = [
        "notify ranks of tp (4,6) after publish: collective c",
        "call other",
        "wait for ranks of tp (4,6) before collect",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)  # the op between start and finish runs while ranks arrive
    assert "collectives: 1 with the ranks of tp (4,6)" in plan._repr_html_()
    assert "1 collectives, 1 waits for ranks" in str(validate(plan))


def test_a_group_of_one_rank_has_no_steps() -> None:
    plan = make_plan(exchange(RankGroup("alone", (3,), 0)), Options(), 2)
    assert plan.rank_syncs == 0 and "ranks of alone (3); waits for ranks: 0" in str(plan)
    assert "notify ranks" not in str(plan) and validate(plan).ok


def test_a_plan_without_collectives_says_nothing_of_ranks() -> None:
    plan = make_plan(build_graph([Op(publish(2), ["x", "y"])]), Options(), 2)
    assert "ranks" not in str(plan) and "ranks" not in str(validate(plan)) and "ranks" not in str(plan.graph)


def test_a_sync_across_ranks_is_estimated_to_take_longer_than_one_between_cores() -> None:
    machine = Machine(2, costs=Costs(sync_ns=1000.0))
    both = (0, 1)
    alone, pair = (
        estimate(exchange(group), (both, both, both), machine, 2) for group in (RankGroup("alone", (4,), 0), PAIR)
    )
    assert pair - alone == (RANK_SYNC - 1) * 1000.0


def test_recorded_waits_name_the_other_ranks() -> None:
    plan = make_plan(exchange(PAIR), Options(profiling=True), 2)
    assert "record the begin of wait for ranks collect" in str(plan)
    assert validate(plan).ok
    assert WaitCauses(plan)._ranks == {"collect": "rank 4"}
