"""targets.cuda.emit_stream: the warp of an SM that asks for the inputs of later ops in the L2 cache, as PTX.

It follows the tasks of the first slot by a word in shared memory, and asks at the pace of the memory: more at a time
would queue, and the signals between ops behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .emit_identity import identity_lines
from .slot_shape import SlotShape
from .task_layout import (
    NO_GATE,
    PART_BYTES,
    STREAM_BYTES,
    STREAM_ENTRY_BYTES,
    WORD,
    ArgumentWord,
    HeaderWord,
    PartWord,
    SharedOffset,
    StreamWord,
)
from .virtual_ids import TABLE_LOAD

_LINE = 128
_LOOK_NS = 64  # between two looks at the tasks of the first slot
_NAP_NS = 20  # between two looks at the clock


def begun_lines(register: str) -> Iterator[str]:
    """The first thread of the SM says how many tasks its slot has begun; the number only rises."""
    yield "setp.eq.u32 %sk_p, %sk_tid, 0;"
    yield f"@%sk_p red.relaxed.cta.shared.max.u32 [%sk_control+{SharedOffset.BEGUN}], {register};"


def stream_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    yield "// ---- inputs of later ops: each entry is a part of an input, of which this SM asks for a share"
    yield "$sk_stream:"
    yield from identity_lines(shape, shares_table)
    if shape.keeps_identity:  # else the thread is counted from the beginning of its warp
        yield f"sub.u32 %sk_thread, %sk_thread, {shape.slot_threads};"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_counter, %sk_arrivals}}, [%sk_table+{WORD * HeaderWord.PARTS}];"
    if shares_table:
        yield "cvt.u64.u32 %sk_task, %sk_warm_too;"
    else:
        yield f"mad.lo.u32 %sk_counter, %sk_sm, {PART_BYTES}, %sk_counter;"
        yield "cvt.u64.u32 %sk_address, %sk_counter;"
        yield "add.u64 %sk_address, %sk_address, %sk_table;"
        yield f"{TABLE_LOAD}.u32 %sk_counter, [%sk_address+{WORD * PartWord.INPUTS}];"
        yield "cvt.u64.u32 %sk_task, %sk_counter;"
        yield "add.u64 %sk_task, %sk_task, %sk_table;"
    yield "mov.u64 %sk_since, 0;"
    yield "$sk_stream_entry:"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_kind, %sk_target}}, [%sk_task+{WORD * StreamWord.GATE}];"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_argument, %sk_block}}, [%sk_task+{WORD * StreamWord.ARGUMENT}];"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_c, %sk_d}}, [%sk_task+{WORD * StreamWord.SHARE}];"
    yield f"add.u64 %sk_task, %sk_task, {STREAM_ENTRY_BYTES};"
    yield f"setp.eq.u32 %sk_p, %sk_kind, {NO_GATE:#x};"
    yield "@%sk_p bra $sk_leave;"
    yield from argument_lines("%sk_event", shares_table)
    yield "mad.lo.u32 %sk_block, %sk_sm, %sk_c, %sk_block;"
    yield "add.u32 %sk_c, %sk_block, %sk_c;"
    yield "min.u32 %sk_d, %sk_d, %sk_c;"
    yield f"mad.lo.u32 %sk_block, %sk_thread, {_LINE}, %sk_block;"
    yield "$sk_stream_gate:"
    yield f"ld.acquire.cta.shared.u32 %sk_seen, [%sk_control+{SharedOffset.BEGUN}];"
    yield "setp.gt.u32 %sk_p, %sk_seen, %sk_target;"
    yield "@%sk_p bra $sk_stream_late;"
    yield "setp.ge.u32 %sk_p, %sk_seen, %sk_kind;"
    yield "@%sk_p bra $sk_stream_ask;"
    yield f"nanosleep.u32 {_LOOK_NS};"
    yield "bra $sk_stream_gate;"
    yield "$sk_stream_late:"
    yield f"setp.eq.u32 %sk_p, %sk_seen, {NO_GATE:#x};"
    yield "@%sk_p bra $sk_leave;"
    yield "bra $sk_stream_entry;"
    yield "$sk_stream_ask:"
    yield "mov.u64 %sk_now, %globaltimer;"
    yield "sub.u64 %sk_elapsed, %sk_now, %sk_since;"
    yield "cvt.u64.u32 %sk_host, %sk_arrivals;"
    yield "setp.ge.u64 %sk_p, %sk_elapsed, %sk_host;"
    yield "@%sk_p bra $sk_stream_line;"
    yield f"nanosleep.u32 {_NAP_NS};"
    yield "bra $sk_stream_ask;"
    yield "$sk_stream_line:"
    yield "mov.u64 %sk_since, %sk_now;"
    yield "setp.lt.u32 %sk_p, %sk_block, %sk_d;"
    yield "cvt.u64.u32 %sk_address, %sk_block;"
    yield "add.u64 %sk_address, %sk_address, %sk_event;"
    yield "@%sk_p prefetch.global.L2 [%sk_address];"
    yield f"add.u32 %sk_block, %sk_block, {STREAM_BYTES};"
    yield f"mad.lo.u32 %sk_a, %sk_thread, {-_LINE}, %sk_block;"
    yield "setp.lt.u32 %sk_p, %sk_a, %sk_d;"
    yield "@%sk_p bra $sk_stream_gate;"
    yield "bra $sk_stream_entry;"


def argument_lines(register: str, shares_table: bool) -> Iterator[str]:
    """The argument at offset %sk_argument of the table, in a 64-bit register."""
    yield "cvt.u64.u32 %sk_address, %sk_argument;"
    yield "add.u64 %sk_address, %sk_address, %sk_table;"
    if shares_table:
        yield f"ld.shared.u64 {register}, [%sk_address];"
        return
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_address+{WORD * ArgumentWord.SOURCE}];"
    yield f"{TABLE_LOAD}.u64 %sk_address, [%sk_address+{WORD * ArgumentWord.ADDEND}];"
    yield f"cvt.u64.u32 {register}, %sk_a;"
    yield f"add.u64 {register}, {register}, %sk_values;"
    yield f"ld.param.u64 {register}, [{register}];"
    yield f"add.u64 {register}, {register}, %sk_address;"
