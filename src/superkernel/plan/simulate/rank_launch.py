"""plan.simulate.rank_launch: one round of one rank: a launch whose ops share windows with the ops of other ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...model.window_layout import has_arrived, next_round
from ..classes import CoreClasses
from ..plan import Plan
from ..steps import AwaitRanks, NotifyRanks
from .launch import Launch
from .memory import Piece, Rows
from .windows import RankMemory, SeenWindow, WindowKey, Windows


@dataclass
class SimulatedRank:
    """One rank: its plan, its memory, and its launches, one for each round."""

    number: int  # global
    plan: Plan
    classes: CoreClasses
    memory: RankMemory
    own: Rows
    words: dict[str, int]
    first_round: int  # the number of the round before its first
    launches: list[RankLaunch] = field(default_factory=list)
    ended: int = 0  # rounds

    def add_launch(self, rng: random.Random, windows: Windows, ranks: Mapping[int, SimulatedRank]) -> None:
        """The launch of the next round."""
        before = self.launches[-1].round_number if self.launches else self.first_round
        this = next_round(before)
        rows = self.memory.rows_of_round(self.own, windows, this)
        launch = RankLaunch(
            self.plan,
            self.classes,
            rng,
            self.memory,
            rows,
            self.words,
            len(self.launches),
            rank=self,
            ranks=ranks,
            windows=windows,
            round_number=this,
        )
        launch.salt = hash((self.number, launch.number))
        self.launches.append(launch)

    def has_read(self, window: SeenWindow, number: int) -> bool:
        """Whether all its reads of a window are over in the round with an index."""
        if number != self.ended:
            return number < self.ended
        stored = self.launches[number].stored
        receivers = {op for collective in window.collectives for op in collective.receivers}
        return all(stored.get(op, set()).issuperset(self.plan.placements[op]) for op in receivers)

    def awaited(self, op: int) -> set[tuple[WindowKey, int]]:
        """The slots that must have been stored before an op runs, by their places."""
        syncs = (sync for sync in self.plan.graph.nodes[op].ranks if not sync.sends)
        return {(self.memory.windows[sync.window].key, place) for sync in syncs for place in range(sync.group.size)}

    def sent(self, op: int) -> set[tuple[WindowKey, int]]:
        """The slots that an op stores into."""
        syncs = (sync for sync in self.plan.graph.nodes[op].ranks if sync.sends)
        return {(self.memory.windows[sync.window].key, sync.group.rank) for sync in syncs}


@dataclass(kw_only=True)
class RankLaunch(Launch):
    """One round; `rows` are the buffers of the rank and the slots of the round."""

    rank: SimulatedRank
    ranks: Mapping[int, SimulatedRank]  # all, by their global numbers
    windows: Windows
    round_number: int
    over: int = 0  # actors that have done their moves

    def fault(self, which: str, message: str) -> None:
        super().fault(which, f"rank {self.rank.number}, round {self.number}: {message}")

    def notify_ranks(self, step: NotifyRanks) -> None:
        super().notify_ranks(step)
        window = self._window(step)
        if window is None:
            return
        arrived = self.windows.arrived[window.key]
        if step.group.rank >= len(arrived):
            self.fault("P23", f"{self.plan.describe(step)}: the window has {len(arrived)} lines")
        else:
            arrived[step.group.rank] = self.round_number

    def ranks_arrived(self, step: AwaitRanks) -> Callable[[], bool]:
        window = self._window(step)
        if window is None:
            return lambda: True
        arrived, places = self.windows.arrived[window.key], range(step.group.size)
        if len(places) > len(arrived):
            self.fault("P23", f"{self.plan.describe(step)}: the window has {len(arrived)} lines")
            places = range(len(arrived))
        return lambda: all(has_arrived(arrived[place], self.round_number) for place in places)

    def _window(self, step: NotifyRanks | AwaitRanks) -> SeenWindow | None:
        for window in self.rank.memory.windows.values():
            if any(collective.name == step.collective for collective in window.collectives):
                return window
        self.fault("P23", f"{self.plan.describe(step)}: the graph has no collective {step.collective!r}")
        return None

    def read(self, piece: Piece, core: int, op: int) -> int:
        """Of a slot only after the arrival of its rank."""
        seen = self.rank.memory.slots.get(piece.buffer)
        if seen is not None and seen[0].group.size > 1:
            window, place = seen
            if not has_arrived(self.windows.arrived[window.key][place], self.round_number):
                whose = f"the slot of rank {window.group.ranks[place]} in the window {window.name!r}"
                self.fault("P23", f"{self._name(op)} reads {whose} before its signal")
        return super().read(piece, core, op)

    def write(self, piece: Piece, core: int, value: int, op: int) -> None:
        """To a slot only when no rank reads it any more from an earlier round."""
        seen = self.rank.memory.slots.get(piece.buffer)
        if seen is not None:
            self._check_readers(*seen, op)
        super().write(piece, core, value, op)

    def _check_readers(self, window: SeenWindow, place: int, op: int) -> None:
        offset = window.offset(place, self.round_number)
        for number in window.group.ranks:
            other = self.ranks[number]
            theirs = next(each for each in other.memory.windows.values() if each.key == window.key)
            for launch in other.launches[: self.number]:
                if theirs.offset(place, launch.round_number) == offset and not other.has_read(theirs, launch.number):
                    what = f"its slot in the window {window.name!r}"
                    where = f"rank {number} reads it in round {launch.number}"
                    self.fault("P23", f"{self._name(op)} overwrites {what} before {where}")
