"""targets.cuda.emit_waits: how the first thread of a slot waits for counters and the other threads for it, as PTX.

Waits poll with back-off. A wait that lasts says so in the progress of its core, and looks at the host's abort word.
"""

from __future__ import annotations

from collections.abc import Iterator

from .emit_identity import identity_lines
from .slot_shape import SlotShape
from .task_layout import (
    COUNTER_BYTES,
    LONG_WAIT,
    NEED_BYTES,
    SEEN,
    WORD,
    HeaderWord,
    NeedKind,
    NeedWord,
    SharedOffset,
    StateOffset,
    TaskFlag,
    TaskWord,
)
from .virtual_ids import TABLE_LOAD

SPINS = 1024  # polls of shared memory before a waiting thread sleeps between two
FAR_POLL = 16  # a poll of device memory takes as long as so many of shared memory
NAP_NS = 64
PATIENCE_NS = 100_000  # between two looks at the abort word
EVERY_LANE = "0xffffffff"


def wait_lines(
    label: str,
    shape: SlotShape,
    threads: int,
    flag: TaskFlag,
    leave: str,
    shares_table: bool,
    barrier: str = "%sk_barrier",
) -> Iterator[str]:
    """Skipped unless the task has the flag: the first thread polls the counters, `threads` threads meet behind it."""
    inside = flag is TaskFlag.WAITS_INSIDE
    if inside:
        yield "// wait point: the first block of a core waits for what the op needs"
        yield f"{TABLE_LOAD}.u32 %sk_kind, [%sk_task+{WORD * TaskWord.KIND}];"
    yield f"and.b32 %sk_a, %sk_kind, {flag.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield f"@%sk_p bra {label}_over;"
    if inside:
        yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.WIDTH}];"
        yield "setp.ge.u32 %sk_p, %sk_block, %sk_a;"
        yield f"@%sk_p bra {label}_over;"
        yield from identity_lines(shape, shares_table)
    yield "setp.ne.u32 %sk_abort, %sk_thread, %sk_thread;"
    yield f"@!%sk_first bra {label}_join;"
    if inside:
        yield from _stamp_inside(label, 0)
    if shape.delays:
        yield from delay_lines(1)
    yield f"ld.shared.u32 %sk_launches, [%sk_control+{SharedOffset.LAUNCHES}];"
    yield f"{TABLE_LOAD}.u32 %sk_counter, [%sk_task+{WORD * TaskWord.WAIT_COUNTER}];"
    yield f"{TABLE_LOAD}.u32 %sk_arrivals, [%sk_task+{WORD * TaskWord.WAIT_ARRIVALS}];"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_more, %sk_more_count}}, [%sk_task+{WORD * TaskWord.MORE_NEEDS}];"
    yield f"shr.u32 %sk_a, %sk_kind, {TaskFlag.NEAR_WAIT.value.bit_length() - 1};"
    yield f"and.b32 %sk_a, %sk_a, {NeedKind.NEAR.value};"
    yield f"and.b32 %sk_b, %sk_kind, {TaskFlag.SHARED_WAIT.value};"
    yield "setp.ne.u32 %sk_p, %sk_b, 0;"
    yield f"@%sk_p mov.u32 %sk_a, {NeedKind.SHARED.value};"
    if shape.clusters:
        yield f"and.b32 %sk_b, %sk_kind, {TaskFlag.CLUSTER_WAIT.value};"
        yield "setp.ne.u32 %sk_p, %sk_b, 0;"
        yield f"@%sk_p mov.u32 %sk_a, {NeedKind.CLUSTER.value};"
    yield f"{label}_need:"
    if shape.clusters:
        yield from _cluster_wait_lines(label, inside)
    yield f"setp.eq.u32 %sk_near, %sk_a, {NeedKind.NEAR.value};"
    yield f"setp.eq.u32 %sk_shares, %sk_a, {NeedKind.SHARED.value};"
    yield "mul.lo.u32 %sk_target, %sk_arrivals, %sk_launches;"
    yield "@%sk_near mov.u32 %sk_target, %sk_arrivals;"
    yield "cvt.u64.u32 %sk_address, %sk_counter;"
    yield "add.u64 %sk_address, %sk_address, %sk_state;"
    yield from _share_lines(label)
    yield "add.u32 %sk_counter, %sk_counter, %sk_control;"
    yield f"{label}_watch:"
    yield f"selp.b32 %sk_more_polls, 1, {FAR_POLL}, %sk_near;"
    yield from poll_lines(
        label,
        (
            "mov.u32 %sk_seen, 0;",
            "@%sk_near ld.acquire.cta.shared.u32 %sk_seen, [%sk_counter];",
            "@!%sk_near ld.acquire.gpu.global.u32 %sk_seen, [%sk_address];",
            "sub.s32 %sk_seen, %sk_seen, %sk_target;",
            "setp.ge.s32 %sk_p, %sk_seen, 0;",
        ),
        inside,
        "%sk_more_polls",
    )
    yield "// met: tell the other slots; the next counter, if there is one"
    yield f"mov.u32 %sk_c, {SEEN};"
    yield "@%sk_shares st.release.cta.shared.u32 [%sk_seen_word], %sk_c;"
    if shape.clusters:
        yield f"{label}_further:"
    yield "setp.eq.u32 %sk_p, %sk_more_count, 0;"
    yield f"@%sk_p bra {label}_join;"
    yield "cvt.u64.u32 %sk_address, %sk_more;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield (f"{TABLE_LOAD}.v2.u32 {{%sk_counter, %sk_arrivals}}, [%sk_address+{WORD * NeedWord.COUNTER}];")
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_address+{WORD * NeedWord.KIND}];"
    yield f"add.u32 %sk_more, %sk_more, {NEED_BYTES};"
    yield "sub.u32 %sk_more_count, %sk_more_count, 1;"
    yield f"bra {label}_need;"
    if shape.clusters:
        yield f"{label}_cluster_join:"
    yield f"{label}_join:"
    if inside:
        yield from _stamp_inside(label, 1)
    yield from join_lines(threads, leave, barrier)
    yield f"{label}_over:"


