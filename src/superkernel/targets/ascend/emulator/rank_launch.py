"""targets.ascend.emulator.rank_launch: the super kernels of all ranks -> launches on emulated chips that share memory.

Windows and the words of events between ranks exist twice; the launches of a rank use them in turn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.model.graph import Graph
from superkernel.targets.buffers import Bound
from superkernel.targets.emulation.ranks import EmulatedRanks, Meeting, check_ranks, meetings
from superkernel.targets.protocol import LaunchInputs

from ..core_types import CoreClass
from ..kernel_description import EmittedKernel
from ..rank_events import rank_events
from .arena import Arena, Region, buffer_region, lay_out, share
from .between_launches import BetweenLaunches
from .delays import Delays
from .launch import ChipEmulator, Emulation, ctrl_c
from .library import NEXT_LAUNCH
from .modules import HostModule

_ALIGNMENT = 512  # the largest cache line; and room between regions, so that a step over an end is seen
_WORD_BYTES = 8
_IN_TURN = 2  # sets of windows and words
_Word = tuple[Meeting, int, int]  # a collective, the place of the rank that sends and of the one that waits


@dataclass(frozen=True)
class RankLaunch:
    """What one rank launches."""

    emitted: EmittedKernel
    graph: Graph
    modules: Mapping[CoreClass, HostModule]
    buffers: Mapping[str, Any]
    launch_inputs: LaunchInputs


class _SharedMemory:
    """Windows and words that all ranks see, in two sets."""

    def __init__(self, checked: EmulatedRanks, graphs: Sequence[Graph], seed: int) -> None:
        words = {
            (meeting, event.sender, event.receiver)
            for graph in graphs
            for meeting, collective in meetings(graph)
            for event in rank_events(collective)[0]
        }
        sizes: dict[Meeting | _Word, int] = dict.fromkeys(sorted(words), _WORD_BYTES)
        sizes.update(checked.windows.items())
        stride = {key: -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT for key, size in sizes.items()}
        self._room = np.zeros(_IN_TURN * sum(stride.values()) + 2 * _ALIGNMENT, np.uint8)
        place = -(-self._room.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._sizes, self._sets = sizes, list[dict[Meeting | _Word, int]]()
        for _ in range(_IN_TURN):
            self._sets.append({})
            for key in sizes:
                self._sets[-1][key] = place
                place += stride[key]
        garbage = np.random.default_rng(seed)
        for addresses in self._sets:
            for meeting, size in checked.windows.items():  # nothing is stored there before the first launch
                first = addresses[meeting] - self._room.ctypes.data
                self._room[first : first + size] = garbage.integers(0, 256, size, np.uint8)

    def regions(self, graph: Graph, number: int) -> list[Region]:
        """What launch `number` of a rank uses, under the names of its kernel."""
        addresses, found = self._sets[number % _IN_TURN], []
        for meeting, collective in meetings(graph):
            name = buffer_region(collective.window)
            found.append(Region(name, addresses[meeting], self._sizes[meeting]))
            for event in (event for events in rank_events(collective) for event in events):
                word = addresses[meeting, event.sender, event.receiver]
                found.append(Region(f"event {event.label}", word, _WORD_BYTES, True))
        return found


@dataclass
class _Rank(ChipEmulator):
    """One chip among several: it prepares its launches one by one."""

    name: str = ""
    shared: _SharedMemory | None = None
    emulation: Emulation | None = None
    _machines: list[int] = field(default_factory=list)
    _keep: list[object] = field(default_factory=list)

    def start(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> None:
        assert self.shared is not None
        self._launch_inputs = launch_inputs
        windows = {
            buffer.name: np.zeros(buffer.shape or (), buffer.dtype or "uint8")
            for buffer in self.graph.buffers.values()
            if buffer.window
        }
        if given := sorted(windows.keys() & buffers.keys()):
            raise LaunchError(
                f"{self._where}{given[0]!r} is a window; the emulator makes it for all ranks: leave it out"
            )
        passed = {**buffers, **windows}
        self._bound: Bound = self._bind(passed)
        self._arena: Arena = lay_out(self.emitted, self.graph, self._bound, passed, self.seed)
        self._between = BetweenLaunches(self.emitted, self.graph, self._arena)

    def prepare(self, ranks: int, place: int, pressed: Sequence[int]) -> int | None:
        """The machine of the next launch; None: there is none. The one before is over."""
        assert self.shared is not None
        if self._machines:
            self.emulation = self._outcome(self._machines[-1], self._arena, self._bound)
            if difference := self._between.difference(self._arena):
                raise LaunchError(f"{self._where}emulated with seed={self.seed}: {self.name}: {difference}")
            self._number += 1
            if self._number == self.launches:
                self._give_back(self._arena, self._bound)
                return None
            self._between.prepare_next(self._arena)
        share(self._arena, self.emitted, self.graph, self._bound, self.shared.regions(self.graph, self._number))
        settings = self._settings(self._arena)
        settings.followed = False  # words and flags are checked at the end of each launch
        machine: int = self._calls.sk_emu_new(settings)
        before = self._machines[-1] if self._machines else None
        self._machines.append(machine)
        self._describe(machine, self._arena)
        agents = self._agents(machine, self._arena, self._bound, self._launch_inputs)
        self._calls.sk_emu_ranks_join(ranks, machine, place, self.name.encode(), before)
        self._keep.append(self._enter(machine, agents, pressed))
        return machine

    def failed(self) -> BaseException | None:
        return self._failure

    @property
    def notes(self) -> list[str]:
        return self._notes

    def free(self) -> None:
        for machine in self._machines:
            self._calls.sk_emu_free(machine)


def emulate_ranks(
    launches_of_ranks: Sequence[RankLaunch],
    cache: Cache,
    *,
    seed: int,
    delays: Delays | None,
    races: bool,
    record: bool,
    launches: int,
) -> list[Emulation]:
    """All ranks together; each launches `launches` times, in its own time. What the last launch of each did."""
    graphs = [each.graph for each in launches_of_ranks]
    checked = check_ranks(graphs)
    shared = _SharedMemory(checked, graphs, seed)
    ranks = [
        _Rank(
            each.emitted, each.graph, each.modules, cache, _rank_seed(seed, rank), delays, (), races, record,
            launches=launches, name=f"rank {rank}", shared=shared,
        )
        for each, rank in zip(launches_of_ranks, checked.ranks, strict=True)
    ]  # fmt: skip
    for rank, each in zip(ranks, launches_of_ranks, strict=True):
        if host := [event.label for event in each.emitted.events if not event.between_ranks]:
            raise LaunchError(
                f"super_kernel_scope {each.emitted.name!r}: event {host[0]} is one of the host; ranks are emulated "
                "together only without such events"
            )
        rank.start(each.buffers, each.launch_inputs)
    _run(ranks, seed)
    return [rank.emulation for rank in ranks if rank.emulation is not None]


def _rank_seed(seed: int, rank: int) -> int:
    """Of each rank another one; with seed 0 nothing is disturbed anywhere."""
    return seed if seed == 0 else random.Random(f"{seed} of rank {rank}").randrange(1, 2**63)


def _run(ranks: Sequence[_Rank], seed: int) -> None:
    calls = ranks[0]._calls
    together: int = calls.sk_emu_ranks_new(seed, seed == 0)
    pressed: list[int] = []
    failures: list[BaseException] = []

    def next_launch(place: int) -> int | None:
        try:
            return ranks[place].prepare(together, place, pressed)
        except BaseException as failure:  # it goes to the caller: an exception cannot pass through C++
            failures.append(failure)
            return None

    try:
        for place, rank in enumerate(ranks):
            rank.prepare(together, place, pressed)
        callback = NEXT_LAUNCH(next_launch)
        with ctrl_c(pressed):
            failed = calls.sk_emu_ranks_run(together, callback)
        if pressed:
            raise KeyboardInterrupt
        for failure in (*failures, *filter(None, (rank.failed() for rank in ranks))):
            raise failure
        if failed:
            text = calls.sk_emu_ranks_error(together).decode("utf-8", "replace")
            notes = "".join(f"\n{note}" for rank in ranks for note in rank.notes)
            names = ", ".join(rank.emitted.name for rank in ranks)
            raise LaunchError(f"super_kernel_scope {names}: emulated with seed={seed}: {text}{notes}")
    finally:
        for rank in ranks:
            rank.free()
        calls.sk_emu_ranks_free(together)
