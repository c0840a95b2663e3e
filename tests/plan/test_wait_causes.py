"""plan.wait_causes: which signal ended a wait: the last of those it needs, if that came while the core waited."""

from __future__ import annotations

import pytest
from plan.strategies import kernel

from superkernel import Op
from superkernel.model.graph import build_graph
from superkernel.model.options import Options
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.plan import Plan, make_plan
from superkernel.plan.spans import Span, StepTime, spans_of
from superkernel.plan.steps import Barrier, Call, Record, SpanKind, Wait
from superkernel.plan.wait_causes import WaitCauses


def planned(ops: list[Op], options: str = "profiling=1") -> Plan:
    return make_plan(build_graph(ops, "g"), Options.parse(options), 2)


def explained(plan: Plan, *spans: Span) -> list[tuple[str | None, int | None]]:
    found = list(WaitCauses(plan).explained(spans))
    return [(span.waited_for, span.signalled_by) for span in found if span.what is not SpanKind.OP]


def ran(core: int, op: str, begin: float, end: float) -> Span:
    return Span(core, SpanKind.OP, op, begin, end)


def waited(core: int, op: str, begin: float, end: float, **more: bool) -> Span:
    return Span(core, SpanKind.WAIT, op, begin, end, **more)


def test_the_last_signal_that_came_while_the_core_waited() -> None:
    single, double = kernel("single", 1, "in:x", "out:z"), kernel("double", 2, "in:x", "in:y", "out:z")
    ops = [Op(single, ["a", "b"], name="p"), Op(single, ["a", "c"], name="q"), Op(double, ["b", "c", "d"], name="r")]
    plan = planned(ops)
    assert any(isinstance(step, Wait | Barrier) for step in plan.steps)
    where = {plan.op_names[step.op]: step.cores for step in plan.steps if isinstance(step, Call)}
    assert where["p"] == where["q"], "both on one core, which the other one waits for"
    (core,) = where["p"]
    done = ran(core, "p", 0, 10), ran(core, "q", 10, 30)
    assert explained(plan, *done, waited(1 - core, "r", 5, 30)) == [("q", core)]
    assert explained(plan, *done, waited(1 - core, "r", 40, 40)) == [(None, None)]  # all signals had been given


def test_an_event_from_outside_is_named_where_no_op_explains_the_wait() -> None:
    single = kernel("single", 1, "in:x", "out:z")
    plan = planned([Op(single, ["a", "b"], name="p"), Op(single, ["b", "c"], name="q", recv=["go"])])
    (core,) = {step.cores[0] for step in plan.steps if isinstance(step, Call) and plan.op_names[step.op] == "q"}
    ((waited_for, signalled_by),) = explained(plan, ran(core, "p", 0, 10), waited(core, "q", 10, 90))
    assert waited_for is not None and waited_for.startswith("event") and signalled_by is None


@pytest.mark.parametrize(("ranks", "waited_for"), [((4, 7), "rank 4"), ((4, 7, 9), "ranks 4, 9")])
def test_a_wait_for_ranks_names_the_others(ranks: tuple[int, ...], waited_for: str) -> None:
    group = RankGroup("tp", ranks, 1)
    send = Op(kernel("send", 1, "in:x", "out:w"), ["a", "w"], name="p", ranks=[RankSync("c", group, "w", True)])
    take = Op(kernel("take", 1, "in:w", "out:z"), ["w", "b"], name="q", ranks=[RankSync("c", group, "w", False)])
    wait = Span(0, SpanKind.RANKS, "q", 10, 90)
    assert explained(planned([send, take]), ran(0, "p", 0, 10), wait) == [(waited_for, None)]


def test_stamps_of_other_steps_are_waits_inside_the_op() -> None:
    single = kernel("single", 1, "in:x", "out:z")
    early = kernel("early", 2, "in:x", "out:z", waits_inside=True)
    plan = planned([Op(single, ["a", "b"], name="p"), Op(early, ["b", "c"], name="q")])
    records = {(step.what, step.op, step.begin): at for at, step in enumerate(plan.steps) if isinstance(step, Record)}
    (inside,) = [at for at, step in enumerate(plan.steps) if isinstance(step, Wait) and step.inside]
    op = plan.op_names.index("q")
    times = [(records[SpanKind.OP, op, True], 0), (inside, 5), (inside, 20), (records[SpanKind.OP, op, False], 30)]
    found = spans_of(plan, [StepTime(1, step, ns) for step, ns in times])
    assert found == (waited(1, "q", 5, 20, inside=True), ran(1, "q", 0, 30))
    producer = next(step.cores[0] for step in plan.steps if isinstance(step, Call))
    assert explained(plan, ran(producer, "p", 0, 19), *found) == [("p", producer)]
