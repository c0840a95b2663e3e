"""targets.cuda.runtime.rank_windows: a group of ranks on one GPU -> windows in its memory that all of them see.

The ranks meet through a store, compare their collectives and their GPU, and open what the rank with the lowest number
has allocated. A file that all of them map has the reasons of those that failed, and locks of those that live.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from ....errors import LaunchError, UnsupportedError
from ....model.collective_digest import CollectiveDigest
from ....model.rank_sequence import RankSequences
from ....model.ranks import RankGroup
from ....model.window_layout import ALIGNMENT, ARRIVED, RANK_LINE
from ...ranks.membership import GivenUpError, introduce
from ...ranks.process_identity import SHARED_MEMORY
from ...ranks.rank_orders import RankTalk
from ...ranks.rank_records import RankRecords
from ...ranks.rank_session import meet
from ...ranks.shared_file import SharedFile
from ...ranks.store_exchange import Missing, Said, Store, StoreExchange, names_of
from .device import CudaDevice
from .rank_memory import RankMemory

_CLOSING_S, _PAUSE_S = 1.0, 0.005  # how long the owner waits for those that still have its memory open


class RankWindows:
    """The windows of one group: name -> address. The device is current where they are made, read and closed."""

    def __init__(
        self,
        device: CudaDevice,
        group: RankGroup,
        windows: Mapping[str, int],
        stated: CollectiveDigest,
        sequences: RankSequences,
        share: float,
        store: Store,
        timeout_s: float,
        folder: Path = SHARED_MEMORY,
    ) -> None:
        """`windows`: name -> bytes. `share`: which part of the device a launch fills. Waits for all ranks."""
        self.group, self._device = group, device
        self._where = f"collectives of group {group}: "
        self._sizes = dict(windows)
        self._offsets: dict[str, int] = {}
        self._nbytes = 0
        for name, nbytes in windows.items():
            self._offsets[name] = self._nbytes
            self._nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._file: SharedFile | None = None
        self._memory: RankMemory | None = None
        self._closed, self._timeout_s, self._prefix = False, timeout_s, ""
        if group.size == 1:
            self._memory = RankMemory.make(device, self._nbytes, self._where)
            return
        self._session = meet(store, group, timeout_s)
        self._processes = self._session.processes
        self._prefix = f"superkernel/{group.name}/{self._session.token}/gpu"
        exchange = StoreExchange(store, group, self._prefix, timeout_s)
        try:
            self._check_members(exchange, stated, sequences, folder)
            self._check_device(exchange, share)
            self._share(exchange, folder)
        except LaunchError as error:
            self._announce(exchange, error)
            self._release(waits=False)
            raise
        except UnsupportedError:  # every rank has found the same
            self._release(waits=False)
            raise

    @property
    def addresses(self) -> dict[str, int]:
        assert self._memory is not None
        return {name: self._memory.address + offset for name, offset in self._offsets.items()}

    # --- making them

    @property
    def _owner(self) -> int:
        """The place of the rank that allocates: the lowest global number."""
        return self.group.ranks.index(min(self.group.ranks))

    @property
    def _owns(self) -> bool:
        return self.group.rank == self._owner

    def _announce(self, exchange: StoreExchange, error: LaunchError) -> None:
        """Tells the other ranks wherever they wait for this rank."""
        subjects = ("member", "gpu", "opened", "memory") if self._owns else ("member", "gpu", "opened")
        with suppress(LaunchError):  # the store may be what has failed
            for subject in subjects:
                exchange.add_error(subject, error)

    def _check_members(
        self, exchange: StoreExchange, stated: CollectiveDigest, sequences: RankSequences, folder: Path
    ) -> None:
        said = stated.digest, stated.listing
        try:
            introduce(exchange, self.group, self._sizes, *said, folder, self._ended_meanwhile, sequences)
        except GivenUpError as reason:
            raise LaunchError(
                f"{self._where}another rank has given up waiting for this one; call connect_ranks again on all ranks"
            ) from reason

    def _check_device(self, exchange: StoreExchange, share: float) -> None:
        properties, mps = self._device.properties, self._device.uses_mps()
        here = {"uuid": properties.uuid, "name": properties.name, "process": os.getpid(), "mps": mps, "share": share}
        exchange.say("gpu", here)
        said = self._heard(exchange, "gpu")
        first = said[0]
        for place, other in enumerate(said):
            if other["uuid"] != first["uuid"]:
                raise UnsupportedError(
                    f"{self._where}{names_of(self.group, [0])} is on {first['name']} ({first['uuid']}) and "
                    f"{names_of(self.group, [place])} on {other['name']} ({other['uuid']}); launches on several GPUs "
                    "are not tested, and are refused: run all ranks on one GPU (CUDA_VISIBLE_DEVICES), or use "
                    "sk.emulate_ranks"
                )
        if len({each["process"] for each in said}) < len(said):
            raise UnsupportedError(
                f"{self._where}two ranks are threads of one process; each rank on a GPU needs a process of its own"
            )
        filled = sum(each["share"] for each in said)
        if any(each["mps"] for each in said) and filled > 1:
            raise UnsupportedError(
                f"{self._where}under MPS all ranks are on the GPU at the same time, and their launches fill "
                f"{filled:.1f} times the GPU: they would wait for each other for ever. Compile with fewer cores "
                f"(cores=...), so that each fills at most a part of {len(said)}, or run without MPS, in time slices"
            )

    def _share(self, exchange: StoreExchange, folder: Path) -> None:
        """Returns when all ranks have opened the memory."""
        nbytes = RankRecords.nbytes(self.group.size)
        if self._owns:
            self._file = SharedFile.create(nbytes, folder)
            self._memory = RankMemory.make(self._device, self._nbytes, self._where)
            said = {"file": self._file.path.name, "handle": self._memory.handle(self._where)}
            self._map(nbytes)
            exchange.say("memory", said)
        else:
            said = dict(exchange.hear("memory", self._owner, self._ended_meanwhile))
            self._raise_said(self._owner, said)
            self._file = SharedFile.open(said["file"], nbytes, folder)
            self._map(nbytes)
            self._memory = RankMemory.open(self._device, said["handle"], self._where)
        exchange.say("opened", {})
        self._heard(exchange, "opened")
        self._file.release_name()

    def _map(self, nbytes: int) -> None:
        assert self._file is not None
        self._file.lock(self.group.rank)
        self._file.allocate(0, nbytes)
        self._records = RankRecords(np.frombuffer(mmap.mmap(self._file.descriptor, nbytes), np.uint8))

    def _heard(self, exchange: StoreExchange, subject: str) -> list[Said]:
        """What all ranks say; the error of one that goes no further."""
        said = exchange.hear_all(subject, self._ended_meanwhile)
        for place, each in enumerate(said):
            self._raise_said(place, each)
        return said

    def talk(self, store: Store) -> RankTalk:
        """With the ranks of the group, who have opened the memory."""
        return RankTalk(
            store,
            self.group,
            self._prefix,
            self._timeout_s,
            lambda missing: self._ended_meanwhile(missing) or self.trouble(),
        )

    def _raise_said(self, place: int, said: Said) -> None:
        if "error" in said:
            raise LaunchError(f"{self._where}{names_of(self.group, [place])}: {said['error']}")

    def _ended_meanwhile(self, missing: Missing) -> str:
        return self._session.ended(self.group, missing)

    # --- while launches run

    def trouble(self) -> str:
        """Why this rank waits in vain, in words; "": nothing is known of that."""
        if self._file is None or self._file.descriptor < 0:
            return ""
        if failed := self._records.failed(besides=self.group.rank):
            place, reason = failed
            return f"{self._where}{names_of(self.group, [place])} has failed: {reason}"
        ended = [
            place for place in range(self.group.size) if place != self.group.rank and not self._file.is_locked(place)
        ]
        if not ended:
            return ""
        names = ", ".join(f"{names_of(self.group, [place])} (pid {self._processes[place].pid})" for place in ended)
        return f"{self._where}{names} has ended, or has closed its kernel"

    def late(self, window: str, launch: int) -> list[int]:
        """The global ranks that have not arrived at a collective in a launch."""
        assert self._memory is not None
        words = np.empty((self.group.size, RANK_LINE // 4), np.uint32)
        doing = f"{self._where}reading which ranks have arrived"
        address = self._memory.address + self._offsets[window]
        self._device.download(words.ctypes.data, address, words.nbytes, doing)
        behind = words[:, ARRIVED // 4] - np.uint32(launch % 2**32)  # of 32 bits, as the kernel compares
        return [self.group.ranks[place] for place in np.flatnonzero(behind >> np.uint32(31))]

    def fail(self, reason: str) -> None:
        """The other ranks are told; once."""
        if self._file is not None and self._file.descriptor >= 0:
            self._records.write(self.group.rank, reason)

    # --- the end

    def close(self, waits: bool = True) -> None:
        """Other ranks that still wait for this rank then fail."""
        if not self._closed:
            self._closed = True
            self._release(waits)

    def _release(self, waits: bool) -> None:
        """The memory of an owner stays until its process ends where another process may still have it open."""
        file, memory = self._file, self._memory
        patience_s = _CLOSING_S if waits else 0.0
        if memory is not None and (memory.opened or file is None or self._left_alone(file, patience_s)):
            memory.close()
        self._memory = None
        if file is not None:
            file.release_name()
            file.close()

    def _left_alone(self, file: SharedFile, patience_s: float) -> bool:
        """Whether the other ranks have closed the memory of this one: they have released their locks."""
        end = monotonic() + patience_s
        while any(file.is_locked(place) for place in range(self.group.size) if place != self.group.rank):
            if monotonic() > end:
                return False
            sleep(_PAUSE_S)
        return True
