"""Plans of random lists validate; what is left out or lost is found; what need not wait does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from targets.ascend.random_lists import kernel, random_ops, random_options
from targets.ascend.sampling import first_of

from superkernel.errors import PlanError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan.steps import Call
from superkernel.targets.ascend import class_clocks as knowledge
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass, KernelType, OpClass
from superkernel.targets.ascend.pairs import PAIRS, Action, Pair, pairs_for
from superkernel.targets.ascend.plan import AscendPlan, make_ascend_plan
from superkernel.targets.ascend.steps import Arrive, Meet
from superkernel.targets.ascend.validate import validate

CHIP = find_chip("a3")
PARAMS = ("in:x", "in:y", "out:z")
AIV, AIC, MIX = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2


def case(seed: int, most: int = 25) -> tuple[Graph, Options]:
    choose = random.Random(seed)
    ops, options = random_ops(choose, choose.randint(1, most)), Options.parse(random_options(choose))
    return build_graph(ops, "case", options.stream_fusion), options


def plan_of(ops: list[Op], options: str = "") -> AscendPlan:
    parsed = Options.parse(options)
    plan = make_ascend_plan(build_graph(ops, "small", parsed.stream_fusion), parsed, CHIP)
    assert validate(plan).ok, str(validate(plan))
    return plan


@pytest.mark.parametrize("batch", first_of(range(10), 2))
def test_random_lists_have_valid_plans(batch: int) -> None:
    for seed in range(40 * batch, 40 * batch + 40):
        graph, options = case(seed)
        plan = make_ascend_plan(graph, options, CHIP)
        report = validate(plan)
        assert report.ok, f"seed {seed}, {options}\n{report}"
        assert str(plan) == str(make_ascend_plan(graph, options, CHIP))


def test_debug_check_says_that_nothing_is_checked_here() -> None:
    vec = kernel("vec", AIV, 8, *PARAMS)
    assert "debug-check: the emulator does not compare" in str(plan_of([Op(vec, ["x", "w", "y"])], "debug-check=1"))
    assert "debug-check" not in str(plan_of([Op(vec, ["x", "w", "y"])]))


def test_a_long_list_never_fills_a_flag() -> None:
    """Cubes that vectors follow, and nothing that ever holds the cubes back."""
    vec, cube = kernel("vec", AIV, 8, *PARAMS), kernel("cube", AIC, 4, *PARAMS)
    ops = []
    for i in range(60):
        ops += [Op(cube, [f"x{i}", "w", f"c{i}"]), Op(vec, [f"c{i}", "w", f"v{i}"])]
    late = [Op(vec, [f"v{i}", "w", f"y{i}"]) for i in range(60)]
    for options in ("", "early-start=2", "stream-fusion=1", "early-start=0"):
        plan_of([*ops, *late], options)


def test_arrivals_far_ahead_of_their_waits_never_fill_a_flag() -> None:
    vec = kernel("vec", AIV, 8, *PARAMS)
    ops = [Op(vec, [f"x{i}", "w", f"t{i}"]) for i in range(40)] + [Op(vec, [f"t{i}", "w", f"y{i}"]) for i in range(40)]
    plan_of(ops)


@pytest.mark.parametrize(("limit", "count"), first_of([(3, 20), (3, 60), (4, 60)], 1))
def test_flags_that_hold_little_are_never_filled(limit: int, count: int) -> None:
    chip = replace(CHIP, flag_limit=limit)
    for seed in range(count):
        graph, options = case(seed, 50)
        report = validate(make_ascend_plan(graph, options, chip))
        assert report.ok, f"seed {seed}, {options}\n{report}"


def test_a_plan_that_may_fill_a_flag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever class runs ahead: planned for flags that hold more than those of the chip."""
    begin = knowledge.ClassClocks.__init__
    monkeypatch.setattr(
        knowledge.ClassClocks, "__init__", lambda self, launch, limit, split: begin(self, launch, limit + 4, split)
    )
    vec, cube = kernel("vec", AIV, 8, *PARAMS), kernel("cube", AIC, 4, *PARAMS)
    for first, second in ((cube, vec), (vec, cube)):
        ops = [Op(one, [f"x{i}", "w", f"{one.name}{i}"]) for i in range(12) for one in (cube, vec)]
        ops += [Op(second, [f"{first.name}{i}", "w", f"y{i}"]) for i in range(12)]
        options = Options()
        plan = make_ascend_plan(build_graph(ops, "full"), options, replace(CHIP, flag_limit=6))
        assert {finding.property for finding in validate(plan).errors} == {"P5"}


