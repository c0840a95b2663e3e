"""targets.cpu.runtime.ranks.rank_watch: the other ranks of an area -> which will not come; their words then say so.

The watchdog thread of each loaded host library looks at the locks of the ranks while a launch runs: see
host/rank_areas.cpp.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .....model import window_layout
from .....model.ranks import RankGroup
from ....ranks.process_identity import ProcessIdentity
from ....ranks.shared_file import SharedFile
from ..host_library import HostLibrary, loaded_hosts


class RankWatch:
    def __init__(
        self,
        file: SharedFile,
        group: RankGroup,
        group_number: int,
        processes: Sequence[ProcessIdentity],
        windows: Sequence[int],
    ) -> None:
        """`group_number`: equal for all areas of the group; `windows`: their addresses."""
        self._file, self._group, self._group_number = file, group, group_number
        self._elsewhere = [process.pid != os.getpid() for process in processes]  # ranks may be threads of one process
        self._addresses = list(windows)
        self._windows = (ctypes.c_void_p * len(windows))(*windows)
        self._watched: list[tuple[Any, int]] = []  # host library and its entry for this area
        self._begin: Callable[[int], object] | None = None  # of the last one

    def begin(self, round_number: int) -> None:
        """A round of this rank begins: the watchdogs of all host libraries that are loaded by now know the area."""
        hosts = loaded_hosts()
        if len(hosts) > len(self._watched):
            self._enter(hosts[len(self._watched) :])
        if self._begin is not None:
            self._begin(round_number)
        else:
            self._write_round(round_number)

    def _write_round(self, round_number: int) -> None:
        """Where no host library is loaded."""
        for window in self._addresses:
            word = window + window_layout.RANK_LINE * self._group.rank + window_layout.ROUND
            ctypes.c_uint32.from_address(word).value = round_number

    def _enter(self, hosts: Sequence[HostLibrary]) -> None:
        for host in hosts:
            elsewhere = (ctypes.c_uint8 * self._group.size)(*self._elsewhere)
            area = host.gil_released.sk_rank_area_create(
                self._file.descriptor,
                self._group_number,
                self._group.rank,
                self._group.size,
                elsewhere,
                self._windows,
                len(self._windows),
            )
            self._watched.append((host.gil_released, area))
            # with the GIL held: it takes nanoseconds
            self._begin = partial(host.gil_held.sk_rank_area_begin, area)

    def ended(self) -> list[int]:
        """The places of ranks whose process has ended or has closed the area."""
        if self._file.descriptor < 0:
            return []
        return [
            place for place, elsewhere in enumerate(self._elsewhere) if elsewhere and not self._file.is_locked(place)
        ]

    def close(self) -> None:
        for library, area in self._watched:
            library.sk_rank_area_destroy(area)
        self._watched, self._begin = [], None
