"""targets.ascend.emulator.trace: what an emulated launch recorded -> spans, and what was called where."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from superkernel.errors import LaunchError
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind

from ..core_types import CUBE, VECTOR, CoreClass
from ..kernel_description import EmittedKernel
from ..launch_shape import LaunchShape
from ..workspace_layout import DUMP_MAGIC
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
    SIGNAL = 8  # detail: flag; value: mode
    PRELOAD = 9  # detail: function; value: lines
    CLEAN = 10
    SYNC_ALL = 11
    STORE = 12  # value: address; by the entry
    AGENT = 13  # an agent outside the kernel; detail: which


_SPANS = (SpanKind.KERNEL, SpanKind.OP, SpanKind.WAIT)
_KIND_OF = {TracePoint[f"{kind.name}_END"]: kind for kind in _SPANS}
_BEGIN_OF = {end: TracePoint[f"{kind.name}_BEGIN"] for end, kind in _KIND_OF.items()}


@dataclass(frozen=True)
class CoreName:
    """Which core of a launch an index means: cubes first, then vectors."""

    kind: CoreClass
    block: int
    sub_block: int

    def __str__(self) -> str:
        return f"{self.kind.value} {self.block}" + (f".{self.sub_block}" if self.sub_block else "")


def core_name(launch: LaunchShape, index: int) -> CoreName:
    if index < launch.cubes:
        return CoreName(CUBE, index, 0)
    return CoreName(VECTOR, *divmod(index - launch.cubes, launch.type.vectors))


def core_names(launch: LaunchShape) -> tuple[str, ...]:
    return tuple(str(core_name(launch, index)) for index in range(launch.cubes + launch.vectors))


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
    """Kernel, op and wait spans per core; an op encloses the waits it makes inside."""
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


def profiled_spans(emitted: EmittedKernel, area: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> tuple[Span, ...]:
    """What the kernel itself wrote with profiling=1: marks nest on each core, so an end closes the last begin."""
    room = emitted.profiling
    assert room is not None
    spans = []
    for core, part in enumerate(area.reshape(-1, room.bytes_per_core)):
        count = int(part[:8].view(np.uint64)[0])
        words = part[room.header_bytes :].view(np.uint64)
        if 2 * count > words.size:
            says = f"core {core} says it wrote {count} records"
            raise LaunchError(f"profiling: {says}, there is room for {words.size // 2}")
        open_marks: list[tuple[int, int]] = []
        for mark, ticks in words[: 2 * count].reshape(-1, 2).tolist():
            index = mark & 0xFFFFFFFF
            point = room.marks[index]
            if point.begin:
                open_marks.append((index, ticks))
                continue
            begun = room.marks[open_marks[-1][0]] if open_marks else None
            if begun is None or (begun.what, begun.op) != (point.what, point.op):
                raise LaunchError(f"profiling: on core {core} the end of {point.what} {point.op or ''} closes no begin")
            times = (open_marks.pop()[1] * NS_PER_TICK, ticks * NS_PER_TICK)
            spans.append(Span(core, SpanKind(point.what), point.op, *times))
        if open_marks:
            raise LaunchError(f"profiling: core {core} left {len(open_marks)} marks open")
    return tuple(spans)


def printed_text(emitted: EmittedKernel, area: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    """What the sub-kernels printed, core by core."""
    assert emitted.dump is not None
    lines = []
    for index, part in enumerate(area.reshape(-1, emitted.dump.bytes_per_core)):
        magic, room, used = part[:24].view(np.uint64).tolist()
        name = core_name(emitted.launch, index)
        if magic != DUMP_MAGIC or used > room:
            raise LaunchError(f"the dump area of core {name} was never initialised, or something overwrote it")
        text = bytes(part[64 : 64 + used]).decode("utf-8", "replace")
        lines += [f"[{name}] {line}" for line in text.splitlines()]
    return "\n".join(lines)
