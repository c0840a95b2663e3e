"""targets.cuda.runtime.sync_state: what launches keep on the device: epoch, counters, progress, abort word, areas.

Counters are epochs that no launch resets, so that a replayed graph needs nothing from the host. Launches on one stream
follow each other and share a state; a captured launch owns one, since its graph may run beside everything else.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import numpy as np

from ....errors import LaunchError
from ....plan.memory import spell_bytes
from ..task_layout import LONG_WAIT, StateOffset
from .arguments import allocated, cuda_torch
from .device import CudaDevice
from .driver_functions import CuLaunchConfig
from .image import KernelImage
from .rank_connection import RankConnection

DELAYS = "SUPERKERNEL_TEST_DELAYS"  # a seed: every wait and arrival may be late, in kernels built while it is set
_U32 = 1 << 32
_QUIET_S = 1e-3  # between two looks at a state without progress


@dataclass(frozen=True)
class StateSnapshot:
    """The words of a state at one moment."""

    epoch: int  # completed launches
    failure: int  # 1 + a core that was aborted; 0: none
    progress: tuple[int, ...]  # per core: 1 + its task, LONG_WAIT; 0: not begun or finished

    @property
    def idle(self) -> bool:
        return not any(self.progress)

    @property
    def inside(self) -> list[int]:
        """Cores that run a sub-kernel, or a wait that began a moment ago."""
        return [core for core, word in enumerate(self.progress) if word and not word & LONG_WAIT]

    def task(self, core: int) -> int:
        return (self.progress[core] & ~LONG_WAIT) - 1


class LaunchState:
    """The state of the launches of a kernel on one stream, or of one captured launch."""

    def __init__(
        self,
        device: CudaDevice,
        image: KernelImage,
        stream: int,
        captured: bool,
        ranks: RankConnection | None = None,
    ) -> None:
        """The device is current. `ranks`: the other processes that its launches wait for."""
        self.ranks = ranks
        self.device, self.image, self.stream, self.captured = device, image, stream, captured
        self.launches = 0  # since the last reset; of a captured launch the graph knows
        self.resets = 0
        self.recovering = threading.Lock()  # held from an abort to the reset, which no launch may meet
        self.error: LaunchError | None = None  # of a launch that was stopped, until it is raised
        doing = f"{image.where}allocating the sync state of a launch ({spell_bytes(image.state_bytes)})"
        self.control = device.allocate_control(doing)
        self._owned: list[int] = []
        self._areas: dict[str, int] = {}
        self._tensors: list[Any] = []  # whose memory areas are
        try:
            self.address = self._allocate(image.state_bytes, doing)
            room = 8 * image.cores * image.stamp_room
            doing = f"{image.where}allocating {spell_bytes(room)} for time stamps"
            self.stamps = self._allocate(room, doing) if room else 0
            self._areas = self._allocate_areas()
            self.reset()
        except LaunchError:
            self.close()
            raise
        self.parameter, self.stream_handle = ctypes.c_uint64(self.address), ctypes.c_void_p(stream)
        self.config = CuLaunchConfig()  # filled by what launches
        self.config_reference = ctypes.byref(self.config)

    def _allocate(self, size: int, doing: str) -> int:
        self._owned.append(self.device.allocate(size, doing))
        return self._owned[-1]

    def _allocate_areas(self) -> dict[str, int]:
        """The arena of inner buffers, copies of replicated ops, scratch memory of sub-kernels."""
        wanted = {
            "arena": self.image.plan.memory.arena,
            "copies": self.image.copies_bytes,
            "scratch": self.image.scratch_bytes,
        }
        index, where, by_torch = self.device.index, self.image.where, cuda_torch() is not None
        areas: dict[str, int] = {}
        for area, size in wanted.items():
            doing = f"{where}allocating the {area} of a launch ({spell_bytes(size)})"
            if size and by_torch:  # its allocator knows which memory is free, and shares it
                self._tensors.append(allocated(index, (size,), "uint8", doing))
                areas[area] = int(self._tensors[-1].data_ptr())
            elif size:
                areas[area] = self._allocate(size, doing)
        return areas

    def area(self, name: str) -> int:
        return self._areas.get(name, 0)

    def arena_addresses(self) -> Mapping[str, int]:
        """Name of an inner buffer -> its address."""
        base = self.area("arena")
        return {name: base + offset for name, offset in self.image.plan.memory.offsets.items()}

    def reset(self) -> None:
        """As before the first launch. Nothing is running; the device is current."""
        seed = int(os.environ.get(DELAYS) or 0) % _U32
        content = bytearray(self.image.state_bytes)
        struct.pack_into("<Q", content, StateOffset.CONTROL, self.control.device_address)
        struct.pack_into("<Q", content, StateOffset.STAMPS, self.stamps)
        struct.pack_into("<I", content, StateOffset.FAILURE + 4, seed)
        self.control.write(0)
        host = (ctypes.c_ubyte * len(content)).from_buffer(content)
        doing = f"{self.image.where}clearing the sync state of a launch"
        self.device.upload(self.address, ctypes.addressof(host), len(content), doing)
        self.launches = 0
        self.resets += 1

    def snapshot(self) -> StateSnapshot:
        """A copy on a stream of the run time, which a running kernel does not hold up. The device is current."""
        words = np.empty(StateOffset.PROGRESS // 4 + self.image.cores, np.uint32)
        doing = f"{self.image.where}reading the progress of {self.image.entry}"
        self.device.download(words.ctypes.data, self.address, words.nbytes, doing)
        progress = tuple(words[StateOffset.PROGRESS // 4 :].tolist())
        return StateSnapshot(int(words[StateOffset.EPOCH // 4]), int(words[StateOffset.FAILURE // 4]), progress)

    def completed(self, snapshot: StateSnapshot) -> bool:
        """Whether all launches so far have ended. Those of a graph have if no core is in one."""
        return snapshot.idle if self.captured else snapshot.epoch == self.launches % _U32

    def abort(self, error: LaunchError | None) -> None:
        """Every wait of the launches in progress ends; `error` is raised at the next call or synchronisation."""
        self.error = error
        self.control.write(1)

    def recover(self, patience_s: float) -> bool:
        """After abort(): wait until the launches have ended, then reset. False: a sub-kernel does not return."""
        end = monotonic() + patience_s
        quiet = 0
        while quiet < 2:  # a graph may start its next launch between two looks: that one ends as well
            quiet = quiet + 1 if self.completed(self.snapshot()) else 0
            if quiet == 0 and monotonic() > end:
                return False
            if self.captured or not quiet:
                sleep(_QUIET_S)
            else:
                break
        self.reset()
        return True

    @property
    def patience_s(self) -> float:
        """How long a launch may make no progress; 0: for ever."""
        limits = [self.image.watchdog_s, self.ranks.timeout_s if self.ranks is not None else 0.0]
        return min(filter(None, limits), default=0.0)

    def read_stamps(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Of the last launch, per core. The device is current."""
        stamps = np.empty((self.image.cores, self.image.stamp_room), np.uint64)
        doing = f"{self.image.where}reading time stamps"
        self.device.download(stamps.ctypes.data, self.stamps, stamps.nbytes, doing)
        return stamps

    def close(self) -> None:
        """The device is current, and nothing is running."""
        for address in self._owned:
            self.device.free(address)
        self._owned.clear()
        self._areas.clear()
        self._tensors.clear()
        self.device.free_host(self.control.host_address)
