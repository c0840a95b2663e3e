"""observe.machine_load: the machine, before and after a run -> how busy other programs kept it meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .profile import MachineLoad

_PROC = Path("/proc")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, interrupts, soft interrupts, time that the hypervisor took
_SHORTEST_S = 0.1  # below it, the counters of /proc/stat (10 ms) are too coarse: runnable tasks are counted instead
_LACKING = 0.1  # of the cores of a run: less than this share of them is noise


@dataclass(frozen=True)
class MachineReading:
    """Seconds since some time in the past."""

    at: float
    busy: float  # of all programs, on the processors that this process may use
    ours: float  # of this process and its descendants, such as compilers
    runnable: int  # tasks that run or could run now


class LoadMeter:
    """Created when a run begins, read when it ends."""

    def __init__(self) -> None:
        self._begin = _read()

    def read(self) -> MachineLoad | None:
        """None where the system does not tell."""
        end = _read()
        return None if self._begin is None or end is None else load_between(self._begin, end)


def load_between(begin: MachineReading, end: MachineReading) -> MachineLoad:
    seconds = end.at - begin.at
    if seconds >= _SHORTEST_S:
        others = (end.busy - begin.busy - (end.ours - begin.ours)) / seconds
    else:
        others = min(begin.runnable, end.runnable) - 1.0  # without the task that reads
    processors = len(_processors())
    return MachineLoad(seconds, processors, round(min(max(others, 0.0), float(processors)), 3))


def load_warning(load: MachineLoad | None, cores: int) -> str:
    """What a reader must know of a run on `cores` cores before comparing its times; empty: nothing."""
    if load is None or load.others + cores - load.processors <= _LACKING * max(cores, 1):
        return ""
    return (
        f"other programs kept {load.others:.1f} of {load.processors} processors busy while it ran: its times are too "
        "long, by an unknown amount; run it again on an idle machine"
    )


def _read() -> MachineReading | None:
    with suppress(OSError, ValueError, IndexError):
        allowed = {f"cpu{processor}" for processor in _processors()}
        ticks, runnable = 0, 1
        for line in (_PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name in allowed:
                ticks += sum(int(fields[place]) for place in _BUSY)
            elif name == "procs_running":
                runnable = int(fields[0])
        second = os.sysconf("SC_CLK_TCK")
        return MachineReading(time.monotonic(), ticks / second, _process_ticks(os.getpid()) / second, runnable)
    return None


def _process_ticks(process: int) -> int:
    """What a process, its ended children and its living descendants have used; nothing if it has just ended."""
    folder, ticks = _PROC / str(process), 0
    with suppress(OSError, ValueError, IndexError):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()  # the name before may hold blanks
        ticks = sum(map(int, fields[11:15]))
        for task in (folder / "task").iterdir():
            ticks += sum(_process_ticks(int(child)) for child in (task / "children").read_text().split())
    return ticks


def _processors() -> set[int]:
    return os.sched_getaffinity(0)
