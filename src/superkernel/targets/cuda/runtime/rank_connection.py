"""targets.cuda.runtime.rank_connection: a kernel with collectives and a store -> its windows, and what ends a wait.

A rank says in a window in which launch it has arrived, by the number that its sync state counts. So a kernel has one
such state, on one stream, and after a failure the ranks no longer agree: they must connect again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ....errors import LaunchError, UnsupportedError, shown
from ....model.collective_digest import collective_digest
from ....model.collectives import Collective
from ....model.graph import Graph
from ....model.rank_sequence import RankSequences
from ....plan import Plan
from ...ranks.rank_orders import settle_orders
from ...ranks.store_exchange import Store
from .device import CudaDevice
from .rank_windows import RankWindows

_AGAIN = "Compile the kernel again and connect it again on all ranks, or restart them"


class WindowArray:
    """A window as an argument of a launch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._address, self._nbytes = address, nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}


class RankConnection:
    """The other ranks of a kernel. The device is current where it is made and asked."""

    def __init__(self, plan: Plan, device: CudaDevice, share: float, store: Store, timeout_s: float) -> None:
        """Waits for all ranks of every group. `share`: which part of the device a launch fills."""
        graph = plan.graph
        self._graph, self._device, self._share, self.timeout_s = graph, device, share, timeout_s
        self._where = f"super_kernel_scope {graph.name!r}: "
        self._pid = os.getpid()
        self._failure = ""
        self._stream: int | None = None
        _refuse_options(plan, self._where)
        self._groups: dict[str, RankWindows] = {}
        sequences = RankSequences(graph)
        try:
            # by name: two ranks then never wait for each other in different groups
            for name in sorted({collective.group.name for collective in graph.collectives}):
                self._groups[name] = self._windows_of(name, store, sequences)
            settle_orders(sequences, [windows.talk(store) for windows in self._groups.values()])
        except (LaunchError, UnsupportedError) as error:
            self.close(waits=False)
            raise type(error)(f"{self._where}{error}") from error
        addresses = {name: place for group in self._groups.values() for name, place in group.addresses.items()}
        self.arrays: Mapping[str, WindowArray] = {
            name: WindowArray(address, graph.buffers[name].nbytes or 0) for name, address in addresses.items()
        }

    def _windows_of(self, name: str, store: Store, sequences: RankSequences) -> RankWindows:
        collectives = [each for each in self._graph.collectives if each.group.name == name]
        windows = {each.window: self._window_bytes(each) for each in collectives}
        stated = collective_digest(self._graph, name)
        group = collectives[0].group
        return RankWindows(self._device, group, windows, stated, sequences, self._share, store, self.timeout_s)

    def _window_bytes(self, collective: Collective) -> int:
        nbytes = self._graph.buffers[collective.window].nbytes
        if nbytes is None:
            raise LaunchError(
                f"the window {shown(collective.window)} has no type; write it as out:window:uint8[bytes] where an op "
                "stores into it"
            )
        return nbytes

    def with_windows(self, buffers: Mapping[str, Any]) -> Mapping[str, Any]:
        """The buffers of a launch and the windows, which are not passed."""
        if given := sorted(self.arrays.keys() & buffers.keys()):
            raise LaunchError(
                f"{self._where}{shown(given[0])} is a window; connect_ranks has made it for all ranks: leave it out"
            )
        return {**buffers, **self.arrays}

    def begin(self, stream: int, captured: bool) -> None:
        """Before a launch; refused where the ranks could not agree on its number."""
        if self._pid != os.getpid():
            raise LaunchError(f"{self._where}launch in a forked process: the other ranks know its parent")
        if captured:
            raise UnsupportedError(
                f"{self._where}a launch that waits for other ranks cannot be captured in a CUDA graph"
            )
        if self._stream not in (None, stream):
            raise UnsupportedError(
                f"{self._where}a launch that waits for other ranks stays on the stream of the first one: all launches "
                "of a rank are counted there"
            )
        if self._failure:
            raise LaunchError(f"{self._where}an earlier launch failed: {self._failure}. {_AGAIN}")
        if trouble := self.trouble():
            raise LaunchError(f"{self._where}{trouble}")
        self._stream = stream

    def trouble(self) -> str:
        """Why a rank that this one waits for will never come; "": nothing is known of that."""
        for windows in self._groups.values():
            if reason := windows.trouble():
                return f"{reason}. {_AGAIN}"
        return ""

    def late(self, launch: int) -> str:
        """Which ranks have not arrived in a launch, and where; one line for each collective."""
        lines = []
        for each in self._graph.collectives:
            if ranks := self._groups[each.group.name].late(each.window, launch):
                names = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
                lines.append(f"  {names} not arrived at collective {each.name!r} of group {each.group}")
        return "\n".join(lines)

    def fail(self, reason: str) -> None:
        """From now on every launch of every rank fails, and quotes the reason."""
        if not self._failure and self._pid == os.getpid():
            self._failure = " ".join(reason.split())
            for windows in self._groups.values():
                windows.fail(self._failure)

    def close(self, waits: bool = True) -> None:
        if self._pid == os.getpid():
            with self._device.current():
                for windows in self._groups.values():
                    windows.close(waits)


def _refuse_options(plan: Plan, where: str) -> None:
    options: Any = plan.options
    for option, given in (("debug-replay", options.debug_replay), ("debug-check", options.debug_check)):
        if given:
            raise UnsupportedError(
                f"{where}{option}=1 runs every op alone, and a collective does not run op by op: leave the option out"
            )


def needs_ranks(graph: Graph) -> Collective | None:
    """The first collective that waits for another process."""
    return next((each for each in graph.collectives if each.group.size > 1), None)
