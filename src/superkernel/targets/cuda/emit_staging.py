"""targets.cuda.emit_staging: the warps of an SM that fill its ring with the weights of one op after the other, as PTX.

They ask for chunks as slots of the ring become empty, a few at a time, and know nothing of tasks: a body that takes
chunks out waits at their barriers. Bulk copies would need one thread only; but a core that signals waits until the bulk
copies of its SM have arrived, which costs it more than a microsecond, and it does not wait for these. Copies on their
way end before the warps do: they would write into shared memory that is no longer the launch's.
"""

from __future__ import annotations

from collections.abc import Iterator

from .emit_stream import argument_lines
from .emit_waits import EVERY_LANE
from .ring_shape import BARRIER_BYTES, STAGING_THREADS, RingShape
from .slot_shape import SlotShape
from .task_layout import NO_GATE, STAGE_ENTRY_BYTES, WORD, HeaderWord, SharedOffset, StageWord
from .virtual_ids import TABLE_LOAD

_COPY_BYTES = 16


def ring_lines(ring: RingShape) -> Iterator[str]:
    """When a launch begins: the barriers of the ring; no chunk has been taken."""
    yield "// the ring of weights is empty"
    yield f"setp.ge.u32 %sk_p, %sk_tid, {ring.slots};"
    yield "@%sk_p bra $sk_ring_there;"
    yield f"mad.lo.u32 %sk_a, %sk_tid, {BARRIER_BYTES}, %sk_shared;"
    yield f"mbarrier.init.shared::cta.b64 [%sk_a+{ring.full_offset}], {STAGING_THREADS};"
    yield f"mbarrier.init.shared::cta.b64 [%sk_a+{ring.empty_offset}], {ring.arrivals};"
    yield "setp.eq.u32 %sk_p, %sk_tid, 0;"
    yield f"@%sk_p st.shared.u32 [%sk_shared+{ring.taken_offset}], 0;"
    yield "$sk_ring_there:"