def _cluster_wait_lines(label: str, inside: bool) -> Iterator[str]:
    """A word of this SM that SMs of its cluster raise. The last look acquires: before, it would empty the L1 cache."""
    yield f"setp.ne.u32 %sk_p, %sk_a, {NeedKind.CLUSTER.value};"
    yield f"@%sk_p bra {label}_outside;"
    yield "add.u32 %sk_counter, %sk_counter, %sk_control;"
    yield from poll_lines(
        f"{label}_cluster",
        (
            "ld.relaxed.cluster.shared.u32 %sk_seen, [%sk_counter];",
            "setp.ge.u32 %sk_p, %sk_seen, %sk_arrivals;",
        ),
        inside,
        "1",
    )
    yield "ld.acquire.cluster.shared.u32 %sk_seen, [%sk_counter];"
    yield f"bra {label}_further;"
    yield f"{label}_outside:"


def _share_lines(label: str) -> Iterator[str]:
    """Of the slots that wait for a counter, the first to come polls it; the others watch a shared word."""
    yield "mov.u32 %sk_seen_word, 0;"
    yield f"@!%sk_shares bra {label}_alone;"
    yield f"{TABLE_LOAD}.u32 %sk_b, [%sk_table+{WORD * HeaderWord.SEEN_WORDS}];"
    yield f"shr.u32 %sk_seen_word, %sk_counter, {(COUNTER_BYTES // WORD).bit_length() - 1};"
    yield "add.u32 %sk_seen_word, %sk_seen_word, %sk_b;"
    yield "add.u32 %sk_seen_word, %sk_seen_word, %sk_control;"
    yield "mov.u32 %sk_b, 0;"
    yield "mov.u32 %sk_c, 1;"
    yield "atom.acq_rel.cta.shared.cas.b32 %sk_b, [%sk_seen_word], %sk_b, %sk_c;"
    yield "setp.eq.u32 %sk_p, %sk_b, 0;"
    yield f"@%sk_p bra {label}_alone;"
    yield "setp.eq.u32 %sk_near, %sk_core, %sk_core;"
    yield "setp.ne.u32 %sk_shares, %sk_core, %sk_core;"
    yield "mov.u32 %sk_counter, %sk_seen_word;"
    yield f"mov.u32 %sk_target, {SEEN};"
    yield f"bra {label}_watch;"
    yield f"{label}_alone:"


def join_lines(threads: int, leave: str, barrier: str = "%sk_barrier") -> Iterator[str]:
    """The threads of the slot meet; all of them leave if the first was told to."""
    yield f"bar.warp.sync {EVERY_LANE};"
    yield f"bar.red.or.pred %sk_p, {barrier}, {threads}, %sk_abort;"
    yield f"@%sk_p bra {leave};"


