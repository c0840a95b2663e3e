"""What the emulator reports: barriers that lanes or warps miss, deadlocks, races, addresses outside, what it lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superkernel.errors import LaunchError, UnsupportedError
from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.reader import read_ptx

HEAD = """
.version 8.0
.target sm_90a
.address_size 64
.global .align 4 .u32 counter;
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel(.param .u64 x, .param .u64 y, .param .u32 n)
{
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<30>; .reg .b64 %d<20>;
.shared .align 4 .b8 words[512];
ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x;
mad.wide.u32 %d3, %r2, 4, %d1; mad.wide.u32 %d4, %r2, 4, %d2;
mov.u32 %r4, words; mad.lo.u32 %r5, %r2, 4, %r4;
"""


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def launch(
    body: str,
    *,
    x: Any = None,
    y: Any = None,
    threads: int = 64,
    blocks: int = 1,
    n: int = 0,
    seed: int = 0,
    shared: int = 0,
) -> tuple[Any, Any]:
    x = np.zeros(128, np.uint32) if x is None else x
    y = np.zeros(128, np.uint32) if y is None else y
    text = f"{HEAD}{body}\nret;\n}}\n"
    launch_entry(
        read_ptx(text, "kernel.ptx"), "kernel", [x, y, n], grid=(blocks, 1, 1), threads=(threads, 1, 1), seed=seed,
        shared=shared, resident=blocks,
    )  # fmt: skip
    return x, y


def refused(body: str, *words: str, **more: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        launch(body, **more)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


# barriers and divergence


def test_lanes_that_part_meet_again_where_the_program_joins() -> None:
    body = """
    and.b32 %r6, %r2, 1; setp.eq.u32 %p1, %r6, 0; mov.u32 %r7, 0;
    @%p1 bra even;
    add.u32 %r7, %r7, 100;
    loop: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 110; @%p2 bra loop;
    bra join;
    even: mov.u32 %r7, 7;
    join: activemask.b32 %r8; bar.sync 0; add.u32 %r7, %r7, %r8; st.global.u32 [%d3], %r7;
    """
    x, _ = launch(body)
    assert x[:64].tolist() == [6, 109] * 32  # the mask of all lanes is -1


def test_a_branch_by_index_takes_each_lane_to_its_target() -> None:
    body = """
    and.b32 %r6, %r2, 3;
    table: .branchtargets a, b, c, d;
    brx.idx %r6, table;
    a: mov.u32 %r7, 10; bra join;
    b: mov.u32 %r7, 20; bra join;
    c: mov.u32 %r7, 30; bra join;
    d: mov.u32 %r7, 40;
    join: st.global.u32 [%d3], %r7;
    """
    assert launch(body)[0][:64].tolist() == [10, 20, 30, 40] * 16


def test_a_barrier_that_lanes_of_a_warp_miss_is_reported() -> None:
    body = "setp.lt.u32 %p1, %r2, 16;\n@!%p1 bra other;\nbar.sync 0;\nbra join;\nother: bar.sync 0;\njoin:"
    refused(body, "diverged", "lanes 0-15", "lanes 16-31 wait at line")
    refused("setp.ge.u32 %p1, %r2, 40;\n@%p1 bra over;\nbar.sync 0;\nover:", "diverged", "lanes 8-31 have ended")


def test_a_barrier_that_a_warp_misses_is_a_deadlock() -> None:
    refused(
        "setp.ge.u32 %p1, %r2, 32;\n@%p1 bra over;\nbar.sync 0;\nover:",
        "deadlock",
        "barrier 0",
        "32 of 64 threads have arrived",
    )


def test_thread_counts_of_one_barrier_must_be_equal() -> None:
    body = "setp.ge.u32 %p1, %r2, 32;\n@%p1 bra second;\nbar.sync 1, 64;\nbra join;\nsecond: bar.sync 1, 96;\njoin:"
    refused(body, "barrier 1 for", "64", "96", threads=96)
    refused("bar.sync 1, 40;", "a multiple of 32 is needed")


def test_named_barriers_hold_the_warps_that_they_count() -> None:
    body = """
    shr.u32 %r6, %r2, 6; add.u32 %r6, %r6, 1;
    st.shared.u32 [%r5], %r2; bar.sync %r6, 64;
    xor.b32 %r7, %r2, 32; mad.lo.u32 %r7, %r7, 4, %r4; ld.shared.u32 %r8, [%r7];
    st.global.u32 [%d3], %r8;
    """
    for seed in range(6):
        assert launch(body, threads=128, seed=seed)[0].tolist() == [n ^ 32 for n in range(128)]


def test_bar_red_combines_the_predicates_of_all_threads() -> None:
    body = """
    setp.eq.u32 %p1, %r2, 50;
    bar.red.or.pred %p2, 0, %p1; bar.red.and.pred %p3, 0, 64, !%p1; bar.red.popc.u32 %r6, 0, %p1;
    selp.u32 %r7, 100, 0, %p2; selp.u32 %r8, 1000, 0, %p3;
    add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8; st.global.u32 [%d3], %r6;
    """
    assert set(launch(body)[0][:64].tolist()) == {101}


# races


def exchange(wait: str, store: str, load: str = "ld.global.u32 %r7, [%d1];") -> str:
    """Block 0 stores a value and says so; block 1 waits and loads it."""
    return f"""
    mov.b64 %d5, counter; setp.ne.u32 %p1, %r3, 0; setp.ne.u32 %p2, %r2, 0; @%p2 bra over;
    @%p1 bra consumer;
    st.global.u32 [%d1], 42; {store}
    bra over;
    consumer: {wait} setp.eq.u32 %p3, %r6, 0; @%p3 bra consumer;
    {load} st.global.u32 [%d2], %r7;
    over:
    """


def test_release_and_acquire_order_two_blocks() -> None:
    body = exchange("ld.acquire.gpu.u32 %r6, [%d5];", "st.release.gpu.u32 [%d5], 1;")
    for seed in range(8):
        assert launch(body, blocks=2, seed=seed)[1][0] == 42
    launch(
        exchange(
            "ld.relaxed.gpu.u32 %r6, [%d5];",
            "red.release.gpu.global.add.u32 [%d5], 1;",
            "fence.acq_rel.gpu; ld.global.u32 %r7, [%d1];",
        ),
        blocks=2,
    )
    launch(
        exchange(
            "ld.volatile.global.u32 %r6, [%d5];",
            "membar.gl; st.volatile.global.u32 [%d5], 1;",
            "membar.gl; ld.global.u32 %r7, [%d1];",
        ),
        blocks=2,
    )
    launch(
        exchange("atom.acq_rel.gpu.global.add.u32 %r6, [%d5], 0;", "atom.release.gpu.global.exch.b32 %r9, [%d5], 1;"),
        blocks=2,
    )


@pytest.mark.parametrize(
    ("wait", "store"),
    [
        ("ld.relaxed.gpu.u32 %r6, [%d5];", "st.release.gpu.u32 [%d5], 1;"),
        ("ld.acquire.gpu.u32 %r6, [%d5];", "st.relaxed.gpu.u32 [%d5], 1;"),
        ("ld.acquire.cta.u32 %r6, [%d5];", "st.release.cta.u32 [%d5], 1;"),
        ("ld.acquire.gpu.u32 %r6, [%d5];", "fence.acq_rel.cta; st.relaxed.gpu.u32 [%d5], 1;"),
    ],
)
def test_a_missing_or_too_narrow_release_or_acquire_is_a_race(wait: str, store: str) -> None:
    text = refused(
        exchange(wait, store), "data race", "block (0, 0, 0), warp 0", "block (1, 0, 0), warp 0", "line ", blocks=2
    )
    assert "ld.global.u32" in text or "ld.acquire" in text


def test_a_race_names_both_accesses_with_their_lines() -> None:
    body = "st.shared.u32 [%r4], %r2;\nsetp.eq.u32 %p1, %r2, 999;"
    text = refused(body, "data race", "byte 0 of shared memory", "warp 1", "warp 0")
    line = line_of(f"{HEAD}{body}", "st.shared.u32 [%r4]")
    assert text.count(f"(line {line})") == 2 and "st.shared.u32 [%r4], %r2" in text


def test_warps_that_store_the_same_value_do_not_race() -> None:
    launch("st.shared.u32 [%r4], 5; bar.sync 0; ld.shared.u32 %r6, [%r4]; st.global.u32 [%d3], %r6;")


def test_a_barrier_orders_shared_memory_and_its_absence_is_a_race() -> None:
    body = (
        "st.shared.u32 [%r5], %r2; {} xor.b32 %r6, %r2, 32; mad.lo.u32 %r6, %r6, 4, %r4; ld.shared.u32 %r7, [%r6]; "
        "st.global.u32 [%d3], %r7;"
    )
    launch(body.format("bar.sync 0;"))
    for seed in (0, 1, 5):
        refused(body.format(""), "data race", "shared memory", seed=seed)


def test_neighbouring_bytes_of_two_warps_are_no_race() -> None:
    body = "cvt.u64.u32 %d6, %r2; add.u64 %d6, %d6, %d1; cvt.u16.u32 %h1, %r2; st.global.u8 [%d6], %h1;"
    x, _ = launch(f"{body} st.global.u8 [%d6+64], %h1;", x=np.zeros(256, np.uint8))
    assert x[:128].tolist() == [*range(64), *range(64)]
    odd = (
        "shr.u32 %r6, %r2, 5; cvt.u64.u32 %d6, %r6; add.u64 %d6, %d6, %d1; cvt.u16.u32 %h1, %r6; "
        "st.global.u8 [%d6], %h1;"
    )
    assert launch(odd, x=np.zeros(8, np.uint8))[0][:2].tolist() == [0, 1]


def test_read_only_loads_of_what_the_launch_wrote_are_reported() -> None:
    refused("st.global.u32 [%d3], %r2; bar.sync 0; ld.global.nc.u32 %r6, [%d3];", "without coherence (ld.global.nc)")


# asynchronous copies


COPY = """
add.u32 %r6, %r5, 0; cp.async.ca.shared.global [%r6], [%d3], 4; cp.async.commit_group;
{} bar.sync 0; xor.b32 %r7, %r2, 32; mad.lo.u32 %r7, %r7, 4, %r4; ld.shared.u32 %r8, [%r7]; st.global.u32 [%d4], %r8;
"""


def test_an_asynchronous_copy_is_there_after_its_wait_and_not_before() -> None:
    x = np.arange(128, dtype=np.uint32)
    for seed in range(4):
        assert launch(COPY.format("cp.async.wait_group 0;"), x=x, seed=seed)[1][:64].tolist() == [
            n ^ 32 for n in range(64)
        ]
    refused(COPY.format(""), "data race", "shared memory", x=x)  # a copy counts as a store at its wait


def test_groups_of_copies_complete_in_order() -> None:
    body = """
    cp.async.ca.shared.global [%r5], [%d3], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%r5+256], [%d3+256], 4, %r1; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 %r6, [%r5]; st.global.u32 [%d4], %r6;
    cp.async.wait_all; ld.shared.u32 %r7, [%r5+256]; st.global.u32 [%d4+256], %r7;
    """
    x = np.arange(1, 129, dtype=np.uint32)
    assert launch(body, x=x, n=4)[1].tolist() == list(range(1, 129))
    assert launch(body, x=x, n=0)[1].tolist() == [*range(1, 65), *[0] * 64]  # nothing is read: zeros


# addresses, deadlock, endless loops


def test_addresses_outside_are_named() -> None:
    refused(
        "st.global.u32 [%d3+512], %r2;", "writes 4 bytes", "outside every buffer", "of argument 0 (x), which has 512"
    )
    refused("ld.global.u32 %r6, [%d1+-4];", "reads 4 bytes", "outside every buffer", "4 bytes before argument 0 (x)")
    refused(
        "ld.shared.u32 %r6, [%r5+512];", "reads 4 bytes at byte 512 of shared memory, which has 512 bytes", threads=32
    )
    refused("ld.global.u32 %r6, [%d3+2];", "not a multiple of 4")
    refused("mov.b64 %d6, 0; ld.u32 %r6, [%d6];", "outside every buffer")
    launch("mov.u32 %r6, dynamic; st.shared.u32 [%r6+60], %r2; bar.sync 0;", shared=64, threads=32)


def test_a_poll_that_nothing_ends_is_a_deadlock_with_the_value_it_sees() -> None:
    body = exchange("ld.acquire.gpu.u32 %r6, [%d5];", "mov.u32 %r9, 0;")
    refused(
        body,
        "deadlock",
        "block (1, 0, 0), warp 0",
        "polls byte 0 of variable counter and sees 0",
        "ld.acquire.gpu.u32",
        blocks=2,
    )


def test_traps_are_reported() -> None:
    refused("setp.eq.u32 %p1, %r2, 40;\n@%p1 trap;", "warp 1", "trap")


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.fence.sync.aligned;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r1, %r2}], [%r3];",
        "tcgen05.wait::ld.sync.aligned;",
        "tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%d1, {%r5}];",
        "barrier.cluster.arrive.relaxed.aligned;",
        "frobnicate.u32 %r1, %r2;",
    ],
)
def test_instructions_that_it_lacks_are_named_with_their_line_before_anything_runs(instruction: str) -> None:
    x = np.zeros(128, np.uint32)
    with pytest.raises(UnsupportedError) as caught:
        launch(f"st.global.u32 [%d3], 7;\n{instruction}", x=x)
    line = line_of(f"{HEAD}st.global.u32 [%d3], 7;\n{instruction}", instruction)
    assert f"kernel.ptx:{line}: the emulator has no {instruction.split(maxsplit=1)[0].rstrip(';')}" in str(caught.value)
    assert not x.any()


def test_lanes_that_parted_meet_for_certain_only_where_an_instruction_needs_all() -> None:
    body = """
    setp.ne.u32 %p1, %r2, 0; @%p1 bra over; mov.u32 %r6, 0;
    delay: add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 20; @%p2 bra delay;
    st.shared.u32 [%r4], 77;
    over: {} ld.shared.u32 %r7, [%r4]; st.global.u32 [%d3], %r7;
    """
    seen = {tuple(launch(body.format(""), threads=32, seed=seed)[0][:32]) == (77,) * 32 for seed in range(30)}
    assert seen == {True, False}
    for seed in range(30):
        assert set(launch(body.format("bar.warp.sync -1;"), threads=32, seed=seed)[0][:32].tolist()) == {77}
