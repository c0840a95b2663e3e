"""targets.cpu: sub-kernels that wait and signal at points of their own, on every path and under every setting."""

from __future__ import annotations

import pytest
from targets.cpu.small import assert_same, compile_ops, numbers, small

from superkernel import Op
from superkernel.plan.steps import Barrier, Signal, Wait

pytestmark = pytest.mark.slow

SETTINGS = (0, 1, 2)


@pytest.mark.parametrize(("cores", "early"), [(1, 1), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1)])
def test_a_kernel_waits_and_signals_inside(cores: int, early: int) -> None:
    first, late = small("early", 4), small("late", 4)
    ops = [
        Op(late, ["a", "t", 3000]),
        Op(first, ["t", "b", "u"]),
        Op(small("hasty", 4), ["u", "v"]),
        Op(first, ["v", "a", "t"]),
        Op(small("mix", 4), ["t", "u", "w"]),
    ]
    with compile_ops(ops, "inside", f"early-start={early}", cores) as k:
        inside = [step for step in k.plan.steps if isinstance(step, Wait | Signal) and step.inside]
        assert bool(inside) == (early == 1 and cores > 1)
        assert_same(k, numbers("a", "b"), launches=30)


@pytest.mark.parametrize("early", SETTINGS)
def test_paths_on_which_a_kernel_neither_waits_nor_signals(early: int) -> None:
    """Three blocks per core: the odd ones return at once, the last one of a core may never say that it is done."""
    seldom, late = small("seldom", 6), small("late", 6)
    ops = [
        Op(late, ["a", "t", 3000]),
        Op(seldom, ["t", "u"]),
        Op(seldom, ["u", "v"]),
        Op(late, ["v", "t", 2000]),
        Op(seldom, ["t", "w"]),
    ]
    with compile_ops(ops, "paths", f"early-start={early}") as k:
        assert_same(k, numbers("a"), launches=50)


@pytest.mark.parametrize("early", SETTINGS)
def test_a_parameter_that_is_read_before_the_wait_point(early: int) -> None:
    """`w` is produced in the same launch: it must be there when the op starts, not only at its wait point."""
    reads_w, late = small("early", 4, early_start=("w",)), small("late", 4)
    ops = [
        Op(late, ["a", "w", 4000]),
        Op(late, ["b", "x", 4000]),
        Op(reads_w, ["x", "w", "t"]),
        Op(late, ["t", "u", 1]),
    ]
    with compile_ops(ops, "before", f"early-start={early}") as k:
        assert_same(k, numbers("a", "b"), launches=50)


def test_a_kernel_that_must_not_start_early_waits_outside() -> None:
    kernel = small("early", 4, early_start=False)
    ops = [Op(small("late", 4), ["a", "t", 3000]), Op(kernel, ["t", "t", "u"])]
    with compile_ops(ops, "never") as k:
        waits = [step for step in k.plan.steps if isinstance(step, Wait | Barrier)]
        assert waits and not any(isinstance(step, Wait) and step.inside for step in waits)
        assert_same(k, numbers("a"), launches=30)


def test_a_signal_hands_on_what_its_core_has_not_waited_for_itself() -> None:
    """The last op only waits for the op in the middle, which must not say that it is done before the first one is."""
    ops = [
        Op(small("late", 4), ["a", "t", 20_000]),
        Op(small("shy", 1, early_start=True), ["t", "z", 1]),
        Op(small("mix", 4), ["z", "t", "u"]),
    ]
    with compile_ops(ops, "handed_on", "", 4) as k:
        waits = [step for step in k.plan.steps if isinstance(step, Wait) and not step.inside]
        assert [[need.text(k.plan.op_names) for need in step.needs] for step in waits] == [["shy done on 0"]]
        assert_same(k, numbers("a", "z"), launches=50)


def test_more_waits_than_an_op_can_put_off() -> None:
    """Ten producers on lanes of their own: what does not fit is waited for before the op starts."""
    chain = small("chain", 1)
    ops = [Op(chain, ["a", f"t{i}"], stream=i, send=[i]) for i in range(10)]
    ops += [Op(small("early", 2), ["t9", "b", "u"], stream=9, recv=list(range(9)))]
    with compile_ops(ops, "crowded", "stream-fusion=1", 10) as k:
        needs = [len(step.needs) for step in k.plan.steps if isinstance(step, Wait) and step.inside]
        assert max(needs) > 8
        assert_same(k, numbers("a", "b"), launches=10)
