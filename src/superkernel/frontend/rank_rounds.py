"""frontend.rank_rounds: the collectives of a segment -> shared memory, and its rounds.

A round is one execution of the segment, fused or op by op. Every group of ranks has an area of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

from ..errors import LaunchError
from ..model.collective_digest import collective_digest, collectives_stated
from ..model.graph import Graph
from ..model.rank_sequence import RankSequences
from ..model.window_layout import WindowLayout
from ..targets.collectives import CollectiveSupport, RankArea
from .collective_match import FusedCollective
from .machine_groups import agree
from .process_groups import ProcessGroupRanks, after_destruction, meet_ranks

_all_rounds: weakref.WeakSet[RankRounds] = weakref.WeakSet()


class RankRounds:
    """The shared memory of a segment, and its launches in rounds."""

    def __init__(self, graph: Graph, collectives: Sequence[FusedCollective], support: CollectiveSupport) -> None:
        self.graph, self._support = graph, support
        self._groups: dict[str, ProcessGroupRanks] = {}  # by name, in the order of their first collectives
        self._windows: dict[str, dict[str, int]] = {}  # by group: bytes per rank, by window
        for collective in collectives:
            if collective.ops.windows:
                name = collective.group.name
                self._groups[name] = collective.process_group
                self._windows.setdefault(name, {}).update(collective.ops.windows)
        self._areas: dict[str, RankArea] = {}
        _all_rounds.add(self)
        _follow_process_groups()

    @property
    def window_bytes(self) -> Mapping[str, int]:
        """The size of each window."""
        return {
            window: WindowLayout(self._groups[name].group.size, slot_bytes).nbytes
            for name, windows in self._windows.items()
            for window, slot_bytes in windows.items()
        }

    @property
    def group_names(self) -> Collection[str]:
        return self._groups

    def make_area(self, name: str, sequences: RankSequences) -> None:
        """The memory of one group, unless it is there; waits for all of its ranks."""
        if name not in self._areas:
            self._areas[name] = self._make_area(self._groups[name], sequences)

    def talk(self, name: str) -> Any:
        """With the ranks of a group, for `settle_orders`."""
        return self._areas[name].talk(self._groups[name].store)

    def addresses(self) -> Mapping[str, int]:
        """Where each window lies, when the areas of all groups are there."""
        return {window: self._areas[name].address(window) for name in self._areas for window in self._windows[name]}

    def _make_area(self, found: ProcessGroupRanks, sequences: RankSequences) -> RankArea:
        stated = collective_digest(self.graph, found.group.name)
        windows = self._windows[found.group.name]
        if not found.is_alive:
            raise LaunchError(
                f"super_kernel_scope {self.graph.name!r}: the process group {found.group} was destroyed before the "
                "first call; create it again and compile the model again (torch.compiler.reset())"
            )
        if found.whole is not None:
            # torch runs the exchange between machines behind this: all of them must expect it
            agree(found.whole, self._support, collectives_stated(self.graph, found.group))
        session = meet_ranks(found, self._support)
        return self._support.area(
            found.store,
            found.group,
            session,
            windows,
            stated,
            found.timeout_s,
            lambda: found.is_alive,
            sequences,
        )

    def close(self) -> None:
        """Gives the memory back. Other ranks that still wait for this rank then fail."""
        for area in self._areas.values():
            area.close()

    def close_destroyed(self) -> None:
        """Gives the memory of process groups back that no longer exist: ranks that wait for this one need not go on."""
        for name, area in list(self._areas.items()):
            if not self._groups[name].is_alive:
                area.close()

    def launching(self, launch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """A launch as a round of every area."""

        if len(self._groups) == 1:
            (name,) = self._groups

            def launch_round_of_one(values: Any, sizes: Any) -> None:
                with self._areas[name].round():
                    launch(values, sizes)

            return launch_round_of_one

        def launch_round(values: Any, sizes: Any) -> None:
            with ExitStack() as rounds:
                for area in self._areas.values():
                    rounds.enter_context(area.round())
                launch(values, sizes)

        return launch_round


@cache  # once
def _follow_process_groups() -> None:
    after_destruction(_close_destroyed)


def _close_destroyed() -> None:
    for rounds in list(_all_rounds):
        rounds.close_destroyed()
