"""frontend.rank_rounds: the collectives of a segment -> their shared memory, made before the first call, and its rounds.

A round is one execution of the segment, fused or op by op. Every group of ranks has an area of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import LaunchError, SuperKernelError
from ..model.collective_digest import collective_digest
from ..model.graph import Graph
from ..model.window_layout import WindowLayout
from ..targets.collectives import CollectiveSupport, RankArea
from .collective_match import FusedCollective
from .process_groups import ProcessGroupRanks


class RankRounds:
    """The shared memory of a segment, and its launches in rounds."""

    def __init__(
        self, graph: Graph, collectives: Sequence[FusedCollective], support: CollectiveSupport
    ) -> None:
        self._graph, self._support = graph, support
        self._groups: dict[str, ProcessGroupRanks] = {}  # by name, in the order of their first collectives
        self._windows: dict[str, dict[str, int]] = {}  # by group: bytes per rank, by window
        for collective in collectives:
            if collective.ops.windows:
                name = collective.group.name
                self._groups[name] = collective.process_group
                self._windows.setdefault(name, {}).update(collective.ops.windows)
        self._areas: dict[str, RankArea] = {}
        self._failed = ""
        self._lock = threading.Lock()

    @property
    def window_bytes(self) -> Mapping[str, int]:
        """The size of each window."""
        return {
            window: WindowLayout(self._groups[name].group.size, slot_bytes).nbytes
            for name, windows in self._windows.items()
            for window, slot_bytes in windows.items()
        }

    def addresses(self) -> Mapping[str, int]:
        """Where each window lies. The first call waits for all ranks of every group."""
        with self._lock:
            for name, found in self._groups.items():
                if name not in self._areas:
                    self._areas[name] = self._make_area(found)
        return {window: self._areas[name].address(window) for name in self._areas for window in self._windows[name]}

    def _make_area(self, found: ProcessGroupRanks) -> RankArea:
        self._check_alive()
        stated = collective_digest(self._graph, found.group.name)
        windows = self._windows[found.group.name]
        return self._support.area(
            found.store, found.group, windows, stated.digest, stated.listing, found.timeout_s
        )

    def _check_alive(self) -> None:
        for found in self._groups.values():
            if not found.is_alive:
                raise LaunchError(
                    f"super_kernel_scope {self._graph.name!r}: the process group {found.group} has been destroyed since "
                    "the model was compiled; create the group again, then compile again (torch._dynamo.reset())"
                )

    def launching(self, launch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """A launch as a round: where it fails, the other ranks are told."""

        def launch_round(values: Any, sizes: Any) -> None:
            self._check_alive()
            areas = self._areas.values()
            for area in areas:
                area.begin_round()
            try:
                launch(values, sizes)
            except SuperKernelError as failure:
                for area in areas:
                    area.fail(str(failure))
                raise

        return launch_round