def staging_lines(shape: SlotShape, ring: RingShape, shares_table: bool) -> Iterator[str]:
    """All threads of these warps count alike: in %sk_counter and %sk_arrivals the next slot, and the phase in which it
    becomes empty; in %sk_target and %sk_seen the oldest slot on its way, and the phase in which it becomes full; in
    %sk_more how many are on their way.
    """
    yield "// ---- weights of all ops, in their order, into the ring; an SM has one block's chunks of each"
    yield "$sk_stage:"
    yield f"sub.u32 %sk_thread, %sk_tid, {shape.staging_thread};"
    yield f"mul.lo.u32 %sk_thread, %sk_thread, {_COPY_BYTES};"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_table+{WORD * HeaderWord.STAGED}];"
    yield "cvt.u64.u32 %sk_task, %sk_a;"
    yield "add.u64 %sk_task, %sk_task, %sk_table;"
    yield "mov.u32 %sk_counter, 0;"
    yield "mov.u32 %sk_arrivals, 1;  // a fresh barrier counts as one turn before"
    yield "mov.u32 %sk_target, 0;"
    yield "mov.u32 %sk_seen, 0;"
    yield "mov.u32 %sk_more, 0;"
    yield "$sk_stage_entry:"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_argument, %sk_block}}, [%sk_task+{WORD * StageWord.ARGUMENT}];"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_d, %sk_more_count}}, [%sk_task+{WORD * StageWord.BLOCKS}];"
    yield f"{TABLE_LOAD}.v2.u32 {{%sk_c, %sk_b}}, [%sk_task+{WORD * StageWord.BYTES}];"
    yield f"add.u64 %sk_task, %sk_task, {STAGE_ENTRY_BYTES};"
    yield "setp.eq.u32 %sk_p, %sk_argument, 0;"
    yield "@%sk_p bra $sk_stage_end;"
    yield from argument_lines("%sk_event", shares_table)
    yield "// the chunks of the block of this SM, if it has one"
    yield "sub.u32 %sk_block, %sk_sm, %sk_block;"
    yield "setp.ge.u32 %sk_p, %sk_block, %sk_d;"
    yield "@%sk_p bra $sk_stage_entry;"
    yield "$sk_stage_chunk:"
    yield "setp.ge.u32 %sk_p, %sk_block, %sk_more_count;"
    yield "@%sk_p bra $sk_stage_entry;"
    yield f"mad.lo.u32 %sk_a, %sk_counter, {BARRIER_BYTES}, %sk_shared;"
    yield "$sk_stage_room:"
    yield f"mbarrier.try_wait.parity.shared::cta.b64 %sk_p, [%sk_a+{ring.empty_offset}], %sk_arrivals;"
    yield "@%sk_p bra $sk_stage_flying;"
    yield f"ld.acquire.cta.shared.u32 %sk_kind, [%sk_control+{SharedOffset.BEGUN}];"
    yield f"setp.eq.u32 %sk_p, %sk_kind, {NO_GATE:#x};"
    yield "@%sk_p bra $sk_stage_end;  // the launch was aborted"
    yield "bra $sk_stage_room;"
    yield "$sk_stage_flying:"
    yield f"setp.lt.u32 %sk_p, %sk_more, {ring.flying};"
    yield "@%sk_p bra $sk_stage_ask;"
    yield f"mad.lo.u32 %sk_kind, %sk_target, {BARRIER_BYTES}, %sk_shared;"
    yield "$sk_stage_landed:"
    yield f"mbarrier.try_wait.parity.shared::cta.b64 %sk_p, [%sk_kind+{ring.full_offset}], %sk_seen;"
    yield "@!%sk_p bra $sk_stage_landed;"
    yield "sub.u32 %sk_more, %sk_more, 1;"
    yield from _advance_lines("%sk_target", "%sk_seen", ring)
    yield "$sk_stage_ask:"
    yield f"bar.warp.sync {EVERY_LANE};"
    yield "mad.wide.u32 %sk_host, %sk_block, %sk_c, %sk_event;"
    yield "add.u32 %sk_polls, %sk_block, 1;"
    yield "setp.eq.u32 %sk_p, %sk_polls, %sk_more_count;"
    yield "selp.b32 %sk_polls, %sk_b, %sk_c, %sk_p;"
    yield f"mad.lo.u32 %sk_kind, %sk_counter, {ring.slot_bytes}, %sk_shared;"
    yield "mov.u32 %sk_warm, %sk_thread;"
    yield "$sk_stage_copy:"
    yield "setp.ge.u32 %sk_p, %sk_warm, %sk_polls;"
    yield "@%sk_p bra $sk_stage_copied;"
    yield "cvt.u64.u32 %sk_address, %sk_warm;"
    yield "add.u64 %sk_address, %sk_address, %sk_host;"
    yield "add.u32 %sk_warm_too, %sk_warm, %sk_kind;"
    yield f"cp.async.cg.shared.global [%sk_warm_too], [%sk_address], {_COPY_BYTES};"
    yield f"add.u32 %sk_warm, %sk_warm, {_COPY_BYTES * STAGING_THREADS};"
    yield "bra $sk_stage_copy;"
    yield "$sk_stage_copied:"
    yield f"bar.warp.sync {EVERY_LANE};"
    yield f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%sk_a+{ring.full_offset}];"
    yield "add.u32 %sk_more, %sk_more, 1;"
    yield from _advance_lines("%sk_counter", "%sk_arrivals", ring)
    yield "add.u32 %sk_block, %sk_block, %sk_d;"
    yield "bra $sk_stage_chunk;"
    yield "$sk_stage_end:"
    yield "cp.async.wait_all;"
    yield "bra $sk_leave;"


def _advance_lines(slot: str, phase: str, ring: RingShape) -> Iterator[str]:
    """The next slot; the phase changes with every turn."""
    yield f"add.u32 {slot}, {slot}, 1;"
    yield f"setp.eq.u32 %sk_p, {slot}, {ring.slots};"
    yield f"@%sk_p mov.u32 {slot}, 0;"
    yield f"@%sk_p xor.b32 {phase}, {phase}, 1;"
