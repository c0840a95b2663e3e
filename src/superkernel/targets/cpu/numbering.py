"""targets.cpu.numbering: a plan -> the small integers by which the emitted code and the run time know its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...model.argument_layout import Layout, Role, make_layout
from ...plan import Plan
from ...plan.spans import RECORDED_MEETINGS
from ...plan.steps import Barrier, Call, Cores, Mark, Need, Record, Signal, Wait

LITERAL = -1
FIRST_TILING = -2  # as in program.h
_TILING_WORDS = {Role.TILING_KEY: 0, Role.BLOCK_COUNT: 1, Role.LOCK: 2}


# From so many cores on, a mark is one counter that all of them raise; below, a wait polls the stamp of each core, which
# was 2 % (4 cores) to 12 % (16 cores) faster: stores to lines of their own do not queue up as additions to one do.
COUNTER_FROM = 64
COPY_ALIGNMENT = 128  # bytes; as kApart in state.h


@dataclass(frozen=True)
class CopyArea:
    """Where the private copies of a buffer lie in the memory of a launch; copy 0 is the buffer itself."""

    op: int  # that writes it
    offset: int  # of copy 1
    stride: int


@dataclass(frozen=True)
class Numbering:
    layout: Layout
    stamps: Mapping[Mark, int]  # signals and barriers count up along the plan, so a core's stamps only rise
    barriers: Mapping[int, int]  # step -> stamp
    rendezvous: Mapping[int, int]  # sync_all op -> index
    tilings: Mapping[int, int]  # dynamic op -> index
    counters: Mapping[tuple[Mark, Cores], int]  # the cores that signal a mark, where they are many -> index
    copies: Mapping[str, CopyArea]  # by buffer
    copies_bytes: int
    sources: tuple[str, ...]  # the names a launch passes: buffers, scalars, then events
    stamp_room: int  # time stamps per core and launch, at most

    def counter_of(self, need: Need) -> int | None:
        """The counter that meets a need, if it is for all cores that signal the mark, and they are many."""
        return self.counters.get((need.mark, need.cores))

    def slot_sources(self, plan: Plan) -> list[int]:
        """Per slot: the place of its name in `sources`, or a negative code."""
        place = {name: i for i, name in enumerate(self.sources)}
        events = {name: i for i, name in enumerate(self.sources) if i >= len(plan.graph.buffers)}
        by_name = {node.name: node.index for node in plan.graph.nodes}
        found = []
        for slot in self.layout:
            if slot.role in _TILING_WORDS:
                found.append(FIRST_TILING - 3 * self.tilings[by_name[slot.op]] - _TILING_WORDS[slot.role])
            elif slot.source is None:
                found.append(LITERAL)
            else:
                found.append((place if slot.role is Role.PARAM else events)[slot.source])
        return found


def number(plan: Plan) -> Numbering:
    stamps: dict[Mark, int] = {}
    barriers: dict[int, int] = {}
    rendezvous: dict[int, int] = {}
    for i, step in enumerate(plan.steps):
        if isinstance(step, Signal):
            stamps[step.mark] = len(stamps) + len(barriers) + 1
        elif isinstance(step, Barrier):
            barriers[i] = len(stamps) + len(barriers) + 1
        elif isinstance(step, Call) and step.team:
            rendezvous[step.op] = len(rendezvous)
    awaited = {(need.mark, need.cores) for s in plan.steps if isinstance(s, Wait) for need in s.needs}
    signals = [(step.mark, step.cores) for step in plan.steps if isinstance(step, Signal)]
    counted = [signal for signal in signals if len(signal[1]) >= COUNTER_FROM and signal in awaited]
    copies, copies_bytes = _lay_out_copies(plan)
    dynamic = [node.index for node in plan.graph.nodes if node.dynamic]
    return Numbering(
        make_layout(plan.graph),
        stamps,
        barriers,
        rendezvous,
        {op: i for i, op in enumerate(dynamic)},
        {signal: i for i, signal in enumerate(counted)},
        copies,
        copies_bytes,
        (*plan.graph.buffers, *(event.label for event in plan.graph.events)),
        _stamp_room(plan),
    )


def _stamp_room(plan: Plan) -> int:
    """Time stamps that one core takes at most: every record, and both ends of every wait inside a call."""
    records = sum(isinstance(step, Record) for step in plan.steps)
    if not records:
        return 0
    waits = sum(len(ranges(need.cores)) for s in plan.steps if isinstance(s, Wait) and s.inside for need in s.needs)
    meetings = sum(isinstance(step, Call) and bool(step.team) for step in plan.steps)
    return records + 2 * waits + 2 * RECORDED_MEETINGS * meetings


def _lay_out_copies(plan: Plan) -> tuple[dict[str, CopyArea], int]:
    areas: dict[str, CopyArea] = {}
    end = 0
    for op, copies in plan.copies.items():
        for param, name in plan.graph.nodes[op].arguments():
            if param.kind.writes:
                stride = -(-(plan.graph.buffers[name].nbytes or 0) // COPY_ALIGNMENT) * COPY_ALIGNMENT
                areas[name] = CopyArea(op, end, stride)
                end += stride * (len(copies) - 1)
    return areas, end


def ranges(cores: Cores) -> list[tuple[int, int]]:
    """(0, 1, 2, 5) -> [(0, 3), (5, 6)]."""
    found: list[tuple[int, int]] = []
    for core in cores:
        if found and found[-1][1] == core:
            found[-1] = (found[-1][0], core + 1)
        else:
            found.append((core, core + 1))
    return found
