"""Emulated memory: caches that nobody keeps coherent, transfers that take their time, and what is out of bounds."""

from __future__ import annotations

import numpy as np
import pytest
from targets.ascend.emulator.hand import HandOp, emitted_by_hand, numbers, run, turned, vector_launch

from superkernel.errors import LaunchError
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.emulator import Delays, Turn

AIV = KernelType.AIV_ONLY
SEEDS = range(12)
BLOCKS = 8
# a -> b by the transfer engines, b -> c -> d through the caches
CHAIN = """
    bulk(1);
    arrive(14);
    wait_flag_dev(14);
    clean_all();  // before op1
    element(3);
    clean_all();  // after op1
    arrive(14);
    wait_flag_dev(14);
    clean_all();  // before op2
    element(5);
    clean_all();  // after op2
"""
OPS = [HandOp("bulk", ("a", "b"), AIV, 8), HandOp("element", ("b", "c"), AIV, 8), HandOp("element", ("c", "d"), AIV, 8)]


def launched(body: str, seed: int, ops: list[HandOp] = OPS, **more: object) -> bool:
    """Whether the values came out right."""
    emitted, graph = emitted_by_hand(body, ops, vector_launch(BLOCKS))
    a = numbers(BLOCKS, seed)
    buffers = {"a": a} | {
        name: np.zeros_like(a) for name in dict.fromkeys(n for op in ops for n in op.args) if name != "a"
    }
    run(emitted, graph, buffers, seed, **more)
    return all(np.array_equal(buffers[str(op.args[1])], turned(buffers[str(op.args[0])])) for op in ops)


@pytest.mark.parametrize("seed", SEEDS)
def test_cleaned_and_invalidated_caches_give_the_right_values(seed: int) -> None:
    assert launched(CHAIN, seed)


@pytest.mark.parametrize("missing", ["after op1", "before op2", "after op2"])
def test_each_missing_cache_operation_is_found(missing: str) -> None:
    body = CHAIN.replace(f"    clean_all();  // {missing}\n", "")
    found = []
    for seed in range(20):
        try:
            launched(body, seed)
        except LaunchError as error:
            found.append(str(error))
    assert found
    assert all("data cache" in text or "cached line" in text or "ordered" in text for text in found)


def test_stale_values_are_really_read() -> None:
    """Without the check for unordered accesses, a missing invalidation shows in the results of some seeds."""
    body = CHAIN.replace("    clean_all();  // before op2\n", "").replace("    clean_all();  // before op1\n", "")
    delays = Delays(Turn.RANDOM, 4, 0, 400)
    assert not all(launched(body, seed, races=False, delays=delays) for seed in range(1, 30))


def test_a_transfer_is_on_its_way_until_a_barrier() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8), HandOp("bulk", ("b", "c"), AIV, 8)]
    body = """
    bulk(1);
    ffts_cross_core_sync(PIPE_V, 1 | 14 << 8);
    wait_flag_dev(14);
    pipe_barrier(PIPE_ALL);
    bulk(3);
"""
    with pytest.raises(LaunchError, match="op 'op1' passes its wait point, and nothing orders it after op 'op0'"):
        launched(body, 0, ops)
    assert not all(launched(body, seed, ops, races=False) for seed in range(1, 30))
    assert launched(body.replace("PIPE_V", "PIPE_MTE3"), 0, ops)


def test_a_store_left_in_a_cache_at_the_end_is_named() -> None:
    body = "    if (vector_index() == 0) sk_store((int32_t*)slot(2), 7);\n"
    with pytest.raises(LaunchError, match=r"holds a store to byte 0 of buffer 'b'.*nothing cleaned"):
        launched(body, 0, [HandOp("bulk", ("a", "b"), AIV, 8)])


def test_lines_are_written_back_as_a_whole() -> None:
    """Two cores that store to one line: one of the values is lost, or the emulator says so."""
    body = """
    if (vector_index() < 2) sk_store((int32_t*)slot(2) + vector_index(), 7);
    clean_all();
"""
    with pytest.raises(LaunchError, match=r"store.* to byte . of buffer 'b'"):
        launched(body, 0, [HandOp("bulk", ("a", "b"), AIV, 8)])


def test_an_access_behind_the_end_names_buffer_and_distance() -> None:
    with pytest.raises(LaunchError, match=r"in op 'op0'.*a copy in of 4 bytes.*0 bytes behind the end of buffer 'a'"):
        launched("    beyond(1);\n", 0, [HandOp("beyond", ("a", "b"), AIV, 8)])


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(LaunchError, match="no buffer is there"):
        launched("    sk_load((uint64_t*)0x10);\n", 0, [HandOp("bulk", ("a", "b"), AIV, 8)])


def test_what_was_passed_is_left_alone_by_a_launch_that_fails() -> None:
    emitted, graph = emitted_by_hand("    bulk(1);\n    trap();\n", OPS[:1], vector_launch(BLOCKS))
    a, b = numbers(BLOCKS), np.zeros(BLOCKS * 32, np.int32)
    with pytest.raises(LaunchError, match="trap"):
        run(emitted, graph, {"a": a, "b": b})
    assert not b.any()
