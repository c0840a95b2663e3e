"""targets.ascend.kernel_areas: what a launch left in its profiling and dump areas -> spans, and printed text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import LaunchError
from ...plan.spans import Span
from ...plan.steps import SpanKind
from .core_types import CUBE, VECTOR, CoreClass
from .kernel_description import EmittedKernel
from .launch_shape import LaunchShape
from .parameter_block import TASK_ID
from .workspace_layout import DUMP_HEADER, DUMP_MAGIC

Area = np.ndarray[tuple[int], np.dtype[np.uint8]]


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


def profiled_spans(emitted: EmittedKernel, area: Area, ns_per_tick: float) -> tuple[Span, ...]:
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
            task, index = divmod(mark, 2**32)
            if task != TASK_ID or index >= len(room.marks):
                raise LaunchError(f"profiling: core {core} wrote mark {index} of task {task}; the task is {TASK_ID}")
            point = room.marks[index]
            if point.begin:
                open_marks.append((index, ticks))
                continue
            begun = room.marks[open_marks[-1][0]] if open_marks else None
            if begun is None or (begun.what, begun.op) != (point.what, point.op):
                raise LaunchError(f"profiling: on core {core} the end of {point.what} {point.op or ''} closes no begin")
            times = (open_marks.pop()[1] * ns_per_tick, ticks * ns_per_tick)
            spans.append(Span(core, SpanKind(point.what), point.op, *times))
        if open_marks:
            raise LaunchError(f"profiling: core {core} left {len(open_marks)} marks open")
    return tuple(spans)


def printed_text(emitted: EmittedKernel, area: Area) -> str:
    """What the sub-kernels printed, core by core."""
    assert emitted.dump is not None
    lines = []
    for index, part in enumerate(area.reshape(-1, emitted.dump.bytes_per_core)):
        magic, room, used = part[:24].view(np.uint64).tolist()
        name = core_name(emitted.launch, index)
        if (magic, room) != (DUMP_MAGIC, emitted.dump.bytes_per_core - DUMP_HEADER) or used > room:
            raise LaunchError(f"the dump area of core {name} was never initialised, or something overwrote it")
        text = bytes(part[64 : 64 + used]).decode("utf-8", "replace")
        lines += [f"[{name}] {line}" for line in text.splitlines()]
    return "\n".join(lines)
