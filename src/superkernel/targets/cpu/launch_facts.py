"""targets.cpu.launch_facts: a plan and its numbering -> what the run time must know of it beside the code."""

from __future__ import annotations

from ...plan import Plan
from ..packaging import LaunchFacts
from .build import entry_name
from .numbering import Numbering


def launch_facts(plan: Plan, numbers: Numbering) -> LaunchFacts:
    slots, memory = numbers.layout.slots, plan.memory
    sizes = {buffer.name: buffer.nbytes for buffer in memory.buffers}
    return LaunchFacts(
        cores=plan.cores,
        entry=entry_name(plan.graph.label),
        slot_source=tuple(numbers.slot_sources(plan)),
        slot_literal=tuple(slot.literal + slot.addend for slot in slots),
        rendezvous=len(numbers.rendezvous),
        counters=len(numbers.counters),
        copies_bytes=numbers.copies_bytes,
        needs_team=bool(numbers.rendezvous),
        arena_bytes=memory.arena,
        source_offset=tuple(memory.offsets.get(name, -1) for name in numbers.sources),
        source_bytes=tuple(sizes.get(name, 0) for name in numbers.sources),
        blocking_steps=plan.blocking_steps,
        steps=tuple(plan.describe(step) for step in plan.steps),
        stamp_room=numbers.stamp_room,
    )
