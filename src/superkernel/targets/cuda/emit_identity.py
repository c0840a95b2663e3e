"""targets.cuda.emit_identity: what a thread is in its super kernel, as PTX: its slot, its core, where its memory lies.

With several slots these lines stand wherever the values are needed again: kept from task to task they would take 20
registers of every thread, which the bodies of sub-kernels need. One slot has registers enough, and little time between
its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from .slot_shape import SlotShape
from .task_layout import MOST_MBARRIERS, WORD, SharedOffset

_FRACTION = 20  # bits; exact for the up to 1024 threads of a block


def identity_lines(shape: SlotShape, shares_table: bool) -> Iterator[str]:
    """All that follows from the number of the thread, and where the task table lies, as it is needed again."""
    if shape.keeps_identity:
        return
    yield from place_lines(shape)
    yield "mov.b64 %sk_values, sk_values;"
    if shares_table:
        yield f"ld.volatile.shared.u32 %sk_table_word, [%sk_control+{SharedOffset.TABLE}];"
        yield "cvt.u64.u32 %sk_table, %sk_table_word;"
    else:
        yield "mov.b64 %sk_table, sk_tasks;"


def place_again_lines(shape: SlotShape) -> Iterator[str]:
    """The place of the thread, as it is needed again."""
    if not shape.keeps_identity:
        yield from place_lines(shape)


def place_lines(shape: SlotShape) -> Iterator[str]:
    """The slot of the thread and its place there, the core, and the shared memory of the slot."""
    yield "mov.u32 %sk_thread, %sk_tid;"
    yield "mov.u32 %sk_sm, %ctaid.x;"
    yield "mov.u32 %sk_core, %sk_sm;"
    if shape.slots > 1:
        yield f"mul.lo.u32 %sk_slot, %sk_thread, {(1 << _FRACTION) // shape.threads + 1};"
        yield f"shr.u32 %sk_slot, %sk_slot, {_FRACTION};  // of {shape.threads} threads"
        yield f"mul.lo.u32 %sk_a, %sk_slot, {shape.threads};"
        yield "sub.u32 %sk_thread, %sk_thread, %sk_a;"
        yield "mov.u32 %sk_a, %nctaid.x;"
        yield "mad.lo.u32 %sk_core, %sk_slot, %sk_a, %sk_core;"
    else:
        yield "mov.u32 %sk_slot, 0;"
    yield "setp.eq.u32 %sk_first, %sk_thread, 0;"
    yield "add.u32 %sk_barrier, %sk_slot, 1;"
    yield f"add.u32 %sk_narrow_barrier, %sk_barrier, {shape.slots};"
    yield "mov.u32 %sk_control, sk_shared_memory;"
    yield f"mad.lo.u32 %sk_shared, %sk_slot, {shape.shared_bytes}, %sk_control;"
    yield f"add.u32 %sk_control, %sk_control, {shape.control_offset};"
    yield f"mad.lo.u32 %sk_slot_words, %sk_slot, {WORD * MOST_MBARRIERS}, %sk_control;"
    yield "ld.param.u64 %sk_state, [sk_state];"
