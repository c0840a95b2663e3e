"""targets.cpu: profiling: every op of every core is there, marks nest, times lie within the launch."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from targets.cpu.small import assert_same, compile_ops, numbers, small

from superkernel import Op, SuperKernel
from superkernel.plan.spans import Span

OPS = [
    Op(small("mix", 4), ["a", "b", "t"], name="first"),
    Op(small("chain", 1), ["t", "u"], name="second"),
    Op(small("total", 2), ["u", "ws", "v"], name="third"),
    Op(small("mix", 4), ["v", "t", "w"], name="fourth", send=["told"]),
]


@pytest.fixture(scope="module")
def profiled() -> SuperKernel:
    return compile_ops(OPS, "profiled", "profiling=1:feed-sync-all=1")


def nested(one: Span, other: Span) -> bool:
    apart = one.end_ns <= other.begin_ns or other.end_ns <= one.begin_ns
    inside = one.begin_ns <= other.begin_ns and other.end_ns <= one.end_ns
    around = other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns
    return apart or inside or around


def test_every_op_is_there_once_for_each_of_its_cores(profiled: SuperKernel) -> None:
    for _ in range(3):
        profiled(numbers("a", "b"))
        found = [(span.op, span.core) for span in profiled.records() if span.what == "op"]
        assert sorted(found) == sorted(
            (node.name, core) for node in profiled.graph.nodes for core in profiled.plan.placements[node.index]
        )
        kernels = [span.core for span in profiled.records() if span.what == "kernel"]
        assert sorted(kernels) == [0, 1]
        assert {"wait", "notify"} <= {span.what for span in profiled.records()}


def test_marks_nest_on_each_core(profiled: SuperKernel) -> None:
    profiled(numbers("a", "b"))
    for core in (0, 1):
        own = [span for span in profiled.records() if span.core == core]
        assert all(nested(one, other) for one, other in combinations(own, 2))
        whole = next(span for span in own if span.what == "kernel")
        assert all(whole.begin_ns <= span.begin_ns <= span.end_ns <= whole.end_ns for span in own)


def test_times_lie_within_the_launch(profiled: SuperKernel) -> None:
    begin = time.monotonic_ns()
    profiled(numbers("a", "b"))
    end = time.monotonic_ns()
    slack = 1000  # two clocks are read one after the other
    spans = profiled.records()
    assert spans and all(begin - slack <= s.begin_ns <= s.end_ns <= end + slack for s in spans)


def test_a_dependent_op_begins_after_the_op_it_needs(profiled: SuperKernel) -> None:
    profiled(numbers("a", "b"))
    spans = {(span.op, span.core): span for span in profiled.records() if span.what == "op"}
    slack = 1000
    for core in (0, 1):
        assert spans["fourth", core].begin_ns + slack >= max(spans["third", other].end_ns for other in (0, 1))


def test_profiling_changes_no_result(profiled: SuperKernel) -> None:
    assert_same(profiled, numbers("a", "b"), launches=10)


def test_nothing_is_recorded_when_it_is_off() -> None:
    with compile_ops(OPS, "unprofiled", "feed-sync-all=1") as k:
        k(numbers("a", "b"))
        assert k.records() == ()
        assert "record" not in k.source
