"""targets.cpu: every fused launch gives what numpy and the unfused run give, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from targets.cpu.small import N, assert_same, compile_ops, numbers, small

import superkernel as sk
from superkernel import Op, SuperKernel
from superkernel.plan.steps import Barrier, Call, Wait

pytestmark = pytest.mark.slow

CORES = (1, 2, 4)


def waits(kernel: SuperKernel) -> int:
    return sum(isinstance(step, Wait | Barrier) for step in kernel.plan.steps)


@pytest.mark.parametrize(("cores", "early"), [(1, 1), (2, 0), (2, 1), (2, 2), (3, 1), (4, 0), (4, 2)])
def test_a_chain_of_dependent_ops(cores: int, early: int) -> None:
    mix, fold = small("mix", 4), small("fold", 4)
    ops = [Op(mix, ["a", "b", "t"]), Op(fold, ["t", "a"]), Op(mix, ["t", "t", "u"]), Op(mix, ["u", "t", "v"])]
    with compile_ops(ops, "dependent", f"early-start={early}", cores) as k:
        assert k.plan.cores == cores
        assert waits(k) or cores == 1
        assert any(isinstance(step, Barrier) for step in k.plan.steps) == (early == 0 and cores > 1)
        assert_same(k, numbers("a", "b"), launches=20)


@pytest.mark.parametrize("cores", CORES)
def test_local_edges_need_no_wait(cores: int) -> None:
    scale = small("scale", 4)
    with compile_ops([Op(scale, ["a", "t"]), Op(scale, ["t", "u"]), Op(scale, ["u", "v"])], "local", "", cores) as k:
        assert waits(k) == 0
        assert_same(k, numbers("a"), launches=20)


@pytest.mark.parametrize("cores", (2, 3))
def test_more_blocks_than_cores_wrap_around(cores: int) -> None:
    ops = [
        Op(small("mix", 16), ["a", "b", "t"]),
        Op(small("scale", 12), ["t", "u"]),
        Op(small("mix", 5), ["u", "t", "v"]),
    ]
    with compile_ops(ops, "wrapped", "", cores) as k:
        assert_same(k, numbers("a", "b"), launches=20)


def test_a_single_producer_is_waited_for_with_a_flag() -> None:
    ops = [Op(small("chain", 1), ["a", "t"]), Op(small("mix", 2), ["t", "b", "u"]), Op(small("chain", 1), ["u", "v"])]
    with compile_ops(ops, "flags") as k:
        assert "flag" in k.plan.sync_counts
        assert_same(k, numbers("a", "b"), launches=20)


@pytest.mark.parametrize("cores", (2, 4))
def test_lanes_of_two_streams_that_meet(cores: int) -> None:
    chain, mix = small("chain", 1), small("mix", 2)
    ops = [
        Op(chain, ["a", "p"], stream=1),
        Op(chain, ["b", "q"], stream=2, send=["q"]),
        Op(chain, ["p", "r"], stream=1),
        Op(chain, ["q", "s"], stream=2),
        Op(chain, ["q", "u"], stream=1, recv=["q"]),
        Op(mix, ["r", "s", "v"], stream=1),
        Op(mix, ["v", "u", "w"], stream=2),
    ]
    with compile_ops(ops, "lanes", "stream-fusion=1", cores) as k:
        assert len(k.plan.lanes) > 1
        assert_same(k, numbers("a", "b"), launches=30)


def test_independent_branches_run_side_by_side_in_one_stream() -> None:
    chain = small("chain", 1)
    ops = [Op(chain, ["a", "p"]), Op(chain, ["b", "q"]), Op(chain, ["p", "r"]), Op(chain, ["q", "s"])]
    with compile_ops(ops, "branches", "stream-fusion=1") as k:
        used = [step.cores for step in k.plan.steps if isinstance(step, Call)]
        assert used == [(0,), (1,), (0,), (1,)]
        assert_same(k, numbers("a", "b"), launches=20)


def test_one_buffer_written_again_and_again() -> None:
    """Write-after-read and write-after-write hazards, the same name on both sides of an op."""
    mix, fold = small("mix"), small("fold")
    ops = [
        Op(mix, ["a", "b", "t"]),
        Op(fold, ["b", "t"]),
        Op(mix, ["b", "t", "a"]),
        Op(fold, ["t", "a"]),
        Op(mix, ["t", "t", "b"]),
        Op(mix, ["a", "b", "t"]),
    ]
    with compile_ops(ops, "again") as k:
        assert_same(k, numbers("a", "b"), launches=50)


def test_one_kernel_with_different_aliases_runs_unfused_as_fused() -> None:
    """Ops share a binary when run alone only if the same parameters share memory."""
    blend = small("blend")
    ops = [Op(blend, ["a", "b", "a", "t"]), Op(blend, ["a", "b", "b", "u"]), Op(blend, ["t", "t", "u", "v"])]
    with compile_ops(ops, "aliases") as k:
        assert_same(k, numbers("a", "b"))


def test_many_ops_on_more_threads_than_cores() -> None:
    mix, fold = small("mix", 8), small("fold", 6)
    ops = [Op(mix, ["a", "b", "t0"])]
    for i in range(40):
        ops.append(Op(fold, [f"t{i}", "a"]) if i % 3 == 2 else Op(mix, [f"t{i}", "b", f"t{i + 1}"]))
        if i % 3 == 2:
            ops.append(Op(mix, [f"t{i}", "a", f"t{i + 1}"]))
    with compile_ops(ops, "many", "", 8) as k:
        assert_same(k, numbers("a", "b"), launches=10)


def test_outputs_that_are_not_passed_are_allocated_and_returned() -> None:
    mix = small("mix")
    with sk.compile([Op(mix, ["a", "b", "t"]), Op(mix, ["t", "b", "c"])], "made", outputs=["t", "c"]) as k:
        arrays = numbers("a", "b")
        made = k(arrays)
        assert list(made) == ["t", "c"]
        for name in made:
            np.testing.assert_array_equal(made[name], k.unfused()(arrays)[name])


def test_scalars_by_value_and_by_name() -> None:
    late = small("late")
    with compile_ops([Op(late, ["a", "t", 10]), Op(late, ["t", "u", "times"])], "scalars") as k:
        arrays = numbers("a")
        found = k({**arrays, "times": 20})
        np.testing.assert_array_equal(found["u"], 9 * (9 * arrays["a"] + 4) + 4)
        assert found["u"].shape == (N,)
