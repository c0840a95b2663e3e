"""targets.cuda.emit_entry: the begin of a launch on an SM, as PTX: its words, its part of the table, its first task.

What an SM needs of the table goes to shared memory, if it fits there: what all SMs share, the sums that arguments are,
and the lists of its own cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from .emit_identity import place_lines
from .emit_staging import ring_lines
from .emit_waits import EVERY_LANE
from .slot_shape import SlotShape
from .task_layout import (
    ARGUMENT_BYTES,
    HEADER_BYTES,
    PART_BYTES,
    SUM_BYTES,
    TABLE_ALIGNMENT,
    WORD,
    ArgumentWord,
    HeaderWord,
    PartWord,
    SharedOffset,
    StateOffset,
    shared_words_offset,
)
from .virtual_ids import TABLE_LOAD

CLUSTER_ARRIVE = "barrier.cluster.arrive.release.aligned;"
CLUSTER_WAIT = "barrier.cluster.wait.acquire.aligned;"


def entry_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """Who am I; the words of the SM; the first task.

    shares_table: what an SM needs of the table is copied to shared memory, with the sums that its arguments are.
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
        yield "// every SM of the cluster has begun, and cleared the words that others raise"
        yield CLUSTER_ARRIVE
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
    if shares_table:
        yield "add.u32 %sk_a, %sk_a, %sk_warm;"
    yield "cvt.u64.u32 %sk_task, %sk_a;"
    if not shares_table:
        yield "add.u64 %sk_task, %sk_task, %sk_table;"


def _table_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """Where the task table is; %sk_cores: all cores, %sk_b: the words of this SM.

    Of a copy in shared memory, which is there behind the next barrier of the SM: in %sk_warm what is added to the
    offset of a task, in %sk_warm_too where the inputs are listed that the SM asks for.
    """
    words = shared_words_offset(shape.slots) // WORD
    header = f"{{%sk_cores, %sk_b}}, [%sk_table+{WORD * HeaderWord.CORES}];"
    yield "mov.b64 %sk_table, sk_tasks;"
    yield "mov.b64 %sk_values, sk_values;"
    if not shares_table:
        yield f"{TABLE_LOAD}.v2.u32 {header}"
        yield f"add.u32 %sk_b, %sk_b, {words};"
        return
    yield "// shared memory, behind the words of this SM: what of the table is the same for all"
    yield f"ld.global.nc.v2.u32 {header}"
    yield f"ld.global.nc.u32 %sk_c, [%sk_table+{WORD * HeaderWord.ARGUMENTS}];"
    yield f"ld.global.nc.u32 %sk_counter, [%sk_table+{WORD * HeaderWord.PARTS}];"
    yield f"add.u32 %sk_b, %sk_b, {words};"
    yield f"mad.lo.u32 %sk_target, %sk_b, {WORD}, %sk_control;"
    yield from _align_lines("%sk_target")
    yield "mov.u32 %sk_table_word, %sk_target;"
    yield "mov.u32 %sk_kind, 0;"
    yield from _copy_lines("common", shape)
    yield "// behind it, every argument as the sum that it stands for"
    yield from _argument_sums(shape)
    yield "// behind them, the lists of this SM, and of the inputs that it asks for"
    yield "sub.u32 %sk_d, %sk_counter, %sk_c;"
    yield f"shr.u32 %sk_d, %sk_d, {(ARGUMENT_BYTES // SUM_BYTES).bit_length() - 1};"
    yield "add.u32 %sk_target, %sk_c, %sk_d;"
    yield from _align_lines("%sk_target")
    yield "add.u32 %sk_target, %sk_target, %sk_table_word;"
    yield f"mad.lo.u32 %sk_counter, %sk_sm, {PART_BYTES}, %sk_counter;"
    yield "cvt.u64.u32 %sk_address, %sk_counter;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield f"ld.global.nc.v4.u32 {{%sk_kind, %sk_c, %sk_arrivals, %sk_seen}}, [%sk_address+{WORD * PartWord.LISTS}];"
    yield "sub.u32 %sk_warm, %sk_target, %sk_kind;"
    yield "sub.u32 %sk_warm_too, %sk_c, %sk_kind;"
    yield "add.u32 %sk_warm_too, %sk_warm_too, %sk_target;"
    yield from _copy_lines("lists", shape)
    if shape.streams:
        yield "mov.u32 %sk_target, %sk_warm_too;"
        yield "mov.u32 %sk_kind, %sk_arrivals;"
        yield "mov.u32 %sk_c, %sk_seen;"
        yield from _copy_lines("inputs", shape)
    yield "cvt.u64.u32 %sk_table, %sk_table_word;"


