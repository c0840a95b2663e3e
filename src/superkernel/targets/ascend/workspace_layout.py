"""targets.ascend.workspace_layout: memory that a launch needs besides its buffers: control words, dump, time stamps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...model.graph import Graph
from ...plan.steps import Record, Step
from .chips import Chip
from .facts import facts_of
from .kernel_description import DumpArea, MarkPoint, ProfilingArea
from .launch_shape import LaunchShape

CONTROL_STRIDE = 64  # bytes between the control words of the classes of an op
OP_STRIDE = 2 * CONTROL_STRIDE
DUMP_MAGIC = 0x534B44554D50
DUMP_HEADER = 64


@dataclass(frozen=True)
class WorkspaceLayout:
    feed_bytes: int
    dump: DumpArea | None
    profiling: ProfilingArea | None

    @property
    def bytes(self) -> int:
        return self.feed_bytes + (self.dump.bytes if self.dump else 0)


def lay_out_workspace(
    graph: Graph, launch: LaunchShape, chip: Chip, fed: bool, steps: Sequence[Step]
) -> WorkspaceLayout:
    cores = launch.cubes + launch.vectors
    feed_bytes = feed_size(cores, len(graph.nodes)) if fed else 0
    return WorkspaceLayout(feed_bytes, _dump(graph, cores, feed_bytes, chip), _profiling(graph, chip, steps))


def feed_size(cores: int, ops: int) -> int:
    """512 bytes per core, doubled until the control words of all ops fit."""
    base = 512
    while cores * base <= OP_STRIDE * ops:
        base *= 2
    return cores * base


def prints(graph: Graph) -> bool:
    return any(facts_of(node.kernel).prints for node in graph.nodes)


def _dump(graph: Graph, cores: int, offset: int, chip: Chip) -> DumpArea | None:
    if not prints(graph):
        return None
    facts = [facts_of(node.kernel) for node in graph.nodes]
    options = tuple(sorted({option for fact in facts for option in fact.debug_options}))
    size = max((fact.debug_bytes for fact in facts), default=0)
    part = max(size // cores // chip.cache_line * chip.cache_line, DUMP_HEADER + chip.cache_line)
    return DumpArea(offset, max(size, part * cores), part, options)


def _profiling(graph: Graph, chip: Chip, steps: Sequence[Step]) -> ProfilingArea | None:
    marks: dict[MarkPoint, None] = {}
    counts: Counter[object] = Counter()
    for step in steps:
        if isinstance(step, Record):
            marks[mark_of(graph, step)] = None
            counts.update(step.cores)
    if not marks:
        return None
    size = chip.cache_line + 16 * max(counts.values())
    return ProfilingArea(-(-size // chip.cache_line) * chip.cache_line, chip.cache_line, tuple(marks))


def mark_of(graph: Graph, record: Record) -> MarkPoint:
    return MarkPoint(record.what.value, None if record.op is None else graph.nodes[record.op].name, record.begin)
