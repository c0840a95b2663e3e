"""targets.ascend.emulator.between_launches: several launches in a row -> what the host does between two of them.

The host passes the same buffers again and takes the events that the kernel sent. Everything else is as the launch left
it: words that the kernel must reset, tiling answers, control words, dump area, time stamps, flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from superkernel.model.graph import Graph

from ..kernel_description import EmittedKernel
from .arena import Arena, buffer_region


class BetweenLaunches:
    """The buffers as the first launch finds them, and as it leaves them."""

    def __init__(self, emitted: EmittedKernel, graph: Graph, arena: Arena) -> None:
        buffers = [buffer for buffer in graph.buffers.values() if not buffer.scalar and not buffer.window]
        self._all = {buffer.name: buffer_region(buffer.name) for buffer in buffers}
        self._written = {buffer.name: buffer_region(buffer.name) for buffer in buffers if buffer.written}
        self._sent = dict.fromkeys(event.slot for event in emitted.events if event.sent and not event.between_ranks)
        self._given = _copies(self._all, arena)
        self._first: dict[str, np.ndarray[Any, Any]] | None = None

    def prepare_next(self, arena: Arena) -> None:
        """The host copies the same buffers to the device, and takes the events that were sent."""
        for name, given in self._given.items():
            arena.view(self._all[name])[:] = given
        for slot in self._sent:
            arena.set_word(slot, 0)

    def difference(self, arena: Arena) -> str:
        """The buffer in which this launch left something else than the first one; empty: none."""
        found = _copies(self._written, arena)
        if self._first is None:
            self._first = found
        for name, array in self._first.items():
            if not np.array_equal(array, found[name]):
                return f"a second launch with the same buffers leaves other bytes in buffer {name!r} than the first"
        return ""


def _copies(regions: Mapping[str, str], arena: Arena) -> dict[str, np.ndarray[Any, Any]]:
    return {name: arena.view(region).copy() for name, region in regions.items()}