def _align_lines(register: str) -> Iterator[str]:
    yield f"add.u32 {register}, {register}, {TABLE_ALIGNMENT - 1};"
    yield f"and.b32 {register}, {register}, {-TABLE_ALIGNMENT & 0xFFFFFFFF:#x};"


def _copy_lines(what: str, shape: SlotShape) -> Iterator[str]:
    """The bytes of the table from %sk_kind to %sk_c go to %sk_target, by all threads of the SM."""
    yield "mov.u32 %sk_a, %tid.x;"
    yield f"mad.lo.u32 %sk_a, %sk_a, {TABLE_ALIGNMENT}, %sk_kind;"
    yield f"$sk_copy_{what}:"
    yield "setp.ge.u32 %sk_p, %sk_a, %sk_c;"
    yield f"@%sk_p bra $sk_{what}_copied;"
    yield "cvt.u64.u32 %sk_address, %sk_a;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield "sub.u32 %sk_d, %sk_a, %sk_kind;"
    yield "add.u32 %sk_d, %sk_d, %sk_target;"
    yield f"cp.async.cg.shared.global [%sk_d], [%sk_address], {TABLE_ALIGNMENT};"
    yield f"add.u32 %sk_a, %sk_a, {TABLE_ALIGNMENT * shape.block_threads};"
    yield f"bra $sk_copy_{what};"
    yield f"$sk_{what}_copied:"


def _argument_sums(shape: SlotShape) -> Iterator[str]:
    """The arguments from %sk_c to %sk_counter of the table become sums at %sk_c of the copy."""
    yield "mov.u32 %sk_d, %tid.x;"
    yield f"mad.lo.u32 %sk_a, %sk_d, {ARGUMENT_BYTES}, %sk_c;"
    yield f"mad.lo.u32 %sk_kind, %sk_d, {SUM_BYTES}, %sk_c;"
    yield "add.u32 %sk_kind, %sk_kind, %sk_table_word;"
    yield "cvta.param.u64 %sk_values, %sk_values;  // constant memory serves one lane after the other"
    yield "$sk_sum_argument:"
    yield "setp.ge.u32 %sk_p, %sk_a, %sk_counter;"
    yield "@%sk_p bra $sk_arguments_summed;"
    yield "cvt.u64.u32 %sk_address, %sk_a;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    yield f"ld.global.nc.v2.u32 {{%sk_d, %sk_target}}, [%sk_address+{WORD * ArgumentWord.SOURCE}];"
    yield f"ld.global.nc.u64 %sk_now, [%sk_address+{WORD * ArgumentWord.ADDEND}];"
    yield "cvt.u64.u32 %sk_event, %sk_d;"
    yield "add.u64 %sk_event, %sk_event, %sk_values;"
    yield "ld.u64 %sk_event, [%sk_event];"
    yield "add.u64 %sk_now, %sk_now, %sk_event;"
    yield "mad.wide.u32 %sk_now, %sk_sm, %sk_target, %sk_now;"
    yield "st.shared.u64 [%sk_kind], %sk_now;"
    yield f"add.u32 %sk_a, %sk_a, {ARGUMENT_BYTES * shape.block_threads};"
    yield f"add.u32 %sk_kind, %sk_kind, {SUM_BYTES * shape.block_threads};"
    yield "bra $sk_sum_argument;"
    yield "$sk_arguments_summed:"
