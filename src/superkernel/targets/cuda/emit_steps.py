"""targets.cuda.emit_steps: the sections of a super kernel that are no sub-kernels, as PTX: waits, signals, events, end.

A slot is the threads that run one block at a time; its first thread polls and signals for all of them. Every name of
these lines begins with sk_, so that no name of a sub-kernel is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.window_layout import RANK_LINE
from .emit_entry import CLUSTER_ARRIVE, CLUSTER_WAIT
from .emit_identity import identity_lines, place_again_lines
from .emit_stream import argument_lines, begun_lines
from .emit_waits import EVERY_LANE, delay_lines, join_lines, poll_lines, store_stamp_lines, wait_lines
from .slot_shape import SlotShape
from .task_layout import (
    MOST_CLUSTER,
    NO_GATE,
    SECTION_MASK,
    TASK_BYTES,
    WORD,
    HeaderWord,
    SharedOffset,
    StateOffset,
    TaskFlag,
    TaskWord,
)
from .virtual_ids import TABLE_LOAD


def dispatch_lines(shape: SlotShape, targets: list[str], shares_table: bool) -> Iterator[str]:
    warms = not shares_table  # the table lies in a cache that may not hold it yet
    yield f"{TABLE_LOAD}.u32 %sk_next_kind, [%sk_task+{WORD * TaskWord.KIND}];"
    yield "// ---- the next task of this core; the one behind it is asked for before it is needed"
    yield "$sk_next:"
    yield from identity_lines(shape, shares_table)
    yield "mov.u32 %sk_kind, %sk_next_kind;"
    yield f"{TABLE_LOAD}.u32 %sk_argument, [%sk_task+{WORD * TaskWord.ARGUMENTS}];"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.NUMBER}];"
    yield f"{TABLE_LOAD}.u32 %sk_next_kind, [%sk_task+{TASK_BYTES + WORD * TaskWord.KIND}];"
    yield "add.u32 %sk_a, %sk_a, 1;"
    yield f"mad.wide.u32 %sk_address, %sk_core, {WORD}, %sk_state;"
    yield f"@%sk_first st.relaxed.gpu.global.u32 [%sk_address+{StateOffset.PROGRESS}], %sk_a;"
    if shape.streams:
        yield from begun_lines("%sk_a")
    if warms:
        yield "// the arguments come into the constant cache while the task waits; no source is that far"
        yield "cvt.u64.u32 %sk_host, %sk_argument;"
        yield "add.u64 %sk_host, %sk_host, %sk_table;"
        yield f"{TABLE_LOAD}.u32 %sk_warm, [%sk_host];"
        yield f"{TABLE_LOAD}.u32 %sk_warm_too, [%sk_host+{TASK_BYTES}];"
    yield from wait_lines("$sk_wait", shape, shape.threads, TaskFlag.WAITS, "$sk_end", shares_table)
    if warms:
        yield "and.b32 %sk_warm, %sk_warm, %sk_warm_too;"
        yield "setp.eq.u32 %sk_p, %sk_warm, 0xffffffff;"
        yield "@%sk_p trap;"
    yield f"and.b32 %sk_a, %sk_kind, {SECTION_MASK};"
    yield f"sk_sections: .branchtargets {', '.join(targets)};"
    yield "brx.idx %sk_a, sk_sections;"


def meet_lines(shape: SlotShape) -> Iterator[str]:
    yield "// ---- the threads of the slot meet behind a task; the first of them signals"
    yield "$sk_meet:"
    yield f"{TABLE_LOAD}.u32 %sk_kind, [%sk_task+{WORD * TaskWord.KIND}];"
    yield "$sk_meet_there:"
    yield from place_again_lines(shape)
    yield f"bar.warp.sync {EVERY_LANE};"
    yield f"bar.sync %sk_barrier, {shape.threads};"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.WAITS_INSIDE.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_signal;"
    yield f"mad.lo.u32 %sk_a, %sk_slot, {WORD}, %sk_control;"
    yield f"ld.shared.u32 %sk_a, [%sk_a+{SharedOffset.ABORTED}];"
    yield "setp.ne.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_end;"
    yield "$sk_signal:"
    if shape.clusters:
        yield from _cluster_signal_lines(shape)
    yield "@!%sk_first bra $sk_advance;"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.SIGNALS.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_advance;"
    if shape.delays:
        yield from delay_lines(2)
    yield f"{TABLE_LOAD}.u32 %sk_c, [%sk_task+{WORD * TaskWord.SIGNAL_WORD}];"
    yield "add.u32 %sk_c, %sk_c, %sk_control;"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.NEAR_SIGNAL.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_signal_far;"
    yield "red.release.cta.shared.add.u32 [%sk_c], 1;"
    yield "bra $sk_advance;"
    yield "$sk_signal_far:"
    yield f"{TABLE_LOAD}.u32 %sk_counter, [%sk_task+{WORD * TaskWord.SIGNAL_COUNTER}];"
    yield f"{TABLE_LOAD}.u32 %sk_b, [%sk_task+{WORD * TaskWord.SIGNAL_SHARE}];"
    yield "setp.eq.u32 %sk_p, %sk_b, 0;"
    yield f"@%sk_p ld.shared.u32 %sk_b, [%sk_control+{SharedOffset.CORES}];"
    yield "cvt.u64.u32 %sk_address, %sk_counter;"
    yield "add.u64 %sk_address, %sk_address, %sk_state;"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.SHARED_SIGNAL.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_raise;"
    yield "// the last core of this SM raises the counter for all of them"
    yield "atom.acq_rel.cta.shared.add.u32 %sk_a, [%sk_c], 1;"
    yield "add.u32 %sk_a, %sk_a, 1;"
    yield "setp.ne.u32 %sk_p, %sk_a, %sk_b;"
    yield "@%sk_p bra $sk_advance;"
    yield "$sk_raise:"
    yield "red.release.gpu.global.add.u32 [%sk_address], %sk_b;"
    yield "$sk_advance:"
    yield f"add.u64 %sk_task, %sk_task, {TASK_BYTES};"
    yield "bra $sk_next;"


def _cluster_signal_lines(shape: SlotShape) -> Iterator[str]:
    """Thread r raises the word of SM r of the cluster, if a core there waits."""
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.CLUSTER_SIGNAL.value};"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_signal_outside;"
    if shape.delays:
        yield from delay_lines(5)
    yield f"setp.ge.u32 %sk_p, %sk_thread, {MOST_CLUSTER};"
    yield "@%sk_p bra $sk_advance;"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_b, %sk_c}}, [%sk_task+{WORD * TaskWord.SIGNAL_SHARE}];"
    yield "shr.u32 %sk_b, %sk_b, %sk_thread;"
    yield "and.b32 %sk_b, %sk_b, 1;"
    yield "setp.eq.u32 %sk_p, %sk_b, 0;"
    yield "@%sk_p bra $sk_advance;"
    yield "add.u32 %sk_c, %sk_c, %sk_control;"
    yield "mapa.shared::cluster.u32 %sk_c, %sk_c, %sk_thread;"
    yield "red.release.cluster.shared::cluster.add.u32 [%sk_c], 1;"
    yield "bra $sk_advance;"
    yield "$sk_signal_outside:"


def event_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """External events: 64-bit words that other agents set and poll."""
    yield "// ---- wait for an external event"
    yield "$sk_await_event:"
    yield "setp.ne.u32 %sk_abort, %sk_thread, %sk_thread;"
    yield "@!%sk_first bra $sk_event_join;"
    yield from argument_lines("%sk_event", shares_table)
    test = ("ld.acquire.sys.global.u64 %sk_now, [%sk_event];", "setp.eq.u64 %sk_p, %sk_now, 1;")
    yield from poll_lines("$sk_event", test, inside=False)
    yield "$sk_event_join:"
    yield from join_lines(shape.threads, "$sk_end")
    yield "bra $sk_meet;"
    for label, value, what in (("notify", 1, "set"), ("reset_event", 0, "clear")):
        yield f"// ---- {what} an external event"
        yield f"$sk_{label}:"
        yield "@!%sk_first bra $sk_advance;"
        yield from argument_lines("%sk_event", shares_table)
        yield f"mov.u64 %sk_now, {value};"
        yield "st.release.sys.global.u64 [%sk_event], %sk_now;"
        yield "bra $sk_advance;"


def rank_sync_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """Other ranks: each has a line in a window that all of them see, where it stores the number of its launch."""
    yield "// ---- wait for all ranks of a group to arrive in this launch"
    yield "$sk_await_ranks:"
    yield "setp.ne.u32 %sk_abort, %sk_thread, %sk_thread;"
    yield "@!%sk_first bra $sk_ranks_join;"
    if shape.delays:
        yield from delay_lines(3)
    yield from argument_lines("%sk_event", shares_table)
    yield f"ld.shared.u32 %sk_launches, [%sk_control+{SharedOffset.LAUNCHES}];"
    yield f"{TABLE_LOAD}.u32 %sk_more_count, [%sk_task+{WORD * TaskWord.BLOCKS}];"
    yield "$sk_ranks_next:"
    test = (
        "ld.acquire.sys.global.u32 %sk_seen, [%sk_event];",
        "sub.s32 %sk_seen, %sk_seen, %sk_launches;",
        "setp.ge.s32 %sk_p, %sk_seen, 0;",
    )
    yield from poll_lines("$sk_ranks", test, inside=False)
    yield f"add.u64 %sk_event, %sk_event, {RANK_LINE};"
    yield "sub.u32 %sk_more_count, %sk_more_count, 1;"
    yield "setp.ne.u32 %sk_p, %sk_more_count, 0;"
    yield "@%sk_p bra $sk_ranks_next;"
    yield "$sk_ranks_join:"
    yield from join_lines(shape.threads, "$sk_end")
    yield "bra $sk_meet;"
    yield "// ---- this rank has arrived: the number of the launch, in its line"
    yield "$sk_notify_ranks:"
    yield "@!%sk_first bra $sk_advance;"
    if shape.delays:
        yield from delay_lines(4)
    yield from argument_lines("%sk_event", shares_table)
    yield f"ld.shared.u32 %sk_launches, [%sk_control+{SharedOffset.LAUNCHES}];"
    yield "st.release.sys.global.u32 [%sk_event], %sk_launches;"
    yield "bra $sk_advance;"


def other_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    yield "// ---- cache maintenance: what this slot has stored is visible to every agent"
    yield "$sk_fence:"
    yield "fence.acq_rel.sys;"
    yield "bra $sk_meet;"
    yield "// ---- a time stamp"
    yield "$sk_stamp:"
    yield "@!%sk_first bra $sk_advance;"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.STAMP}];"
    yield from store_stamp_lines("$sk_advance")
    yield "bra $sk_advance;"


def rank_lines() -> Iterator[str]:
    """The first block of this core."""
    yield f"{TABLE_LOAD}.u32 %sk_block, [%sk_task+{WORD * TaskWord.FIRST_BLOCK}];"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.RANKED.value};"
    yield "setp.ne.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p add.u32 %sk_block, %sk_block, %sk_core;"


def end_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    yield "// ---- the end: the core that finishes last counts this launch"
    yield "$sk_end:"
    yield from identity_lines(shape, shares_table)
    if shape.streams or shape.ring is not None:
        yield f"mov.u32 %sk_a, {NO_GATE:#x};"
        yield from begun_lines("%sk_a")
    yield "@!%sk_first bra $sk_leave;"
    yield f"mad.wide.u32 %sk_address, %sk_core, {WORD}, %sk_state;"
    yield "mov.u32 %sk_a, 0;"
    yield f"st.relaxed.gpu.global.u32 [%sk_address+{StateOffset.PROGRESS}], %sk_a;"
    yield f"{TABLE_LOAD}.u32 %sk_cores, [%sk_table+{WORD * HeaderWord.CORES}];"
    yield f"ld.shared.u32 %sk_c, [%sk_control+{SharedOffset.CORES}];"
    yield f"atom.acq_rel.cta.shared.add.u32 %sk_a, [%sk_control+{SharedOffset.FINISHED}], 1;"
    yield "add.u32 %sk_a, %sk_a, 1;"
    yield "setp.ne.u32 %sk_p, %sk_a, %sk_c;"
    yield "@%sk_p bra $sk_leave;"
    yield f"atom.acq_rel.gpu.global.add.u32 %sk_a, [%sk_state+{StateOffset.FINISHED}], %sk_c;"
    yield "add.u32 %sk_a, %sk_a, %sk_c;"
    yield f"ld.shared.u32 %sk_launches, [%sk_control+{SharedOffset.LAUNCHES}];"
    yield "mul.lo.u32 %sk_b, %sk_cores, %sk_launches;"
    yield "setp.ne.u32 %sk_p, %sk_a, %sk_b;"
    yield "@%sk_p bra $sk_leave;"
    yield f"st.release.gpu.global.u32 [%sk_state+{StateOffset.EPOCH}], %sk_launches;"
    yield "$sk_leave:"
    if shape.clusters:
        yield "// no SM of the cluster ends while another may reach its shared memory"
        yield f"bar.warp.sync {EVERY_LANE};"
        yield CLUSTER_ARRIVE
        yield CLUSTER_WAIT
    yield "ret;"
