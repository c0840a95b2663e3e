"""Properties P1 to P18 of every plan. The hypothesis profile (conftest.py) gives each of them 500 random graphs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from measured import grows_by, least, processor_seconds
from plan.canonical import canonical
from plan.oracle import broken, order_needed, order_of
from plan.strategies import DYNAMIC, OPTIONS, PLAIN, STATIC, SYNC_ALL, Case, cases, kernel

from superkernel.model.argument_layout import make_layout
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op, Place
from superkernel.model.options import EarlyStart, Options, PreloadCode
from superkernel.plan import Outcome, Plan, make_plan
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
    SpanKind,
    Step,
    Wait,
)
from superkernel.plan.verify.validate import validate

SEEDS = st.integers(0, 9999)
PROFILED = tuple(one for one in OPTIONS if one.profiling)
BARRIERS = tuple(one for one in PLAIN if one.early_start is EarlyStart.OFF)
FLAGS = tuple(one for one in PLAIN if one.early_start is not EarlyStart.OFF)


def wrong(plan: Plan, which: str) -> list[str]:
    """What validate says against one property."""
    return [str(error) for error in validate(plan).errors if error.property == which]


def seen(outcome: Outcome, *which: str) -> list[str]:
    """What a simulation says against some properties."""
    return [str(error) for error in outcome.errors if error.property in which]


def calls(steps: tuple[Step, ...]) -> list[Call]:
    return [step for step in steps if isinstance(step, Call)]


@given(cases(), SEEDS)
def test_p01_every_op_runs_once_on_every_block(case: Case, seed: int) -> None:
    plan = case.plan
    assert sorted(call.op for call in calls(plan.steps)) == list(range(len(case.ops)))
    for call in calls(plan.steps):
        kernel = case.ops[call.op].kernel
        assert call.cores == plan.placements[call.op]
        assert call.blocks == kernel.block_dim
        assert len(call.cores) <= call.blocks
        assert not kernel.sync_all or len(call.cores) == call.blocks
    assert not wrong(plan, "P1")
    assert not seen(simulate(plan, seed, launches=1), "P1")


@given(cases(), SEEDS)
def test_p02_every_dependency_is_kept(case: Case, seed: int) -> None:
    assert not [fault for fault in broken(case.plan) if fault.startswith("P2")]
    assert not wrong(case.plan, "P2")
    assert not seen(simulate(case.plan, seed), "P2")


@given(cases())
def test_p03_streams_are_issued_in_list_order_and_senders_first(case: Case) -> None:
    plan = case.plan
    for core in range(plan.cores):
        issued = [call.op for call in calls(plan.program(core))]
        for stream in {op.stream for op in case.ops}:
            of_stream = [op for op in issued if case.ops[op].stream == stream]
            assert of_stream == sorted(of_stream)
        for first, second in pairwise(issued):
            assert not set(case.ops[first].recv) & set(case.ops[second].send)
    everywhere = [call.op for call in calls(plan.steps)]
    for edge in plan.graph.edges:
        assert everywhere.index(edge.producer) < everywhere.index(edge.consumer)
    assert not wrong(plan, "P3")


@given(cases(), st.lists(SEEDS, min_size=2, max_size=3))
def test_p04_nothing_deadlocks_and_a_second_launch_is_like_the_first(case: Case, seeds: list[int]) -> None:
    assert not wrong(case.plan, "P4")
    for seed in seeds:
        outcome = simulate(case.plan, seed, launches=2)
        assert not outcome.deadlock
        assert not seen(outcome, "P4", "P5")
        for core, trace in enumerate(outcome.traces):
            assert trace == case.plan.program(core) * 2


@given(cases(options=FLAGS, min_cores=2))
def test_p05_waits_of_a_pair_of_cores_follow_its_signals(case: Case) -> None:
    plan = case.plan
    given_at = {(s.mark, core): at for at, s in enumerate(plan.steps) if isinstance(s, Signal) for core in s.cores}
    last: dict[tuple[int, int], int] = {}
    for step in plan.steps:
        if not isinstance(step, Wait):
            continue
        for core in step.cores:
            for need in step.needs:
                for d in set(need.cores) - {core}:
                    assert given_at[need.mark, d] > last.get((d, core), -1)
                    last[d, core] = given_at[need.mark, d]
    assert not wrong(plan, "P5")


@given(cases(), SEEDS)
def test_p06_external_waits_hold_every_core_and_notifies_come_last(case: Case, seed: int) -> None:
    assume(any(node.awaits or node.notifies for node in case.graph.nodes))
    assert not [fault for fault in broken(case.plan) if fault.startswith("P6")]
    assert not wrong(case.plan, "P6")
    assert not seen(simulate(case.plan, seed, launches=1, answering=True), "P6", "P4")


@given(cases(), SEEDS)
def test_p07_words_are_zero_after_waits_and_one_after_notifies(case: Case, seed: int) -> None:
    assume(case.graph.events)
    words = simulate(case.plan, seed).words
    awaited = {event for node in case.graph.nodes for event in node.awaits}
    assert words == {event.label: int(event.label not in awaited) for event in case.graph.events}
    touching = [s for s in case.plan.steps if isinstance(s, AwaitEvent | Notify | ResetEvent)]
    for event in words:
        assert len({core for step in touching if step.event == event for core in step.cores}) == 1
    assert not wrong(case.plan, "P7")


@given(cases())
def test_p08_every_argument_has_a_slot_of_its_own(case: Case) -> None:
    layout = make_layout(case.graph)
    assert validate(case.plan, layout).errors == validate(case.plan).errors
    assert [slot.offset for slot in layout] == list(range(0, 8 * len(layout), 8))
    asked = sum(len(op.args) + 3 * op.dynamic for op in case.ops)
    asked += sum(len(node.awaits) + len(node.notifies) for node in case.graph.nodes)
    assert len(layout) == asked
    if len(layout) > 1:
        shared = replace(layout, slots=(*layout.slots[:-1], replace(layout.slots[-1], index=0)))
        assert any(error.property == "P8" for error in validate(case.plan, shared).errors)


@given(cases())
def test_p09_the_launch_is_as_large_as_the_ops_need(case: Case) -> None:
    plan = case.plan
    assert {core for cores in plan.placements for core in cores} == set(range(plan.cores))
    assert plan.cores <= case.cores
    if not case.options.stream_fusion:
        assert plan.cores == min(case.cores, max(op.kernel.block_dim for op in case.ops))
    assert not wrong(plan, "P9")


@given(cases())
def test_p10_code_is_preloaded_before_it_is_called(case: Case) -> None:
    assert not wrong(case.plan, "P10")
    for core in range(case.plan.cores):
        program = [step for step in case.plan.program(core) if isinstance(step, Preload | Call)]
        preloaded: dict[object, int] = {}  # kernel -> calls before its preload
        made = 0
        for step in program:
            if isinstance(step, Preload):
                preloaded |= {case.ops[op].kernel: made for op in step.ops}
                assert case.options.preload_code is not PreloadCode.NONE
                assert not made or case.options.preload_code is PreloadCode.PER_FUNC
                continue
            kernel = case.ops[step.op].kernel
            if case.options.preload_code is not PreloadCode.NONE:
                assert kernel in preloaded
            if case.options.preload_code is PreloadCode.PER_FUNC and preloaded[kernel] < made:
                previous = [case.ops[call.op].kernel for call in calls(tuple(program))[:made]]
                assert preloaded[kernel] == made - 1 or kernel in previous
            made += 1


@given(cases(options=BARRIERS, min_cores=2))
def test_p11_a_barrier_holds_only_cores_that_need_it(case: Case) -> None:
    plan = case.plan
    assert not wrong(plan, "P11")
    for at, step in enumerate(plan.steps):
        if isinstance(step, Barrier):
            for core in step.cores:
                smaller = replace(step, cores=tuple(c for c in step.cores if c != core))
                without = replace(plan, steps=(*plan.steps[:at], smaller, *plan.steps[at + 1 :]))
                assert broken(without), f"core {core} is not needed in: {plan.describe(step)}"


@given(cases())
def test_p12_debug_options_only_add_steps(case: Case) -> None:
    plain = replace(case.options, debug_sync_all=False, debug_dcci_all=False)
    debug = replace(case.options, debug_sync_all=True, debug_dcci_all=True)
    plan = make_plan(case.graph, debug, case.cores)
    assert plan.without_debug() == make_plan(case.graph, plain, case.cores)
    assert not wrong(plan, "P12")
    assert not wrong(plan, "P4")
    added = [step for step in plan.steps if isinstance(step, Barrier | Fence) and step.debug]
    assert len(added) == len(case.ops) * (1 + (plan.cores > 1))


@given(cases(options=PROFILED))
def test_p13_profiling_marks_nest(case: Case) -> None:
    plan = case.plan
    for core in range(plan.cores):
        opened: list[tuple[SpanKind, int | None]] = []
        for step in plan.program(core):
            if isinstance(step, Record):
                if step.begin:
                    opened.append((step.what, step.op))
                else:
                    assert opened.pop() == (step.what, step.op)
            else:
                assert opened[0] == (SpanKind.KERNEL, None)
            if isinstance(step, Call):
                assert opened[-1] == (SpanKind.OP, step.op)
        assert not opened
    assert not wrong(plan, "P13")


@given(cases(pool=SYNC_ALL), SEEDS)
def test_p14_idle_cores_join_as_many_barriers_as_the_working_cores(case: Case, seed: int) -> None:
    assume(any(op.kernel.sync_all for op in case.ops))
    plan = case.plan
    outcome = simulate(plan, seed)
    assert not seen(outcome, "P14", "P4")
    for call in calls(plan.steps):
        if case.ops[call.op].kernel.sync_all:
            fed = [core for step in plan.steps if isinstance(step, Feed) and step.op == call.op for core in step.cores]
            assert sorted([*call.cores, *fed]) == sorted(call.team)
            assert len({outcome.joins[core].get(call.op, 0) for core in call.team}) == 1
            assert not any(call.op in outcome.joins[core] for core in set(range(plan.cores)) - set(call.team))
    assert not wrong(plan, "P14")


@given(cases())
def test_p15_same_input_same_plan_same_text(case: Case) -> None:
    again = Case(tuple(replace(op) for op in case.ops), case.options, case.cores)
    assert make_plan(case.graph, case.options, case.cores) == case.plan
    assert again.plan.steps == case.plan.steps
    assert str(again.plan) == str(case.plan)


def test_p15_the_text_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import random; from plan.strategies import POOL, _ops, Case, OPTIONS\n"
        "rng = random.Random(3)\n"
        "for number in range(60):\n"
        "    rows = [(rng.randrange(11), rng.randrange(125), rng.randrange(3), rng.randrange(16)) for _ in range(7)]\n"
        "    options = OPTIONS[rng.randrange(len(OPTIONS))]\n"
        "    pool = [use for use in POOL if not use.kernel.sync_all]\n"
        "    print(Case(_ops(rows, pool, options.stream_fusion, False), options, 4).plan)\n"
    )
    tests = Path(__file__).parents[1]
    texts = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        texts.add(run.stdout)
    assert len(texts) == 1


@given(cases(pool=DYNAMIC), SEEDS)
def test_p16_an_unknown_tiling_key_never_calls(case: Case, seed: int) -> None:
    dynamic = [node.index for node in case.graph.nodes if node.dynamic]
    assume(dynamic)
    plan, op = case.plan, dynamic[seed % len(dynamic)]
    for core in plan.placements[op]:
        program = [type(step) for step in plan.program(core) if isinstance(step, Select | Call) and step.op == op]
        assert program == [Select, Call]
    assert sum(isinstance(step, Request) and step.op == op for step in plan.steps) == 1
    outcome = simulate(plan, seed, unknown_key=op)
    assert outcome.trapped is not None
    assert outcome.trapped[0] == op
    assert not any(isinstance(step, Call) and step.op == op for trace in outcome.traces for step in trace)
    assert not wrong(plan, "P16")


@given(cases())
def test_p17_names_events_and_stream_numbers_do_not_matter(case: Case) -> None:
    events = list(dict.fromkeys(event for op in case.ops for event in (*op.send, *op.recv)))
    buffers = list(dict.fromkeys(place.name for node in case.graph.nodes for _, place in node.places()))
    event_ids = {event: 1000 - 7 * i for i, event in enumerate(events)}
    renamed = {name: f"q{len(buffers) - i}" for i, name in enumerate(buffers)}
    ops = tuple(
        replace(
            op,
            name=f"z{99 - i}",
            args=[
                replace(arg, name=renamed[arg.name]) if isinstance(arg, Place) else renamed.get(arg, arg)
                for arg in op.args
            ],
            stream=(2, 0, 1)[op.stream] + 5,
            send=[event_ids[event] for event in op.send],
            recv=[event_ids[event] for event in op.recv],
        )
        for i, op in enumerate(case.ops)
    )
    assert canonical(Case(ops, case.options, case.cores).plan) == canonical(case.plan)


def smaller_waits(plan: Plan) -> list[tuple[str, Plan]]:
    """The plan, each time with one awaited signal less on one core."""
    found = []
    for at, step in enumerate(plan.steps):
        if not isinstance(step, Wait):
            continue
        for core in step.cores:
            others = replace(step, cores=tuple(c for c in step.cores if c != core))
            for which, need in enumerate(step.needs):
                for d in set(need.cores) - {core}:
                    kept = replace(need, cores=tuple(c for c in need.cores if c not in (core, d)))
                    mine = replace(step, cores=(core,), needs=(*step.needs[:which], kept, *step.needs[which + 1 :]))
                    split = (others, mine) if others.cores else (mine,)
                    text = f"core {core} need not see core {d}: {plan.describe(step)}"
                    found.append((text, replace(plan, steps=(*plan.steps[:at], *split, *plan.steps[at + 1 :]))))
    return found


@given(cases(options=FLAGS, min_cores=2))
def test_p18_no_awaited_signal_can_be_left_out(case: Case) -> None:
    for text, thinner in smaller_waits(case.plan):
        assert broken(thinner), text


@given(cases(min_cores=2))
def test_p18_no_signal_is_given_in_vain(case: Case) -> None:
    waits = [step for step in case.plan.steps if isinstance(step, Wait)]
    awaited = {(n.mark, d) for w in waits for n in w.needs for core in w.cores for d in n.cores if d != core}
    given_ = [(s.mark, core) for s in case.plan.steps if isinstance(s, Signal) for core in s.cores]
    assert sorted(given_) == sorted(awaited)


@given(cases(options=FLAGS, min_cores=2))
def test_p18_independent_ops_are_not_ordered(case: Case) -> None:
    real, needed = order_of(case.plan), order_needed(case.plan)
    for where in real.bodies:
        op, core = where
        accidental = real.calls_before(where) - needed.calls_before(where)
        assert not accidental, f"op {op} on core {core} waits for {accidental} without need"


WRITE, READ, COPY = kernel("w", 2, "out:x"), kernel("r", 2, "in:x"), kernel("c", 2, "in:x", "out:y")
PART = kernel("p", 2, "in:x@block", "out:y@block")
ONE = kernel("o", 1, "in:x", "out:y")
COUNTED = {
    "independent": ([(COPY, "ab"), (COPY, "cd"), (READ, "a")], 0, 0),
    "block by block": ([(PART, "ab"), (PART, "bc"), (PART, "cd"), (PART, "da")], 0, 0),
    "all of all": ([(WRITE, "a"), (COPY, "ab")], 1, 1),
    "a chain": ([(COPY, "ab"), (COPY, "bc"), (COPY, "cd")], 2, 2),
    "one core to all": ([(ONE, "ab"), (READ, "b")], 1, 1),
    "one core, then itself": ([(ONE, "ab"), (ONE, "bc")], 0, 0),
    "read twice, waited for once": ([(WRITE, "a"), (READ, "a"), (READ, "a")], 1, 1),
    "implied": ([(COPY, "ab"), (COPY, "bc"), (COPY, "cb"), (READ, "b")], 3, 3),
    "write after all reads": ([(READ, "a"), (READ, "a"), (WRITE, "a")], 1, 1),
}


@pytest.mark.parametrize("graph", COUNTED)
def test_p18_blocking_steps_are_counted(graph: str) -> None:
    ops, flags, barriers = COUNTED[graph]
    built = build_graph([Op(one, list(args)) for one, args in ops])
    made = make_plan(built, Options(), 2), make_plan(built, Options(early_start=EarlyStart.OFF), 2)
    assert [plan.blocking_steps for plan in made] == [flags, barriers]
    kinds = [Counter(type(step) for step in plan.steps if isinstance(step, Wait | Barrier)) for plan in made]
    assert Barrier not in kinds[0]
    assert Wait not in kinds[1]


@given(cases(pool=STATIC, options=PLAIN, streams=1, events=False))
def test_p18_one_core_never_waits(case: Case) -> None:
    assert make_plan(case.graph, case.options, 1).blocking_steps == 0


def long_graph(length: int) -> Graph:
    rng = random.Random(length)
    kernels = [
        kernel(f"k{i}", 1 + i % 2, "in:x", "in:y:float32[8]@block", "out:z:float32[8]@block", waits_inside=i > 3)
        for i in range(8)
    ]
    ops = [Op(rng.choice(kernels), [f"b{rng.randrange(40)}" for _ in range(3)]) for _ in range(length)]
    return build_graph(ops)


def test_a_proof_takes_time_in_proportion_to_the_ops() -> None:
    plans = {length: make_plan(long_graph(length), Options(), 2) for length in (500, 2000)}

    def proof(length: int) -> None:
        assert validate(plans[length]).ok

    assert least(lambda: processor_seconds(lambda: proof(2000)), limit=1.5) < 1.5
    # n log n, with room for noise
    assert grows_by(lambda: proof(500), lambda: proof(2000), limit=4 * 1.5, room=0.05) < 4 * 1.5
