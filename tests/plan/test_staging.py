"""plan.staging: which inputs are staged ahead of their ops, and that plans which stage others do not validate (P24)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from plan.strategies import kernel

from superkernel.errors import GraphError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.staged_input import StagedInput
from superkernel.model.subkernel import SubKernel
from superkernel.plan import Machine, Plan, make_plan, simulate, validate
from superkernel.plan.steps import Call, StageWeights

RING = StagedInput("w", "staged", 64, 4, 8, 1024, 2, 8)
MACHINE = Machine(4, stages=True)


def wide(ring: StagedInput = RING, blocks: int = 4) -> SubKernel:
    params = ["in:w:float32[256]", "in:x:float32[16]", "out:y:float32[16]", "scalar:staged:int32"]
    return replace(kernel("wide", blocks, *params), staged_input=ring)


def small() -> SubKernel:
    return kernel("small", 1, "in:x:float32[16]", "out:y:float32[16]")


def chain(count: int = 3, taking: SubKernel | None = None) -> list[Op]:
    return [Op(taking or wide(), [f"w{n}", f"x{n}", f"x{n + 1}", 0], name=f"op{n}") for n in range(count)]


def planned(ops: list[Op] | Graph, options: str = "", machine: Machine = MACHINE) -> Plan:
    graph = ops if isinstance(ops, Graph) else build_graph(ops)
    plan = make_plan(graph, Options.parse(options), machine)
    assert validate(plan).ok and simulate(plan, 1).ok
    return plan


def staged(plan: Plan) -> list[str]:
    return [step.name for step in plan.steps if isinstance(step, StageWeights)]


def test_inputs_of_consecutive_ops_are_staged_in_their_order() -> None:
    plan = planned(chain())
    assert staged(plan) == ["w0", "w1", "w2"]
    kinds = [type(step) for step in plan.steps if isinstance(step, StageWeights | Call)]
    assert kinds == [StageWeights] * 3 + [Call] * 3
    assert "stage weights of op1: w1" in str(plan)


def test_inputs_of_ops_with_others_between_them_are_staged() -> None:
    ops = chain()
    between = [Op(small(), [f"x{n + 1}", f"z{n}"], name=f"small{n}") for n in range(len(ops))]
    mixed = [op for pair in zip(ops, between, strict=True) for op in pair]
    assert staged(planned(mixed)) == ["w0", "w1", "w2"]


def test_chunks_of_a_block_are_every_so_many_of_the_input() -> None:
    assert list(RING.chunks_of(1, 1024)) == [1, 5, 9, 13]
    assert list(RING.chunks_of(3, 1000)) == [3, 7, 11, 15]
    assert list(RING.chunks_of(3, 64)) == list(RING.chunks_of(4, 1024)) == []


def written(ops: list[Op]) -> list[Op]:
    fills = kernel("fills", 1, "out:w:float32[256]")
    return [*ops, Op(fills, ["w0"], name="fills")]


def received(ops: list[Op]) -> list[Op]:
    return [ops[0], replace(ops[1], recv=(7,)), *ops[2:]]


@pytest.mark.parametrize("change", [written, received, lambda ops: ops[:1]], ids=["written", "event", "one"])
def test_nothing_is_staged_that_may_change_or_gains_nothing(change: Callable[[list[Op]], list[Op]]) -> None:
    assert staged(planned(change(chain()))) == []


@pytest.mark.parametrize(
    ("options", "machine", "taking"),
    [
        ("early-start=0", MACHINE, wide()),
        ("", Machine(4), wide()),
        ("", Machine(3, stages=True), wide()),  # a core has two blocks
        ("", MACHINE, replace(wide(), staged_input=None)),
    ],
    ids=["early-start=0", "no ring", "two blocks", "no staged input"],
)
def test_where_there_is_no_ring_nothing_is_staged(options: str, machine: Machine, taking: SubKernel) -> None:
    assert staged(planned(chain(taking=taking), options, machine)) == []


def test_sub_kernels_with_another_ring_fetch_their_inputs_themselves() -> None:
    other = wide(replace(RING, slots=4))
    ops = [*chain(3), Op(other, ["v", "x3", "x4", 0], name="other")]
    assert staged(planned(ops)) == ["w0", "w1", "w2"]


def test_a_staged_input_names_parameters() -> None:
    with pytest.raises(GraphError, match="staged_input names 'ww', which is no parameter"):
        wide(replace(RING, param="ww"))


def exchanged(plan: Plan) -> Plan:
    steps = list(plan.steps)
    first, second = [at for at, step in enumerate(steps) if isinstance(step, StageWeights)][:2]
    steps[first], steps[second] = steps[second], steps[first]
    return replace(plan, steps=tuple(steps))


def dropped(plan: Plan) -> Plan:
    first = next(step for step in plan.steps if isinstance(step, StageWeights))
    return replace(plan, steps=tuple(step for step in plan.steps if step != first))


def changed(**fields: object) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        steps = list(plan.steps)
        at = next(at for at, step in enumerate(steps) if isinstance(step, StageWeights))
        steps[at] = replace(steps[at], **fields)  # type: ignore[arg-type]
        return replace(plan, steps=tuple(steps))

    return change


def twice(plan: Plan) -> Plan:
    first = next(step for step in plan.steps if isinstance(step, StageWeights))
    return replace(plan, steps=(first, *plan.steps))


def behind(plan: Plan) -> Plan:
    """Staged after its call."""
    first = next(step for step in plan.steps if isinstance(step, StageWeights))
    return replace(plan, steps=(*(step for step in plan.steps if step != first), first))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (exchanged, "in another order than their ops are called"),
        (dropped, "op 'op0' uses the ring itself"),
        (twice, "op 'op0' is staged 2 times"),
        (behind, "no call follows"),
        (changed(cores=(0, 1)), "its cores are not those of the call"),
        (changed(name="w1"), "the op takes another buffer"),
        (changed(name="x1"), "an op of the launch writes it"),
    ],
)
def test_planted_faults_are_found(fault: Callable[[Plan], Plan], message: str) -> None:
    report = validate(fault(planned(chain())))
    assert any(error.property == "P24" and message in error.message for error in report.errors), report