def poll_lines(label: str, test: tuple[str, ...], inside: bool, weight: str = str(FAR_POLL)) -> Iterator[str]:
    """Polls until `test` sets %sk_p; falls through when it does, branches to the join where the launch is aborted.

    `weight`: how much of its patience a poll takes; a divisor of SPINS.
    """
    yield "mov.u32 %sk_polls, 0;"
    yield "mov.u64 %sk_since, 0;"
    yield f"{label}_poll:"
    yield from test
    yield f"@%sk_p bra {label}_met;"
    yield f"add.u32 %sk_polls, %sk_polls, {weight};"
    yield f"setp.lt.u32 %sk_p, %sk_polls, {SPINS};"
    yield f"@%sk_p bra {label}_poll;"
    yield "mov.u64 %sk_now, %globaltimer;"
    yield f"setp.eq.u32 %sk_p, %sk_polls, {SPINS};"
    yield "@%sk_p mov.u64 %sk_since, %sk_now;"
    yield f"nanosleep.u32 {NAP_NS};"
    yield "sub.u64 %sk_elapsed, %sk_now, %sk_since;"
    yield f"setp.lt.u64 %sk_p, %sk_elapsed, {PATIENCE_NS};"
    yield f"@%sk_p bra {label}_poll;"
    yield "// a long wait: say so; is the launch aborted?"
    yield "mov.u64 %sk_since, %sk_now;"
    yield from _progress_lines(LONG_WAIT)
    yield f"ld.global.u64 %sk_host, [%sk_state+{StateOffset.CONTROL}];"
    yield "setp.eq.u64 %sk_p, %sk_host, 0;"
    yield f"@%sk_p bra {label}_poll;"
    yield "ld.relaxed.sys.global.u32 %sk_a, [%sk_host];"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield f"@%sk_p bra {label}_poll;"
    yield "add.u32 %sk_a, %sk_core, 1;"
    yield f"st.relaxed.gpu.global.u32 [%sk_state+{StateOffset.FAILURE}], %sk_a;"
    yield "setp.eq.u32 %sk_abort, %sk_thread, %sk_thread;"
    if inside:
        yield f"mad.lo.u32 %sk_a, %sk_slot, {WORD}, %sk_control;"
        yield f"st.shared.u32 [%sk_a+{SharedOffset.ABORTED}], 1;"
    yield f"bra {label}_join;"
    yield f"{label}_met:"
    yield f"setp.lt.u32 %sk_p, %sk_polls, {SPINS};"
    yield f"@%sk_p bra {label}_seen;"
    yield from _progress_lines(0)
    yield f"{label}_seen:"


def _progress_lines(mark: int) -> Iterator[str]:
    """Stores the number of the task of this core, with a mark, where the host can read it."""
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.NUMBER}];"
    yield "add.u32 %sk_a, %sk_a, 1;"
    if mark:
        yield f"or.b32 %sk_a, %sk_a, {mark:#x};"
    yield f"mad.wide.u32 %sk_host, %sk_core, {WORD}, %sk_state;"
    yield f"st.relaxed.gpu.global.u32 [%sk_host+{StateOffset.PROGRESS}], %sk_a;"


def delay_lines(salt: int) -> Iterator[str]:
    """For tests: the first thread sleeps for up to 4 us, by a hash of the seed, the core, the task and `salt`."""
    yield f"ld.global.u32 %sk_c, [%sk_state+{StateOffset.DELAYS}];"
    yield "setp.eq.u32 %sk_p, %sk_c, 0;"
    yield f"{TABLE_LOAD}.u32 %sk_d, [%sk_task+{WORD * TaskWord.NUMBER}];"
    yield f"mad.lo.u32 %sk_d, %sk_d, 0x9e3779b1, {salt};"
    yield "mad.lo.u32 %sk_c, %sk_c, 0x85ebca6b, %sk_d;"
    yield "mad.lo.u32 %sk_c, %sk_core, 0xc2b2ae35, %sk_c;"
    yield "shr.u32 %sk_d, %sk_c, 15;"
    yield "xor.b32 %sk_c, %sk_c, %sk_d;"
    yield "mul.lo.u32 %sk_c, %sk_c, 0x2c1b3c6d;"
    yield "shr.u32 %sk_c, %sk_c, 20;"
    yield "@!%sk_p nanosleep.u32 %sk_c;"


def _stamp_inside(label: str, place: int) -> Iterator[str]:
    """Time stamps around a wait inside a call, by the first thread."""
    over = f"{label}_stamped_{place}"
    if place:
        yield f"@!%sk_first bra {over};"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.RECORDS_WAIT.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield f"@%sk_p bra {over};"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.STAMP}];"
    if place:
        yield f"add.u32 %sk_a, %sk_a, {place};"
    yield from store_stamp_lines(over)
    yield f"{over}:"


def store_stamp_lines(over: str) -> Iterator[str]:
    """Stores the time as number %sk_a of this core's time stamps, where there is room for them."""
    yield f"ld.shared.u64 %sk_host, [%sk_control+{SharedOffset.STAMPS}];"
    yield "setp.eq.u64 %sk_p, %sk_host, 0;"
    yield f"@%sk_p bra {over};"
    yield f"{TABLE_LOAD}.u32 %sk_b, [%sk_table+{WORD * HeaderWord.STAMP_ROOM}];"
    yield "mad.lo.u32 %sk_a, %sk_core, %sk_b, %sk_a;"
    yield "mad.wide.u32 %sk_host, %sk_a, 8, %sk_host;"
    yield "mov.u64 %sk_now, %globaltimer;"
    yield "st.global.u64 [%sk_host], %sk_now;"
