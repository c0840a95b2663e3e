"""targets.cpu: all-core barriers inside sub-kernels: the op's own cores arrive, idle cores are fed, nothing hangs."""

from __future__ import annotations

import pytest
from targets.cpu.small import assert_same, broken, compile_ops, numbers, small

from superkernel import LaunchError, Op, PlanError
from superkernel.plan.steps import Feed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cores", (1, 2, 4))
def test_as_many_blocks_as_cores(cores: int) -> None:
    total, mix = small("total", cores), small("mix", cores)
    ops = [Op(mix, ["a", "b", "t"]), Op(total, ["t", "ws", "u"]), Op(total, ["u", "ws", "v"]), Op(mix, ["v", "t", "w"])]
    with compile_ops(ops, "meeting", "", cores) as k:
        assert_same(k, numbers("a", "b"), launches=20)


@pytest.mark.parametrize(("blocks", "cores"), [(1, 2), (2, 3), (2, 4), (3, 4)])
def test_idle_cores_are_fed(blocks: int, cores: int) -> None:
    total, mix = small("total", blocks), small("mix", cores)
    ops = [
        Op(mix, ["a", "b", "t"]),
        Op(total, ["t", "ws", "u"]),
        Op(total, ["u", "ws2", "v"]),
        Op(mix, ["v", "t", "w"]),
        Op(total, ["w", "ws", "x"]),
    ]
    with compile_ops(ops, "fed", "feed-sync-all=1", cores) as k:
        assert sum(isinstance(step, Feed) for step in k.plan.steps) == 3
        assert_same(k, numbers("a", "b"), launches=20)


def test_fewer_blocks_than_cores_without_feeding_is_refused() -> None:
    ops = [Op(small("mix", 2), ["a", "b", "t"]), Op(small("total", 1), ["t", "ws", "u"])]
    with pytest.raises(PlanError, match=r"op 'total' calls sync_all with 1 blocks .* feed-sync-all=1"):
        compile_ops(ops, "unfed")


def test_more_blocks_than_cores_are_refused() -> None:
    with pytest.raises(PlanError, match=r"op 'total' calls sync_all with 4 blocks, but there are 2 cores"):
        compile_ops([Op(small("total", 4), ["a", "ws", "t"])], "crowd")


def test_two_lanes_meet_each_on_its_own() -> None:
    total = small("total", 2)
    ops = [
        Op(total, ["a", "ws1", "t"], stream=1),
        Op(total, ["b", "ws2", "u"], stream=2),
        Op(total, ["t", "ws1", "v"], stream=1),
        Op(total, ["u", "ws2", "w"], stream=2),
    ]
    with compile_ops(ops, "two_meetings", "stream-fusion=1:feed-sync-all=1", 4) as k:
        assert_same(k, numbers("a", "b"), launches=20)


@pytest.mark.parametrize("cores", (1, 2))
def test_an_undeclared_meeting_is_an_error_and_never_a_hang(cores: int) -> None:
    kernel = broken("meet", 2, sync_all=False)
    with compile_ops([Op(kernel, ["z"], name="liar")], "undeclared", "debug-watchdog=5", cores) as k:
        for _ in range(3):
            arrays = numbers("z")
            with pytest.raises(LaunchError, match=r"super_kernel_scope 'undeclared': op 'liar' called sync_all"):
                k(arrays)


def test_a_meeting_that_one_block_misses_ends_with_the_watchdog() -> None:
    with compile_ops([Op(broken("stand_up", 2), ["z"])], "missed", "debug-watchdog=3") as k:
        for _ in range(2):
            with pytest.raises(
                LaunchError, match=r"super_kernel_scope 'missed': no progress .*stalled in waits"
            ) as told:
                k(numbers("z"))
            assert "core 0: waiting in call stand_up" in str(told.value)
            assert "core 1: finished" in str(told.value)
