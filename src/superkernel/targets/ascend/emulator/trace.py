"""targets.ascend.emulator.trace: what an emulated launch recorded -> spans, and what was called where."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from superkernel.errors import LaunchError
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind

from ..kernel_areas import core_name
from ..kernel_description import EmittedKernel
from .library import TraceRecord

NS_PER_TICK = 1.0  # a tick is the emulator's unit of time; it says nothing of a chip's clock
_NO_OP = 2**32 - 1


class TracePoint(Enum):
    """As in machine.h."""

    KERNEL_BEGIN = 0
    KERNEL_END = 1
    OP_BEGIN = 2  # detail: copy; value: block
    OP_WAITED = 3
    OP_SET = 4
    OP_END = 5  # value: all-core barriers inside
    WAIT_BEGIN = 6  # detail: flag
    WAIT_END = 7
    SIGNAL = 8  # detail: flag; value: mode, and from bit 8 on the pipe
    PRELOAD = 9  # detail: function; value: lines
    CLEAN = 10
    SYNC_ALL = 11
    STORE = 12  # detail: what is stored; value: address; by the entry
    AGENT = 13  # an agent outside the kernel; detail: which
    POLL_BEGIN = 14  # value: address of a word that does not change meanwhile
    POLL_END = 15
    DRAIN = 16  # detail: pipe
    WORD_SEEN = 17  # value: address of a word of an event or lock that the core finds set


_KIND_OF = {
    TracePoint.KERNEL_END: SpanKind.KERNEL,
    TracePoint.OP_END: SpanKind.OP,
    TracePoint.WAIT_END: SpanKind.WAIT,
    TracePoint.POLL_END: SpanKind.WAIT,
}
_BEGIN_OF = {end: TracePoint[end.name.replace("END", "BEGIN")] for end in _KIND_OF}


@dataclass(frozen=True)
class TracedStep:
    """One thing a core did. `sequence` is the order in which they happened, `time` the core's clock in ticks."""

    sequence: int
    time: int
    core: int
    what: TracePoint
    op: str | None
    detail: int
    value: int


def steps_of(raw: ctypes.Array[TraceRecord], ops: Sequence[str]) -> tuple[TracedStep, ...]:
    names = {_NO_OP: None, **dict(enumerate(ops))}
    return tuple(
        TracedStep(r.sequence, r.time, r.core, TracePoint(r.what), names[r.op], r.detail, r.value) for r in raw
    )


def spans_of_steps(steps: Iterable[TracedStep]) -> tuple[Span, ...]:
    """Kernel, op and wait spans per core, at flags and for words; an op encloses the waits it makes inside."""
    begun: dict[tuple[int, TracePoint], TracedStep] = {}
    spans = []
    for step in steps:
        if step.what in _BEGIN_OF.values():
            begun[step.core, step.what] = step
        elif step.what in _BEGIN_OF:
            first = begun.pop((step.core, _BEGIN_OF[step.what]))
            times = (first.time * NS_PER_TICK, step.time * NS_PER_TICK)
            spans.append(Span(step.core, _KIND_OF[step.what], first.op, *times))
    return tuple(spans)


def check_profiled(
    emitted: EmittedKernel, spans: Iterable[Span], steps: Sequence[TracedStep], events: set[int]
) -> None:
    """P13: on every core one span of the kernel, and one of each op that it ran, around it; notifies lie in theirs.

    `events`: the addresses of the words that the kernel notifies.
    """
    of_core: dict[tuple[int, SpanKind], list[Span]] = {}
    for span in spans:
        of_core.setdefault((span.core, SpanKind(span.what)), []).append(span)
    for core in range(emitted.launch.cubes + emitted.launch.vectors):
        if len(of_core.get((core, SpanKind.KERNEL), ())) != 1:
            raise LaunchError(
                f"profiling: core {core_name(emitted.launch, core)} has no span of the kernel, or several"
            )
    kinds = {TracePoint.OP_BEGIN: SpanKind.OP, TracePoint.OP_END: SpanKind.OP, TracePoint.STORE: SpanKind.NOTIFY}
    for step in steps:
        kind = kinds.get(step.what)
        if kind is None or (kind is SpanKind.NOTIFY and step.value not in events):
            continue
        ticks = step.time * NS_PER_TICK
        around = [span for span in of_core.get((step.core, kind), ()) if span.begin_ns <= ticks <= span.end_ns]
        if not any(step.op is None or span.op == step.op for span in around):
            what = f"op {step.op!r}" if step.op is not None else "a notify"
            raise LaunchError(f"profiling: {what} on core {core_name(emitted.launch, step.core)} lies in no span of it")
