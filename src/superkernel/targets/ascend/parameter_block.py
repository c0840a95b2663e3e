"""targets.ascend.parameter_block: where buffers, words and areas of a launch are -> the values of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...model.graph import Graph
from .argument_layout import SYNC_BASE
from .kernel_description import EmittedKernel

TASK_ID = 1  # of a launch outside of CANN's graph engine


@dataclass(frozen=True)
class LaunchAddresses:
    """Device addresses, and the bits of scalars."""

    sync_base: int
    workspace: int  # 0: there is none
    profiling: int
    words: Mapping[int, int]  # slot -> address of the word it points to
    buffers: Mapping[str, int]  # name -> address, or the bits of a scalar


def word_names(emitted: EmittedKernel) -> dict[int, str]:
    """Slots that point to a word, and what errors call it. An event is the same word for all ops that use it."""
    names = {event.slot: f"event {event.label}" for event in emitted.events}
    for tiling in emitted.tilings:
        names[tiling.key_slot] = f"the tiling key of op {tiling.op!r}"
        names[tiling.blocks_slot] = f"the block count of op {tiling.op!r}"
        names[tiling.lock_slot] = f"the lock of op {tiling.op!r}"
    for number, prefetch in enumerate(emitted.prefetches):
        names[prefetch.go_slot] = f"the go word of prefetch {number} (op {prefetch.op!r})"
    return names


def slot_values(emitted: EmittedKernel, graph: Graph, addresses: LaunchAddresses) -> list[int]:
    """The parameter block, slot by slot."""
    special = {SYNC_BASE: addresses.sync_base, **addresses.words}
    if emitted.workspace_slot is not None:
        special[emitted.workspace_slot] = addresses.workspace
    if emitted.profiling_slot is not None:
        special[emitted.profiling_slot] = addresses.profiling
    if emitted.task_id_slot is not None:
        special[emitted.task_id_slot] = TASK_ID
    values = []
    for slot in emitted.layout:
        if slot.index in special:
            values.append(special[slot.index])
        elif slot.source is None:
            values.append(slot.literal)
        else:
            addend = 0 if graph.buffers[slot.source].scalar else slot.addend
            values.append(addresses.buffers[slot.source] + addend)
    return values
