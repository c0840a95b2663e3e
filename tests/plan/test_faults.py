"""Faults planted in good plans: validate must find every one that matters, simulate those that reach the data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from measured import examples
from plan.oracle import broken
from plan.strategies import DYNAMIC, OPTIONS, PLAIN, SYNC_ALL, Case, cases, kernel

from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import EarlyStart, Options
from superkernel.plan import Plan, make_plan
from superkernel.plan.simulate.simulate import simulate
from superkernel.plan.steps import (
    AwaitEvent,
    Barrier,
    Call,
    Feed,
    Fence,
    Notify,
    Preload,
    Record,
    Request,
    ResetEvent,
    Select,
    Signal,
    Step,
    Wait,
)
from superkernel.plan.verify.validate import validate

pytestmark = pytest.mark.slow

Fault = Callable[[Plan, random.Random], Plan | None]  # None: this plan has nothing to break
SEEDS = st.integers(0, 9999)


def steps_of(plan: Plan, kind: type[Step] | tuple[type[Step], ...]) -> list[int]:
    return [at for at, step in enumerate(plan.steps) if isinstance(step, kind)]


def put(plan: Plan, at: int, *steps: Step) -> Plan:
    """The plan with other steps in the place of one."""
    return replace(plan, steps=(*plan.steps[:at], *steps, *plan.steps[at + 1 :]))


def moved(plan: Plan, at: int, to: int) -> Plan:
    """The plan with the step `at` in front of the one at `to`, further up."""
    return replace(plan, steps=(*plan.steps[:to], plan.steps[at], *plan.steps[to:at], *plan.steps[at + 1 :]))


def dropped(*kinds: type[Step], only: Callable[[Step], bool] = lambda step: True) -> Fault:
    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        places = [at for at in steps_of(plan, kinds) if only(plan.steps[at])]
        return put(plan, rng.choice(places)) if places else None

    return plant


def repeated(*kinds: type[Step], only: Callable[[Step], bool] = lambda step: True) -> Fault:
    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        places = [at for at in steps_of(plan, kinds) if only(plan.steps[at])]
        if not places:
            return None
        at = rng.choice(places)
        return put(plan, at, plan.steps[at], plan.steps[at])

    return plant


def one_core_less(kind: type[Step]) -> Fault:
    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        places = [at for at in steps_of(plan, kind) if len(plan.steps[at].cores) > 1]
        if not places:
            return None
        at = rng.choice(places)
        step = plan.steps[at]
        lost = rng.choice(step.cores)
        return put(plan, at, replace(step, cores=tuple(core for core in step.cores if core != lost)))

    return plant


def other_core(kind: type[Step]) -> Fault:
    """A step of one core, done by another one."""

    def plant(plan: Plan, rng: random.Random) -> Plan | None:
        places = steps_of(plan, kind)
        if not places or plan.cores < 2:
            return None
        at = rng.choice(places)
        others = [core for core in range(plan.cores) if core not in plan.steps[at].cores]
        return put(plan, at, replace(plan.steps[at], cores=(rng.choice(others),)))

    return plant


def swapped_marks(plan: Plan, rng: random.Random) -> Plan | None:
    signals = steps_of(plan, Signal)
    if len(signals) < 2:
        return None
    first, second = sorted(rng.sample(signals, 2))
    one, other = plan.steps[first], plan.steps[second]
    assert isinstance(one, Signal)
    assert isinstance(other, Signal)
    changed = put(plan, first, replace(one, mark=other.mark))
    return put(changed, second, replace(other, mark=one.mark))


def called_on_other_cores(plan: Plan, rng: random.Random) -> Plan | None:
    places = [at for at in steps_of(plan, Call) if len(plan.steps[at].cores) > 1]
    if not places:
        return None
    at = rng.choice(places)
    return put(plan, at, replace(plan.steps[at], cores=plan.steps[at].cores[::-1]))


def called_with_other_blocks(plan: Plan, rng: random.Random) -> Plan | None:
    at = rng.choice(steps_of(plan, Call))
    call = plan.steps[at]
    assert isinstance(call, Call)
    return put(plan, at, replace(call, blocks=call.blocks + rng.choice((-1, 1))))


def larger_launch(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, cores=plan.cores + 1)


def smaller_launch(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, cores=plan.cores - 1)


def notified_before_its_op(plan: Plan, rng: random.Random) -> Plan | None:
    return _before_its_call(plan, rng, Notify)


def selected_before_its_request(plan: Plan, rng: random.Random) -> Plan | None:
    for at in steps_of(plan, Select):
        step = plan.steps[at]
        assert isinstance(step, Select)
        request = next(i for i in steps_of(plan, Request) if plan.steps[i].op == step.op)  # type: ignore[attr-defined]
        return moved(plan, at, request)
    return None


def _before_its_call(plan: Plan, rng: random.Random, kind: type[Step]) -> Plan | None:
    places = steps_of(plan, kind)
    if not places:
        return None
    at = rng.choice(places)
    op = plan.steps[at].op  # type: ignore[attr-defined]
    call = next(i for i in steps_of(plan, Call) if plan.steps[i].op == op)  # type: ignore[attr-defined]
    return moved(plan, at, call)


def calls_of_a_stream_swapped(plan: Plan, rng: random.Random) -> Plan | None:
    calls = steps_of(plan, Call)
    for second in calls:
        for first in calls:
            one, other = plan.steps[first], plan.steps[second]
            assert isinstance(one, Call)
            assert isinstance(other, Call)
            nodes = plan.graph.nodes
            if first < second and nodes[one.op].stream == nodes[other.op].stream and set(one.cores) & set(other.cores):
                return moved(plan, second, first)
    return None


def wider_barrier(plan: Plan, rng: random.Random) -> Plan | None:
    for at in steps_of(plan, Barrier):
        step = plan.steps[at]
        assert isinstance(step, Barrier)
        if step.debug:
            continue
        concerned = {*plan.placements[step.op]}
        awaits = plan.graph.nodes[step.op].awaits
        polls = [other for other in plan.steps if isinstance(other, AwaitEvent) and other.event in awaits]
        concerned.update(core for poll in polls for core in poll.cores)
        for edge in plan.graph.incoming[step.op]:
            if edge.whole_stream:
                break
            concerned.update(plan.placements[edge.producer])
        else:
            strangers = set(range(plan.cores)) - concerned
            if strangers:
                return put(plan, at, replace(step, cores=tuple(sorted({*step.cores, min(strangers)}))))
    return None


def is_debug(step: Step) -> bool:
    return isinstance(step, Barrier | Fence) and step.debug


# fault, how it is planted, the properties of which at least one must be reported
ALWAYS: dict[str, tuple[Fault, set[str]]] = {
    "a signal is dropped": (dropped(Signal), {"P4"}),
    "a core forgets to signal": (one_core_less(Signal), {"P4"}),
    "a signal is given twice": (repeated(Signal), {"P4"}),
    "two signals have each other's marks": (swapped_marks, {"P4", "P6"}),
    "a wait is made twice": (repeated(Wait), {"P5"}),
    "an op is not called": (dropped(Call), {"P1"}),
    "an op is called twice": (repeated(Call), {"P1"}),
    "an op is called on one core less": (one_core_less(Call), {"P1"}),
    "an op is called with its cores turned round": (called_on_other_cores, {"P1"}),
    "an op is called with another block count": (called_with_other_blocks, {"P1"}),
    "two ops of a stream change places": (calls_of_a_stream_swapped, {"P3"}),
    "an event is not reset": (dropped(ResetEvent), {"P7"}),
    "an event is reset twice": (repeated(ResetEvent), {"P7"}),
    "an event is reset by another core": (other_core(ResetEvent), {"P7"}),
    "an event is not waited for": (dropped(AwaitEvent), {"P6"}),
    "an event is not notified": (dropped(Notify), {"P7"}),
    "an event is notified twice": (repeated(Notify), {"P7"}),
    "an event is notified before its op": (notified_before_its_op, {"P6"}),
    "the launch has a core too many": (larger_launch, {"P9"}),
    "the launch has a core too few": (smaller_launch, {"P9"}),
    "a preload is dropped": (dropped(Preload), {"P10"}),
    "a stranger stands in a barrier": (wider_barrier, {"P11"}),
    "a debug step is dropped": (dropped(Barrier, Fence, only=is_debug), {"P12"}),
    "a debug step is made twice": (repeated(Barrier, Fence, only=is_debug), {"P12"}),
    "a mark is not recorded": (dropped(Record), {"P13"}),
    "a feed is dropped": (dropped(Feed), {"P14"}),
    "a core does not feed": (one_core_less(Feed), {"P14"}),
    "a variant is not selected": (dropped(Select), {"P16"}),
    "a core does not select": (one_core_less(Select), {"P16"}),
    "a tiling is not requested": (dropped(Request), {"P16"}),
    "a tiling is requested twice": (repeated(Request), {"P16"}),
    "a variant is selected before it is requested": (selected_before_its_request, {"P4"}),
}
POOLS = {"feed": SYNC_ALL, "variant": DYNAMIC, "select": DYNAMIC, "tiling": DYNAMIC}
DEBUG = tuple(one for one in OPTIONS if one.debug_sync_all or one.debug_dcci_all)
BARRIERS = tuple(one for one in PLAIN if one.early_start is EarlyStart.OFF and one.stream_fusion)
MANY = tuple(one for one in OPTIONS if not one.dcci_after_kernel_end)


def _input(name: str) -> st.SearchStrategy[Case]:
    pool = next((pool for word, pool in POOLS.items() if word in name), None)
    options = DEBUG if "debug" in name else BARRIERS if "barrier" in name else MANY
    return cases(options=options, min_cores=2) if pool is None else cases(pool=pool, options=options, min_cores=2)


@pytest.mark.parametrize("name", ALWAYS)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data(), seed=SEEDS)
def test_a_planted_fault_is_found(name: str, data: st.DataObject, seed: int) -> None:
    plan = data.draw(_input(name)).plan
    plant, expected = ALWAYS[name]
    faulty = plant(plan, random.Random(seed))
    assume(faulty is not None and faulty.steps != () and faulty.cores > 0)
    assert faulty is not None
    before = set(validate(plan).errors)
    found = {error.property for error in validate(faulty).errors if error not in before}
    assert found & expected, f"{name}: found {found}"


def thinned(plan: Plan, rng: random.Random) -> Iterator[tuple[str, Plan]]:
    """Plans in which something that orders cores is gone, or comes too late."""
    blocking = steps_of(plan, (Wait, Barrier))
    for at in rng.sample(blocking, min(2, len(blocking))):
        step = plan.steps[at]
        yield f"without: {plan.describe(step)}", put(plan, at)
        if isinstance(step, Barrier):
            yield f"{plan.describe(step)}, a core less", put(plan, at, replace(step, cores=step.cores[1:]))
        if isinstance(step, Wait):
            need = rng.choice(step.needs)
            kept = tuple(n for n in step.needs if n != need)
            less = (*kept, replace(need, cores=need.cores[1:]))
            yield f"less in: {plan.describe(step)}", put(plan, at, replace(step, needs=less))
            yield f"a core less: {plan.describe(step)}", put(plan, at, replace(step, cores=step.cores[1:]))
        call = next((i for i in steps_of(plan, Call) if i > at and plan.steps[i].op == step.op), None)  # type: ignore[attr-defined]
        if call is not None and not getattr(step, "inside", False):
            yield f"called before: {plan.describe(step)}", moved(plan, call, at)


@given(cases(options=PLAIN, min_cores=2), SEEDS)
def test_validate_finds_a_missing_wait_exactly_when_it_was_needed(case: Case, seed: int) -> None:
    for text, faulty in thinned(case.plan, random.Random(seed)):
        emptied = replace(faulty, steps=tuple(step for step in faulty.steps if step.cores))
        found = [error for error in validate(emptied).errors if error.property in ("P2", "P6")]
        assert bool(found) == bool(broken(emptied)), text


@given(cases(options=PLAIN, min_cores=2), SEEDS)
def test_what_simulate_finds_validate_finds(case: Case, seed: int) -> None:
    for text, faulty in thinned(case.plan, random.Random(seed)):
        emptied = replace(faulty, steps=tuple(step for step in faulty.steps if step.cores))
        outcome = simulate(emptied, seed, launches=1)
        assert outcome.ok or not validate(emptied).ok, f"{text}\n{outcome}"


FULL = {"in": "in:x", "out": "out:x", "inout": "inout:x"}
HAZARDS = [("out", "in"), ("in", "out"), ("out", "out"), ("inout", "inout"), ("out", "inout")]


@pytest.mark.parametrize("early", EarlyStart)
@pytest.mark.parametrize(("first", "second"), HAZARDS)
def test_simulate_sees_every_hazard_without_its_wait(first: str, second: str, early: EarlyStart) -> None:
    ops = [
        Op(kernel("first", 2, FULL[first], "out:y", signals_inside=True), ["a", "p"]),
        Op(kernel("second", 2, FULL[second], "out:y", waits_inside=True), ["a", "q"]),
    ]
    plan = make_plan(build_graph(ops), Options(early_start=early), 2)
    assert all(simulate(plan, seed).ok for seed in range(20))
    (at,) = steps_of(plan, (Wait, Barrier))
    assert any(error.property == "P2" for seed in range(60) for error in simulate(put(plan, at), seed).errors)


def _dataless(name: str, *, feed: bool = False) -> Plan:
    """A plan with events, a dynamic op and, if asked for, a sync_all op that needs feeding."""
    ops = [
        Op(kernel("a", 3, "out:x"), ["a"], send="told"),
        Op(kernel("b", 2, "in:x", "out:y", sync_all=feed), ["a", "b"], recv="awaited"),
        Op(kernel("d", 2, "in:x", "out:y"), ["b", "c"], task="dynamic"),
    ]
    return make_plan(build_graph(ops, name), Options(feed_sync_all=feed), 3)


SIMULATED: dict[str, tuple[Fault, str]] = {
    "a signal is dropped": (dropped(Signal), "P4"),
    "a signal is given twice": (repeated(Signal), "P4"),
    "two signals have each other's marks": (swapped_marks, "P2"),
    "a wait is made twice": (repeated(Wait), "P5"),
    "an op is not called": (dropped(Call), "P1"),
    "an op is called twice": (repeated(Call), "P1"),
    "an event is not reset": (dropped(ResetEvent), "P7"),
    "an event is not waited for": (dropped(AwaitEvent), "P2"),
    "an event is not notified": (dropped(Notify), "P7"),
    "an event is notified before its op": (notified_before_its_op, "P6"),
    "a feed is dropped": (dropped(Feed), "P4"),
    "a core does not select": (one_core_less(Select), "P16"),
    "a tiling is not requested": (dropped(Request), "P4"),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_simulate_sees_a_planted_fault(name: str) -> None:
    plan = _dataless("faulty", feed=True)
    good = [simulate(plan, seed) for seed in range(20)]
    assert all(outcome.ok for outcome in good), good
    plant, expected = SIMULATED[name]
    found = set()
    for seed in range(40):
        faulty = plant(plan, random.Random(seed))
        assert faulty is not None
        found |= {error.property for error in simulate(faulty, seed).errors}
    assert expected in found


def test_an_answering_outside_blocks_a_notify_behind_a_wait() -> None:
    plan = _dataless("answering")
    (notify,), (wait,) = steps_of(plan, Notify), steps_of(plan, AwaitEvent)
    assert all(simulate(plan, seed, answering=True).ok for seed in range(20))
    late = moved(plan, wait, notify)
    assert any(error.property == "P6" for error in validate(late).errors)
    assert all(simulate(late, seed, answering=True).deadlock for seed in range(5))


def test_reports_are_readable() -> None:
    plan = _dataless("readable")
    report = validate(plan)
    assert report.ok
    assert str(report).startswith("valid: 3 ops, 3 cores")
    (at, *_) = steps_of(plan, Call)
    wrong = validate(put(plan, at))
    assert not wrong.ok
    assert "P1: op 'a' is called 0 times" in str(wrong)
    outcome = simulate(put(plan, at))
    assert "op 'a'" in str(outcome)
    assert str(simulate(plan)) == "ok"
