"""targets.cuda.emit_steps: the sections of a super kernel that are no sub-kernels, as PTX: waits, signals, events, end.

A slot is the threads that run one block at a time; its first thread polls and signals for all of them. Every name of
these lines begins with sk_, so that no name of a sub-kernel is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.window_layout import RANK_LINE
from .emit_identity import identity_lines, place_again_lines, place_lines
from .emit_staging import ring_lines
from .emit_stream import argument_lines, begun_lines
from .emit_waits import EVERY_LANE, delay_lines, join_lines, poll_lines, store_stamp_lines, wait_lines
from .slot_shape import SlotShape
from .task_layout import (
    ARGUMENT_BYTES,
    HEADER_BYTES,
    MOST_CLUSTER,
    NO_GATE,
    SECTION_MASK,
    TABLE_ALIGNMENT,
    TASK_BYTES,
    WORD,
    ArgumentWord,
    HeaderWord,
    SharedOffset,
    StateOffset,
    TaskFlag,
    TaskWord,
    shared_words_offset,
)
from .virtual_ids import TABLE_LOAD

CLUSTER_ARRIVE = "barrier.cluster.arrive.release.aligned;"
CLUSTER_WAIT = "barrier.cluster.wait.acquire.aligned;"


def entry_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """Who am I; the words of the SM; the first task.

    shares_table: the table is copied to shared memory, with the sums that its arguments are.
    """
    yield "// the slot of this thread, its place there, and the core that the slot is"
    yield "mov.u32 %sk_tid, %tid.x;"
    yield from place_lines(shape)
    yield "// the words of this SM: the number of this launch, then zeros"
    yield f"ld.relaxed.gpu.global.u32 %sk_launches, [%sk_state+{StateOffset.EPOCH}];"
    yield "add.u32 %sk_launches, %sk_launches, 1;"
    yield from _table_lines(shape, shares_table)
    yield "// the cores of this SM"
    yield "mov.u32 %sk_a, %nctaid.x;"
    yield "add.u32 %sk_counter, %sk_cores, %sk_a;"
    yield "sub.u32 %sk_counter, %sk_counter, 1;"
    yield "sub.u32 %sk_counter, %sk_counter, %sk_sm;"
    yield "div.u32 %sk_counter, %sk_counter, %sk_a;"
    yield "mov.u32 %sk_a, %tid.x;"
    yield "$sk_clear:"
    yield "setp.ge.u32 %sk_p, %sk_a, %sk_b;"
    yield "@%sk_p bra $sk_cleared;"
    yield "setp.eq.u32 %sk_p, %sk_a, 0;"
    yield "selp.b32 %sk_c, %sk_launches, 0, %sk_p;"
    yield f"setp.eq.u32 %sk_p, %sk_a, {SharedOffset.CORES // WORD};"
    yield "selp.b32 %sk_c, %sk_counter, %sk_c, %sk_p;"
    if shares_table:
        yield f"setp.eq.u32 %sk_p, %sk_a, {SharedOffset.TABLE // WORD};"
        yield "selp.b32 %sk_c, %sk_table_word, %sk_c, %sk_p;"
    for word in range(2):
        yield f"setp.eq.u32 %sk_p, %sk_a, {SharedOffset.STAMPS // WORD + word};"
        yield f"@%sk_p ld.global.u32 %sk_c, [%sk_state+{StateOffset.STAMPS + WORD * word}];"
    yield f"mad.lo.u32 %sk_d, %sk_a, {WORD}, %sk_control;"
    yield "st.shared.u32 [%sk_d], %sk_c;"
    yield f"add.u32 %sk_a, %sk_a, {shape.block_threads};"
    yield "bra $sk_clear;"
    yield "$sk_cleared:"
    if shape.ring is not None:
        yield from ring_lines(shape.ring)
    if shares_table:
        yield "cp.async.wait_all;"
    yield f"bar.warp.sync {EVERY_LANE};"
    yield "bar.sync 0;"
    if shape.clusters:
        yield CLUSTER_ARRIVE
    if shares_table:
        yield from _argument_sums(shape)
    if shape.clusters:
        yield "// every SM of the cluster has begun, and cleared the words that others raise"
        yield CLUSTER_WAIT
    if shape.ring is not None:
        yield "// the last warps fill the ring of weights"
        yield f"setp.ge.u32 %sk_p, %sk_tid, {shape.staging_thread};"
        yield "@%sk_p bra $sk_stage;"
    if shape.streams:
        yield "// the warp behind the slots asks for the inputs of later ops"
        yield f"setp.ge.u32 %sk_p, %sk_tid, {shape.slot_threads};"
        yield "@%sk_p bra $sk_stream;"
    yield "// a slot that is no core of this launch has nothing to do"
    yield "setp.ge.u32 %sk_p, %sk_core, %sk_cores;"
    yield "@%sk_p bra $sk_leave;"
    yield "mul.wide.u32 %sk_address, %sk_core, 4;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_address+{HEADER_BYTES}];"
    yield "cvt.u64.u32 %sk_task, %sk_a;"
    yield "add.u64 %sk_task, %sk_task, %sk_table;"


def _table_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """Where the task table is; %sk_cores: all cores, %sk_b: the words of this SM."""
    words = shared_words_offset(shape.slots) // WORD
    header = f"{{%sk_cores, %sk_b}}, [%sk_table+{WORD * HeaderWord.CORES}];"
    yield "mov.b64 %sk_table, sk_tasks;"
    yield "mov.b64 %sk_values, sk_values;"
    if not shares_table:
        yield f"{TABLE_LOAD}.v2.u32 {header}"
        yield f"add.u32 %sk_b, %sk_b, {words};"
        return
    yield "// the table is copied to shared memory, behind the words of this SM"
    yield f"ld.global.nc.v2.u32 {header}"
    yield f"ld.global.nc.u32 %sk_c, [%sk_table+{WORD * HeaderWord.TABLE_BYTES}];"
    yield f"add.u32 %sk_b, %sk_b, {words};"
    yield f"mad.lo.u32 %sk_target, %sk_b, {WORD}, %sk_control;"
    for register in ("%sk_target", "%sk_c"):
        yield f"add.u32 {register}, {register}, {TABLE_ALIGNMENT - 1};"
        yield f"and.b32 {register}, {register}, {-TABLE_ALIGNMENT & 0xFFFFFFFF:#x};"
    yield "mov.u32 %sk_a, %tid.x;"
    yield f"mul.lo.u32 %sk_a, %sk_a, {TABLE_ALIGNMENT};"
    yield "$sk_copy_table:"
    yield "setp.ge.u32 %sk_p, %sk_a, %sk_c;"
    yield "@%sk_p bra $sk_table_copied;"
    yield "cvt.u64.u32 %sk_address, %sk_a;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield "add.u32 %sk_d, %sk_a, %sk_target;"
    yield f"cp.async.cg.shared.global [%sk_d], [%sk_address], {TABLE_ALIGNMENT};"
    yield f"add.u32 %sk_a, %sk_a, {TABLE_ALIGNMENT * shape.block_threads};"
    yield "bra $sk_copy_table;"
    yield "$sk_table_copied:"
    yield "mov.u32 %sk_table_word, %sk_target;"
    yield "cvt.u64.u32 %sk_table, %sk_target;"


def _argument_sums(shape: SlotShape) -> Iterator[str]:
    """Every argument in the shared copy of the table becomes the sum that it stands for."""
    yield f"ld.shared.u32 %sk_a, [%sk_table+{WORD * HeaderWord.ARGUMENTS}];"
    yield f"ld.shared.u32 %sk_c, [%sk_table+{WORD * HeaderWord.TABLE_BYTES}];"
    yield "mov.u32 %sk_d, %tid.x;"
    yield f"mad.lo.u32 %sk_a, %sk_d, {ARGUMENT_BYTES}, %sk_a;"
    yield "cvta.param.u64 %sk_values, %sk_values;  // constant memory serves one lane after the other"
    yield "$sk_sum_argument:"
    yield "setp.ge.u32 %sk_p, %sk_a, %sk_c;"
    yield "@%sk_p bra $sk_arguments_summed;"
    yield "cvt.u64.u32 %sk_address, %sk_a;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield f"ld.shared.v2.u32 {{%sk_d, %sk_target}}, [%sk_address+{WORD * ArgumentWord.SOURCE}];"
    yield f"ld.shared.u64 %sk_now, [%sk_address+{WORD * ArgumentWord.ADDEND}];"
    yield "cvt.u64.u32 %sk_event, %sk_d;"
    yield "add.u64 %sk_event, %sk_event, %sk_values;"
    yield "ld.u64 %sk_event, [%sk_event];"
    yield "add.u64 %sk_now, %sk_now, %sk_event;"
    yield "mad.wide.u32 %sk_now, %sk_sm, %sk_target, %sk_now;"
    yield "st.shared.u64 [%sk_address], %sk_now;"
    yield f"add.u32 %sk_a, %sk_a, {ARGUMENT_BYTES * shape.block_threads};"
    yield "bra $sk_sum_argument;"
    yield "$sk_arguments_summed:"
    yield f"bar.warp.sync {EVERY_LANE};"
    yield "bar.sync 0;"


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
