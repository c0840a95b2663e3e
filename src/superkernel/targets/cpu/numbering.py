"""targets.cpu.numbering: a plan -> the small integers by which the emitted code and the run time know its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...model.argument_layout import Layout, Role, make_layout
from ...plan import Plan
from ...plan.steps import Barrier, Call, Mark, Record, Signal

LITERAL = -1
FIRST_TILING = -2  # as in program.h
_TILING_WORDS = {Role.TILING_KEY: 0, Role.BLOCK_COUNT: 1, Role.LOCK: 2}


@dataclass(frozen=True)
class Numbering:
    layout: Layout
    stamps: Mapping[Mark, int]  # signals and barriers count up along the plan, so a core's stamps only rise
    barriers: Mapping[int, int]  # step -> stamp
    rendezvous: Mapping[int, int]  # sync_all op -> index
    tilings: Mapping[int, int]  # dynamic op -> index
    sources: tuple[str, ...]  # the names a launch passes: buffers, scalars, then events
    records: int

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
    dynamic = [node.index for node in plan.graph.nodes if node.dynamic]
    return Numbering(
        make_layout(plan.graph),
        stamps,
        barriers,
        rendezvous,
        {op: i for i, op in enumerate(dynamic)},
        (*plan.graph.buffers, *(event.label for event in plan.graph.events)),
        sum(isinstance(step, Record) for step in plan.steps),
    )