@pytest.mark.parametrize("count", first_of([15, 60], 1))
def test_a_sync_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Every sync is needed, except where one that comes later happens to do its work as well."""
    whole = knowledge.ClassClocks.sync
    left_out = found = 0
    for seed in range(count):
        graph, options = case(seed, 12)
        if options.early_start == 0 and not options.stream_fusion:
            continue
        made: list[int] = []

        def counting(self: Any, *args: Any, made: list[int] = made) -> tuple[Pair, ...]:
            made.extend([1] * bool(args[3]))
            return whole(self, *args)

        monkeypatch.setattr(knowledge.ClassClocks, "sync", counting)
        make_ascend_plan(graph, options, CHIP)
        for missing in range(len(made)):
            seen: list[int] = []

            def skipping(self: Any, *args: Any, seen: list[int] = seen, missing: int = missing) -> tuple[Pair, ...]:
                seen.extend([1] * bool(args[3]))
                return () if args[3] and len(seen) == missing + 1 else whole(self, *args)

            monkeypatch.setattr(knowledge.ClassClocks, "sync", skipping)
            left_out += 1
            found += not validate(make_ascend_plan(graph, options, CHIP)).ok
    assert left_out > 3 * count and found >= 0.98 * left_out


@pytest.mark.parametrize(
    ("kind", "count"), first_of([(kind, count) for count in (12, 40) for kind in (Arrive, Meet, Call)], 3)
)
def test_a_step_that_is_lost_is_found(kind: type, count: int) -> None:
    lost = 0
    for seed in range(count):
        graph, options = case(seed, 12)
        plan = make_ascend_plan(graph, options, CHIP)
        for place in [place for place, step in enumerate(plan.steps) if isinstance(step, kind)]:
            steps = plan.steps[:place] + plan.steps[place + 1 :]
            assert not validate(replace(plan, steps=steps)).ok, f"seed {seed}: {plan.describe(plan.steps[place])}"
            lost += 1
    assert lost > count


def test_debug_options_only_add_steps() -> None:
    for seed in range(20):
        graph, options = case(seed)
        plain = replace(options, debug_sync_all=False, debug_dcci_all=False)
        debugged = replace(options, debug_sync_all=True, debug_dcci_all=True)
        assert (
            make_ascend_plan(graph, debugged, CHIP).without_debug().steps == make_ascend_plan(graph, plain, CHIP).steps
        )


def test_names_and_event_numbers_do_not_matter() -> None:
    def renamed(op: Op, i: int) -> Op:
        return Op(
            op.kernel,
            [f"n{arg}" for arg in op.args],
            f"other{i}",
            op.stream,
            [int(e) + 5000 for e in op.send],
            [int(e) + 5000 for e in op.recv],
            op.task,
        )  # type: ignore[arg-type]

    for seed in range(15):
        choose = random.Random(seed)
        ops, options = random_ops(choose, 12), Options.parse(random_options(choose))
        first, second = (
            make_ascend_plan(build_graph(listed, "p17", options.stream_fusion), options, CHIP)
            for listed in (ops, [renamed(op, i) for i, op in enumerate(ops)])
        )
        assert [(type(a), a.cores, getattr(a, "op", None)) for a in first.steps] == [
            (type(b), b.cores, getattr(b, "op", None)) for b in second.steps
        ]


# the pair table


def test_the_pair_codes() -> None:
    codes = {str(pair.producer.name)[2:] + str(pair.consumer.name)[2:]: pair.code for pair in PAIRS}
    assert codes == {"CC": 0, "CV": 1, "CX": 2, "VC": 4, "VV": 5, "VX": 6, "XC": 8, "XV": 9, "XX": 10}


def test_sub_kernels_follow_the_same_table() -> None:
    """The rows of the header that sub-kernels include, as bits, are those of the table."""
    from superkernel.targets import ascend

    header = (Path(ascend.__file__).parent / "include" / "superkernel" / "subkernel.h").read_text()
    rows = [line for line in header.splitlines() if "sk_pair_row[16] =" in line]
    bits = {Action.WAIT_ALL: 1, Action.SIGNAL: 2, Action.WAIT_BLOCK: 4}
    for one, line in zip((CUBE, VECTOR), rows, strict=True):
        found = [int(number) for number in line.split("{")[1].split("}")[0].split(",")]
        expected = [0] * 16
        for pair, row in PAIRS.items():
            expected[pair.code] = sum(bits[action] for action in row[one])
        assert found == expected


def test_any_need_is_met_by_one_row_or_by_one_per_class() -> None:
    needs = [(a, b) for a in CoreClass for b in CoreClass]
    for chosen in range(1, 16):
        wanted = frozenset(need for bit, need in enumerate(needs) if chosen >> bit & 1)
        rows = [PAIRS[pair] for pair in pairs_for(wanted)]
        for of, by in wanted:
            part = [row for row in rows if Action.WAIT_ALL in row[of]]
            assert part, f"{wanted}: nobody waits for all {of}"
            assert of is by or any(Action.SIGNAL in row[of] and Action.WAIT_BLOCK in row[by] for row in part)


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in OpClass for b in OpClass])
def test_neighbours_sync_by_the_row_of_their_pair(first: OpClass, second: OpClass) -> None:
    of = {OpClass.AIC: AIC, OpClass.AIV: AIV, OpClass.MIX: MIX}
    ops = [
        Op(kernel("a", of[first], 4, *PARAMS), ["x", "y", "t"]),
        Op(kernel("b", of[second], 4, *PARAMS), ["t", "y", "z"]),
    ]
    plan = plan_of([*ops, Op(kernel("c", MIX, 4, *PARAMS), ["p", "q", "r"])])
    row = PAIRS[Pair(first, second)]
    for one in CoreClass:
        actions = [
            action for step in plan.steps if isinstance(step, Meet) and step.cores == (one,) for action in step.actions
        ]
        assert tuple(actions) == row[one]
        arrivals = sum(isinstance(step, Arrive) and step.cores == (one,) for step in plan.steps)
        assert arrivals == (one in first.classes)


# what need not wait does not


def test_independent_ops_do_not_wait() -> None:
    ops = [
        Op(kernel(f"k{i}", kind, 4, *PARAMS), [f"x{i}", "y", f"z{i}"]) for i, kind in enumerate((AIV, AIC, MIX, AIV))
    ]
    for options in ("", "early-start=0", "early-start=2", "stream-fusion=1"):
        assert plan_of(ops, options).flag_actions == 0


def test_an_implied_edge_costs_nothing() -> None:
    vec = kernel("vec", AIV, 8, *PARAMS)
    ops = [Op(vec, ["x", "y", "a"]), Op(vec, ["a", "y", "b"]), Op(vec, ["a", "b", "c"])]
    plan = plan_of(ops)
    assert len(plan.graph.edges) == 3 and plan.pair_counts == {"vector-vector": 2}
    assert plan.sync_counts == {"none": 1, "counter": 2}


# refusals of events and streams


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda k: [Op(k, ["x", "y", "z"], recv=[1])], "first of the list"),
        (lambda k: [Op(k, ["x", "y", "z"]), Op(k, ["a", "b", "c"], send=[1], recv=[1])], "wait for itself"),
        (lambda k: [Op(k, ["x", "y", "z"], send=[1]), Op(k, ["a", "b", "c"], send=[1])], "two senders"),
        (
            lambda k: [Op(k, ["x", "y", "z"]), Op(k, ["a", "b", "c"], recv=[1]), Op(k, ["d", "e", "f"], send=[1])],
            "before",
        ),
        (
            lambda k: [
                Op(k, ["x", "y", "z"]),
                Op(k, ["a", "b", "c"], recv=[1]),
                Op(k, ["d", "e", "f"], stream=1, send=[1]),
            ],
            "stream-fusion=1",
        ),
    ],
)
def test_orders_that_cannot_be(build: Callable[[Any], list[Op]], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_of(build(kernel("k", AIV, 4, *PARAMS)))
