"""targets.cuda.empty_bodies: the shape of a sub-kernel -> a body that does nothing but wait where the sub-kernel waits.

A super kernel of such bodies takes the time of its syncs alone, and touches no buffer.
"""

from __future__ import annotations

from .emit_waits import wait_lines
from .rewrite import BodyShape, KernelBody, barrier_register
from .slot_shape import SlotShape
from .task_layout import TaskFlag


def empty_shape(threads: int, parameters: int, slot: SlotShape, *, waits: bool, shares_table: bool) -> BodyShape:
    """All that is left of a sub-kernel: super kernels of equal shapes share a binary."""
    return BodyShape(
        threads=(threads, 1, 1),
        dynamic_shared=0,
        flat_grid=True,
        wait_statement=0 if waits else None,
        narrow=threads < slot.threads,
        parameters=parameters,  # of its tasks, which the table gives as it gives them to the sub-kernel
        shares_table=shares_table,
    )


def empty_name(shape: BodyShape) -> str:
    return f"empty_{shape.threads[0]}_{shape.parameters}{'' if shape.wait_statement is None else '_waits'}"


def empty_body(shape: BodyShape, name: str, slot: SlotShape) -> KernelBody:
    threads, lines = shape.threads[0], list[str]()
    if shape.wait_statement is not None:
        barrier = barrier_register(shape.narrow)
        waits = TaskFlag.WAITS_INSIDE
        lines += wait_lines(f"$sk_{name}_wait", slot, threads, waits, "$sk_meet", shape.shares_table, barrier)
    return KernelBody(
        name=name,
        title=f"nothing, by {threads} threads",
        shape=shape,
        lines=tuple(lines),
        declarations=(),
        shared_bytes=0,
        repeats_need_barrier=False,
        proxy_fence="",
        after=(),
        mbarriers=0,
    )
