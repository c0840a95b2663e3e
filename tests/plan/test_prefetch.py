"""plan.prefetch: inputs are asked for in the order of the ops, at most a window ahead of the op that begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.strategies import kernel

from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import Machine, Plan, make_plan, simulate, validate
from superkernel.plan.placement import place
from superkernel.plan.prefetch import prefetch_steps
from superkernel.plan.steps import Call, PrefetchWeights

GROUPS = ((0, 2), (1, 3))
MB = 1 << 20


def layers(count: int, words: int = MB // 4) -> Graph:
    """Ops of four blocks, each with a megabyte of weights."""
    wide = kernel("wide", 4, f"in:w:float32[{words}]", "in:x:float32[64]", "out:y:float32[64]")
    return build_graph([Op(wide, [f"w{number}", f"x{number}", f"x{number + 1}"]) for number in range(count)])


def streamed(graph: Graph, window: int) -> Plan:
    machine = Machine(4, GROUPS, prefetch_window=window)
    plan = make_plan(graph, Options.parse("prefetch-weights=1"), machine)
    assert validate(plan).ok and simulate(plan, 1).ok
    return plan


def asked(plan: Plan) -> list[tuple[int, str, tuple[int, int] | None]]:
    """How many ops have been called before a part is asked for; its name, and the part."""
    found, calls = [], 0
    for step in plan.steps:
        calls += isinstance(step, Call)
        if isinstance(step, PrefetchWeights):
            assert step.cores == (0, 1), "the first core of every group asks"
            found.append((calls, step.names[0], step.part))
    return found


def test_inputs_are_asked_for_a_window_ahead() -> None:
    plan = streamed(layers(4), 2 * MB)
    assert asked(plan) == [
        (0, "w0", (0, MB)),
        (0, "w1", (0, MB)),
        (1, "w2", (0, MB)),
        (2, "w3", (0, MB)),
    ]
    assert "prefetch weights of wide_2: w2, bytes 0 to 1048576" in str(plan)


def test_an_input_is_divided_where_the_window_ends() -> None:
    half = MB // 2
    assert asked(streamed(layers(3), MB + half)) == [
        (0, "w0", (0, MB)),
        (0, "w1", (0, half)),
        (1, "w1", (half, MB)),
        (1, "w2", (0, half)),
        (2, "w2", (half, MB)),
    ]


def test_a_window_smaller_than_an_input_asks_for_its_beginning() -> None:
    assert asked(streamed(layers(2), MB // 4)) == [(0, "w0", (0, MB // 4)), (1, "w1", (0, MB // 4))]


def test_an_input_that_several_ops_read_is_asked_for_once() -> None:
    wide = kernel("wide", 4, f"in:w:float32[{MB // 4}]", "in:x:float32[64]", "out:y:float32[64]")
    graph = build_graph([Op(wide, ["w", f"x{number}", f"x{number + 1}"]) for number in range(3)])
    assert asked(streamed(graph, 8 * MB)) == [(0, "w", (0, MB))]


def test_staged_inputs_are_not_asked_for_but_take_their_place_in_the_window() -> None:
    """What is staged passes through the cache as well: the inputs behind it are no nearer for that."""
    graph = layers(4)
    placement = place(graph, Options(), Machine(4, GROUPS))
    machine = Machine(4, GROUPS, prefetch_window=2 * MB)
    options = Options.parse("prefetch-weights=1")
    found = prefetch_steps(graph, placement, options, machine, {"w0", "w2"})
    assert {rank: [step.names for step in asked_for] for rank, asked_for in found.items()} == {
        0: [("w1",)],
        2: [("w3",)],
    }


@pytest.mark.parametrize(("pure", "expected"), [(False, True), (True, False)])
def test_what_an_op_changes_in_part_is_asked_for(pure: bool, expected: bool) -> None:
    """An op that is pure writes all of its output: what was there before is never read."""
    append = replace(kernel("append", 1, "in:x:float32[64]", f"out:cache:float32[{MB // 4}]"), pure=pure)
    attend = kernel("attend", 4, f"in:cache:float32[{MB // 4}]", "out:y:float32[64]")
    graph = build_graph([Op(append, ["x", "cache"]), Op(attend, ["cache", "y"])])
    assert bool(asked(streamed(graph, 8 * MB))) is expected


def test_nothing_is_asked_for_without_the_option() -> None:
    plan = make_plan(layers(2), Options(), Machine(4, GROUPS, prefetch_window=MB))
    assert not any(isinstance(step, PrefetchWeights) for step in plan.steps)
