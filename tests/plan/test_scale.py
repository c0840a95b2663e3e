"""The planner and the proof at the size of an accelerator: time follows classes of cores, not cores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from measured import grows_by, least, processor_seconds
from plan.strategies import kernel

from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import Machine, make_plan, simulate, validate

LAYER = ((1, "norm"), (264, "qkv"), (32, "rope"), (64, "attention"), (132, "project"), (1, "norm2"), (528, "up"))


def decode_graph(ops: int, cores: int) -> Graph:
    """Layers of a decode step: each op reads what the one before has written, and a weight of its own."""
    kernels = [kernel(name, min(blocks, cores), "in:x", "in:w", "out:y") for blocks, name in LAYER]
    built = [Op(kernels[i % len(kernels)], [f"t{i}", f"w{i}", f"t{i + 1}"]) for i in range(ops)]
    return build_graph(built)


def all_to_all_graph(ops: int, cores: int) -> Graph:
    wide = kernel("wide", cores, "in:x", "in:y", "out:z")
    return build_graph([Op(wide, [f"t{i}", f"t{max(0, i - 3)}", f"t{i + 1}"]) for i in range(ops)])


def mixed_graph(ops: int, cores: int) -> Graph:
    kernels = [
        kernel(f"k{width}", width, "in:x", "in:y:float32[1056]@block", "out:z:float32[1056]@block")
        for width in (1, 2, cores // 2, cores)
    ]
    return build_graph([Op(kernels[i * 7 % 4], [f"b{i * 5 % 40}", f"b{i * 3 % 40}", f"b{i % 40}"]) for i in range(ops)])


def proving(graph: Graph, cores: int) -> Callable[[], None]:
    def plan_and_proof() -> None:
        plan = make_plan(graph, Options(), Machine(cores))
        assert validate(plan, plan.layout).ok

    return plan_and_proof


@pytest.mark.parametrize(
    ("graph", "cores"),
    [(decode_graph(400, 528), 528), (mixed_graph(2000, 16), 16), (all_to_all_graph(200, 264), 264)],
    ids=["400 decode ops on 528 cores", "2000 ops on 16 cores", "200 all-to-all ops on 264 cores"],
)
def test_a_plan_is_made_and_proven_within_a_second(graph: Graph, cores: int) -> None:
    work = proving(graph, cores)
    assert least(lambda: processor_seconds(work), limit=1.0) < 1.0


def test_time_grows_with_ops_and_not_with_cores() -> None:
    small, large = proving(mixed_graph(500, 16), 16), proving(mixed_graph(2000, 16), 16)
    assert grows_by(small, large, limit=4 * 1.5, room=0.05) < 4 * 1.5
    few, many = proving(decode_graph(400, 2), 2), proving(decode_graph(400, 528), 528)
    assert grows_by(few, many, limit=8, room=0.05) < 8  # 2 classes against 7


def test_a_simulation_of_many_blocks_takes_two_seconds() -> None:
    kernels = [kernel(f"k{i}", 2048, "in:x", "in:w", "out:y") for i in range(9)]
    graph = build_graph([Op(k, [f"t{i}", f"w{i}", f"t{i + 1}"]) for i, k in enumerate(kernels)])
    plan = make_plan(graph, Options(), Machine(132))

    def simulated() -> None:
        assert simulate(plan, 1).ok

    assert least(lambda: processor_seconds(simulated), limit=2.0) < 2.0
