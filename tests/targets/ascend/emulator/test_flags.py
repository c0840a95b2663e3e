"""Flags between emulated cores: what they order, what they count, and how a missing or surplus one is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from targets.ascend.emulator.hand import HandOp, emitted_by_hand, mixed_launch, numbers, run, turned, vector_launch

from superkernel.errors import LaunchError
from superkernel.targets.ascend.core_types import KernelType

AIV, AIC, MIX_1_2 = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2
SEEDS = range(12)
CHAIN = """
    if (!is_cube && vector_index() < 8) bulk(1);
    arrive(14);
    wait_flag_dev(14);
    if (!is_cube && vector_index() < 8) bulk(3);
    pipe_barrier(PIPE_ALL);
"""
TWO = [HandOp("bulk", ("a", "b"), AIV, 8), HandOp("bulk", ("b", "c"), AIV, 8)]


def launched(body: str, ops: list[HandOp] = TWO, blocks: int = 8, mixed: bool = False, seed: int = 0) -> None:
    """Runs a chain a -> b -> c and checks it."""
    launch = mixed_launch(blocks) if mixed else vector_launch(blocks)
    emitted, graph = emitted_by_hand(body, ops, launch)
    a = numbers(ops[0].blocks, seed)
    buffers = {"a": a} | {str(op.args[1]): np.zeros_like(a) for op in ops}
    run(emitted, graph, buffers, seed)
    assert all(np.array_equal(buffers[str(op.args[1])], turned(buffers[str(op.args[0])])) for op in ops)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_class_wide_flag_orders_two_ops(seed: int) -> None:
    launched(CHAIN, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_the_wait_a_read_is_not_ordered(seed: int) -> None:
    body = CHAIN.replace("    wait_flag_dev(14);\n", "").replace("    arrive(14);\n", "")
    with pytest.raises(LaunchError, match="op 'op1' passes its wait point, and nothing orders it after op 'op0'"):
        launched(body, seed=seed)


def test_a_wait_without_a_signal_is_a_deadlock_that_names_flag_op_and_line() -> None:
    with pytest.raises(LaunchError, match=r"deadlock.*\n *8 wait for flag 14, after op 'op0' \(line \d+\)") as caught:
        launched(CHAIN.replace("    arrive(14);\n", ""))
    emitted, _ = emitted_by_hand(CHAIN.replace("    arrive(14);\n", ""), TWO, vector_launch(8))
    line = int(str(caught.value).partition("(line ")[2].partition(")")[0])
    assert emitted.source.splitlines()[line - 1].strip() == "wait_flag_dev(14);"


def test_one_core_that_does_not_arrive_holds_up_all_of_its_class() -> None:
    with pytest.raises(LaunchError, match=r"deadlock.*\n.*8 wait for flag 14"):
        launched(CHAIN.replace("    arrive(14);", "    if (vector_index() != 5) arrive(14);"))


def test_a_signal_nobody_waits_for_is_left_over() -> None:
    with pytest.raises(
        LaunchError, match=r"flags are left set at the end.*\n.*flag 14.*set 1 times and never waited for"
    ):
        launched(CHAIN + "    arrive(14);\n")


def test_an_arrival_of_one_core_alone_is_left_over() -> None:
    with pytest.raises(LaunchError, match=r"flag 14, vector core 0 of block 3: arrived 1 times without the others"):
        launched(CHAIN + "    if (vector_index() == 3) arrive(14);\n")


def test_a_flag_counts_to_its_limit_only() -> None:
    with pytest.raises(LaunchError, match=r"flag 13 .*16th time before it is waited for; a flag counts to 15"):
        body = "    if (is_cube) for (int i = 0; i < 16; ++i) inside(13);\n"
        launched(body, [HandOp("vectors", ("a", "b"), MIX_1_2, 2)], 2, mixed=True)


@pytest.mark.parametrize("bad", ["wait_flag_dev(16)", "ffts_cross_core_sync(PIPE_MTE3, 1 | 3 << 4 | 14 << 8)"])
def test_unknown_flags_and_modes_are_refused(bad: str) -> None:
    with pytest.raises(LaunchError, match=r"flags are 0 to 15|with mode 3"):
        launched(f"    {bad};\n")


@pytest.mark.parametrize("seed", SEEDS)
def test_flags_inside_a_block_join_both_vectors_and_their_cube(seed: int) -> None:
    """vectors -> cubes -> vectors through 14, 12, then 11, 13."""
    body = """
    if (!is_cube) {
        if (vector_index() < 8) bulk(1);
        arrive(14);
        wait_flag_dev(14);
        inside(12);
        wait_flag_dev(13);
    } else {
        wait_flag_dev(12);
        bulk(3);
        arrive(11);
        wait_flag_dev(11);
        inside(13);
    }
    pipe_barrier(PIPE_ALL);
"""
    launched(body, [HandOp("bulk", ("a", "b"), AIV, 8), HandOp("bulk", ("b", "c"), AIC, 8)], 8, True, seed)


def test_signals_before_the_sync_base_is_set_are_refused() -> None:
    emitted, graph = emitted_by_hand(CHAIN, TWO, vector_launch(8))
    broken = replace(emitted, source=emitted.source.replace("set_ffts_base_addr(slot(0));", ""))
    a = numbers(8)
    with pytest.raises(LaunchError, match="before set_ffts_base_addr"):
        run(broken, graph, {"a": a, "b": a.copy(), "c": a.copy()})
