"""What cannot be ordered or placed is refused while planning, in a sentence that names the op and the way out."""

from __future__ import annotations

import pytest
from plan.strategies import kernel

from superkernel.errors import PlanError
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.subkernel import SubKernel
from superkernel.plan import Plan, make_plan
from superkernel.plan.simulate.simulate import simulate
from superkernel.plan.verify.validate import validate

WRITE = kernel("write", 1, "out:x")


def op(name: str, stream: int = 0, send: tuple[int, ...] = (), recv: tuple[int, ...] = ()) -> Op:
    return Op(WRITE, [name], name, stream, send, recv)


def refused(*words: str, ops: list[Op], fusion: bool = False) -> None:
    with pytest.raises(PlanError) as caught:
        build_graph(ops, "refused", fusion)
    for word in words:
        assert word in str(caught.value)


def test_a_receiver_before_its_sender_in_one_stream() -> None:
    ops = [op("first"), op("early", recv=(7,)), op("late", send=(7,))]
    for fusion in (False, True):
        refused("'early'", "event 7", "'late'", "stream 0", ops=ops, fusion=fusion)


def test_a_receiver_before_its_sender_in_the_list_needs_stream_fusion() -> None:
    ops = [op("first"), op("early", 1, recv=(7,)), op("late", 2, send=(7,))]
    refused("'early'", "'late'", "stream-fusion=1", ops=ops)
    graph = build_graph(ops, "fused", stream_fusion=True)
    assert graph.order.index(2) < graph.order.index(1)


def test_a_cycle_of_events() -> None:
    ops = [
        op("start"),
        op("a", 1, recv=(1,)),
        op("b", 1, send=(2,)),
        op("c", 2, recv=(2,)),
        op("d", 2, send=(1,)),
    ]
    refused("cycle", "'a'", "'d'", ops=ops, fusion=True)


def test_an_op_that_waits_for_itself() -> None:
    refused("'self'", "event 3", ops=[op("first"), op("self", send=(3,), recv=(3,))])


def test_an_event_with_two_senders() -> None:
    refused("event 3", "'a'", "'b'", "two senders", ops=[op("a", send=(3,)), op("b", send=(3,))])
    ops = [op("a", send=(3,)), op("b", send=(3,)), op("c", recv=(3,))]
    refused("two senders", ops=ops, fusion=True)


@pytest.mark.parametrize("ops", [[op("only", recv=(1,))], [op("first", 1, recv=(1,)), op("other", 2, send=(1,))]])
@pytest.mark.parametrize("fusion", [False, True])
def test_the_first_op_receives(ops: list[Op], fusion: bool) -> None:
    refused(repr(ops[0].name), "first", "event 1", ops=ops, fusion=fusion)


def test_an_event_with_several_receivers_orders_all_of_them() -> None:
    graph = build_graph([op("a", send=(3,)), op("b", 1, recv=(3,)), op("c", 2, recv=(3,))])
    assert [(edge.producer, edge.consumer) for edge in graph.edges] == [(0, 1), (0, 2)]
    assert not graph.events


def test_ids_with_one_end_in_the_list_are_external() -> None:
    graph = build_graph([op("a", send=(1,)), op("b", recv=(2,)), op("c", recv=(2,))])
    assert [event.label for event in graph.events] == ["1", "2"]
    assert graph.nodes[0].notifies == ("1",)
    assert graph.nodes[1].awaits == graph.nodes[2].awaits == ("2",)


def sync_all(blocks: int, **more: bool) -> SubKernel:
    return kernel("meet", blocks, "in:x", "out:y", sync_all=True, **more)


def planned(blocks: int, others: int, cores: int, options: Options, task: str = "normal") -> Plan:
    ops = [Op(kernel("wide", others, "out:x"), ["a"], "wide"), Op(sync_all(blocks), ["a", "b"], "meeting", task=task)]
    return make_plan(build_graph(ops, "meetings"), options, cores)


@pytest.mark.parametrize("options", [Options(), Options(feed_sync_all=True), Options(stream_fusion=True)])
def test_sync_all_with_more_blocks_than_cores(options: Options) -> None:
    with pytest.raises(PlanError, match=r"super_kernel_scope 'meetings'.*'meeting'.*sync_all.*4 blocks.*3 cores"):
        planned(4, 1, 3, options)


def test_sync_all_with_idle_cores_needs_feed_sync_all() -> None:
    with pytest.raises(PlanError, match=r"'meeting'.*sync_all.*2 blocks.*4 cores.*feed-sync-all=1"):
        planned(2, 4, 4, Options())
    plan = planned(2, 4, 4, Options(feed_sync_all=True))
    assert validate(plan).ok
    assert all(simulate(plan, seed).ok for seed in range(20))


def test_sync_all_on_the_whole_launch_needs_nothing() -> None:
    plan = planned(4, 2, 4, Options())
    assert plan.cores == 4
    assert validate(plan).ok


def test_a_dynamic_sync_all_may_have_idle_cores() -> None:
    with pytest.raises(PlanError, match=r"'meeting'.*feed-sync-all=1"):
        planned(4, 4, 4, Options(), task="dynamic")
    plan = planned(4, 4, 4, Options(feed_sync_all=True), task="dynamic")
    assert all(simulate(plan, seed).ok for seed in range(20))
