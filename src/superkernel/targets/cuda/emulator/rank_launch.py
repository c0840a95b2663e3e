"""targets.cuda.emulator.rank_launch: the super kernels of all ranks -> launches on emulated GPUs that share windows.

One warp of one GPU runs at a time; the seed decides which. What orders warps of one GPU orders those of several, if it
is done at system scope: races are found across GPUs as inside one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from superkernel.errors import LaunchError, UnsupportedError
from superkernel.model.graph import Graph
from superkernel.model.plain_values import whole_number
from superkernel.targets.emulation.ranks import EmulatedRanks, Meeting, check_ranks, meetings
from superkernel.targets.protocol import RankLaunch

from .decode import SHARED_BUFFERS
from .emulated_memory import MemoryRange
from .execution import BLOCKED, ENDED, FAILED, GpuLaunch, describe, new_machine, quoted, task_records
from .launch import MOST_LAUNCHES, GpuEmulation, SuperKernelEmulator
from .schedule import WarpSchedule

_ALIGNMENT, _ROOM = 4096, 4096  # of windows, and bytes between two of them
_LONGEST = 15  # a rank makes up to 2 ** _LONGEST steps before another may go on


@dataclass
class _Device:
    """The GPU of one rank: its launches, one after the other."""

    emulator: SuperKernelEmulator
    place: int
    name: str
    machines: list[int] = field(default_factory=list)
    blocked_at: int | None = None  # how far all devices were when it could not go on
    over: bool = False

    def begin(self, devices: int) -> None:
        """The next launch."""
        emulator, number = self.emulator, len(self.machines)
        calls = emulator.library.calls
        self.launch: GpuLaunch = emulator.prepare(number)
        machine = new_machine(calls, emulator.program, self.launch)
        before = self.machines[-1] if self.machines else None
        self.machines.append(machine)
        calls.sk_ptx_devices_join(devices, machine, self.place, self.name.encode(), before)
        describe(calls, machine, emulator.program, emulator.memory, self.launch)

    def run(self, steps: int) -> int:
        state: int = self.emulator.library.calls.sk_ptx_run(self.machines[-1], steps)
        return state

    def end(self, devices: int) -> None:
        """A launch is over: it is checked, and the next one begins."""
        calls = self.emulator.library.calls
        self.emulator.finish(len(self.machines) - 1, task_records(calls, self.machines[-1]))
        self.over = len(self.machines) == self.emulator.launches
        if not self.over:
            self.begin(devices)

    def error(self) -> LaunchError:
        text = self.emulator.library.calls.sk_ptx_error(self.machines[-1]).decode("utf-8", "replace")
        return LaunchError(f"{self.launch.where}{self.name}: {text}{quoted(self.emulator.program, text)}")

    def standing(self) -> str:
        """What its warps do or wait for."""
        text: bytes = self.emulator.library.calls.sk_ptx_standing(self.machines[-1], self.name.encode())
        return text.decode("utf-8", "replace")


def emulate_ranks(
    ranks: Sequence[RankLaunch],
    *,
    seed: int = 0,
    launches: int = 1,
    races: bool = True,
    schedule: WarpSchedule | None = None,
    record: bool = True,
) -> list[GpuEmulation]:
    """All ranks together; each launches `launches` times, in its own time. See launch.emulate."""
    graphs: list[Graph] = [each.executable.plan.graph for each in ranks]
    names = ", ".join(graph.name for graph in graphs)
    if not 0 <= seed < 2**64:
        raise LaunchError(f"super_kernel_scope {names}: seed is {seed}; a whole number from 0 is needed")
    if (count := whole_number(launches)) is None or not 1 <= count <= MOST_LAUNCHES:
        raise LaunchError(
            f"super_kernel_scope {names}: launches is {launches!r}; a whole number from 1 to {MOST_LAUNCHES} is needed"
        )
    checked = check_ranks(graphs)
    windows = _windows(checked)
    devices = []
    for place, (each, rank) in enumerate(zip(ranks, checked.ranks, strict=True)):
        emulator = SuperKernelEmulator(each.executable, _rank_seed(seed, rank), schedule, races, count)
        _start(emulator, each, windows)
        devices.append(_Device(emulator, place, f"rank {rank}"))
    _run(devices, seed, names)
    found = [device.emulator.emulation() for device in devices]
    return found if record else [replace(emulation, spans=()) for emulation in found]


def _rank_seed(seed: int, rank: int) -> int:
    """Of each rank another one; with seed 0 nothing is disturbed anywhere."""
    return seed if seed == 0 else random.Random(f"{seed} of rank {rank}").randrange(1, 2**63)


def _windows(checked: EmulatedRanks) -> Mapping[Meeting, MemoryRange]:
    """Memory that all devices see under the same addresses. A window is made of zeros: no rank has arrived there."""
    found, address = {}, SHARED_BUFFERS
    for meeting, nbytes in checked.windows.items():
        found[meeting] = MemoryRange("", address, np.zeros(nbytes, np.uint8), shared=True)
        address += -(-nbytes // _ALIGNMENT) * _ALIGNMENT + _ROOM
    return found


def _start(emulator: SuperKernelEmulator, launch: RankLaunch, windows: Mapping[Meeting, MemoryRange]) -> None:
    graph: Graph = launch.executable.plan.graph
    if graph.events:
        raise LaunchError(
            f"super_kernel_scope {graph.name!r}: event {graph.events[0].label} is one of the host; ranks are emulated "
            "together only without such events"
        )
    if launch.executable.plan.options.debug_check:
        raise UnsupportedError(
            f"super_kernel_scope {graph.name!r}: debug-check=1 runs every op alone, and a collective does not run op "
            "by op: leave the option out"
        )
    shared = {each.window: windows[meeting] for meeting, each in meetings(graph)}
    if given := sorted(shared.keys() & launch.buffers.keys()):
        raise LaunchError(
            f"super_kernel_scope {graph.name!r}: {given[0]!r} is a window; the emulator makes it for all ranks: leave "
            "it out"
        )
    buffers: dict[str, Any] = dict(launch.buffers)
    for name in shared:
        buffer = graph.buffers[name]
        buffers[name] = np.zeros(buffer.shape or (), buffer.dtype or "uint8")
    named = {name: replace(place, name=f"buffer {name!r}") for name, place in shared.items()}
    emulator.start(buffers, launch.launch_inputs, named)


def _run(devices: Sequence[_Device], seed: int, names: str) -> None:
    calls = devices[0].emulator.library.calls
    together: int = calls.sk_ptx_devices_new()
    choice = random.Random(f"ranks {seed}")
    try:
        for device in devices:
            device.begin(together)
        chosen = devices[-1]
        while any(not device.over for device in devices):
            progress = calls.sk_ptx_progress(devices[0].machines[0])
            able = [device for device in devices if not device.over and device.blocked_at != progress]
            if not able:
                waiting = "\n".join(device.standing() for device in devices if not device.over)
                raise LaunchError(
                    f"super_kernel_scope {names}: emulated with seed={seed}: deadlock: no warp of any rank can go on\n"
                    f"{waiting}"
                )
            if seed:
                chosen = choice.choice(able)
            else:  # in turn
                chosen = next((device for device in able if device.place > chosen.place), able[0])
            _go_on(chosen, 1 << choice.randrange(_LONGEST + 1) if seed else 256, together)
    finally:
        for device in devices:
            for machine in device.machines:
                calls.sk_ptx_free(machine)
        calls.sk_ptx_devices_free(together)


def _go_on(device: _Device, steps: int, together: int) -> None:
    state = device.run(steps)
    if state == FAILED:
        raise device.error()
    if state == ENDED:
        device.end(together)
    elif state == BLOCKED:
        device.blocked_at = device.emulator.library.calls.sk_ptx_progress(device.machines[-1])
