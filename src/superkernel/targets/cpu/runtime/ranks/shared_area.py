"""targets.cpu.runtime.ranks.shared_area: a group of ranks on one machine, and windows -> memory that all of them map.

All ranks of the group make the area together. The ranks compare the digests of their collectives first: what differs is
refused on every rank, before anything runs. The name of the file is gone as soon as all have mapped it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .....errors import LaunchError
from .....model import window_layout
from .....model.rank_sequence import RankSequences
from .....model.ranks import RankGroup
from .....model.window_layout import FAILED, PAGE, RANK_LINE, THREAD, WindowLayout, has_arrived, next_round
from ....ranks.membership import GivenUpError, introduce
from ....ranks.process_identity import SHARED_MEMORY, ProcessIdentity
from ....ranks.rank_orders import RankTalk
from ....ranks.rank_records import RankRecords
from ....ranks.rank_session import RankSession
from ....ranks.shared_file import SharedFile
from ....ranks.store_exchange import Missing, Said, Store, StoreExchange, names_of
from .rank_watch import RankWatch

DEFAULT_TIMEOUT_S = 1800.0  # that of torch.distributed's process groups
_areas_made: dict[tuple[str, str, int], int] = {}  # by session, group and rank; the ranks of a group count alike
_live_areas: weakref.WeakSet[SharedArea] = weakref.WeakSet()
_ONLY_SESSION = RankSession("")  # of a group that is the only one of its name in its store
_count_lock = threading.Lock()


@dataclass(frozen=True)
class AreaLayout:
    """Where the records of the ranks and the windows lie in the file."""

    ranks: int
    slot_bytes: tuple[int, ...]  # of each window, the largest of all ranks

    @property
    def windows(self) -> tuple[WindowLayout, ...]:
        return tuple(WindowLayout(self.ranks, nbytes) for nbytes in self.slot_bytes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each window begins."""
        offsets = [_pages(RankRecords.nbytes(self.ranks))]
        for window in self.windows:
            offsets.append(offsets[-1] + _pages(window.nbytes))
        return tuple(offsets[:-1])

    @property
    def nbytes(self) -> int:
        return _pages(RankRecords.nbytes(self.ranks)) + sum(_pages(window.nbytes) for window in self.windows)


class SharedArea:
    """The windows of one segment, in memory that the ranks of a group share.

    `windows`: name -> bytes of this rank's slot. Ranks may use other names and, where a collective allows it, other
    sizes, but the same number and order. `group_exists` is asked before every round.
    """

    def __init__(
        self,
        store: Store,
        group: RankGroup,
        windows: Mapping[str, int],
        digest: str,
        listing: Sequence[str] = (),
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        session: RankSession = _ONLY_SESSION,
        group_exists: Callable[[], bool] = lambda: True,
        sequences: RankSequences | None = None,
        folder: Path = SHARED_MEMORY,
    ) -> None:
        self.group, self.timeout_s, self._group_exists = group, timeout_s, group_exists
        self._pid, self._round, self._thread = os.getpid(), 0, 0
        self._closed = self._failure = ""
        self.processes: list[ProcessIdentity] = []
        self._guard = threading.Lock()
        self._session, self._sequences = session, sequences
        while True:
            self._prefix = _next_prefix(session, group)
            exchange = StoreExchange(store, group, self._prefix, timeout_s)
            try:
                self._make(exchange, windows, digest, listing, folder)
                break
            except GivenUpError:
                continue  # a rank that waited for this one has given up, and counts on from here
            except LaunchError as error:
                self._announce(exchange, error)
                raise
        addresses = [int(lines.ctypes.data) for lines in self._lines]
        self._watch = RankWatch(self._file, group, self._group_number, self.processes, addresses)
        # Before the memory goes: a watchdog that still looked at it would write into what lies there next.
        self._release = weakref.finalize(self, _release, self._watch, self._file, self._pid)
        self._release.atexit = False
        _live_areas.add(self)

    def _make(
        self,
        exchange: StoreExchange,
        windows: Mapping[str, int],
        digest: str,
        listing: Sequence[str],
        folder: Path,
    ) -> None:
        members = introduce(exchange, self.group, windows, digest, listing, folder, self._ended, self._sequences)
        self.processes = [ProcessIdentity(**member["process"]) for member in members]
        self._layout = AreaLayout(
            self.group.size, tuple(map(max, zip(*(member["slots"] for member in members), strict=True)))
        )
        self._file = self._open(exchange, folder)
        mapped = False
        try:
            self._share(exchange, tuple(windows))
            mapped = True
        finally:
            self._file.release_name()
            if not mapped:
                self._file.close()

    # --- the rounds of this rank

    @contextmanager
    def round(self) -> Iterator[None]:
        """One execution of the segment. If it fails here, it fails on every rank."""
        self.begin_round()
        try:
            yield
        except LaunchError as error:
            is_explained = isinstance(error.__cause__, LaunchError)  # by the area of another group
            self.fail(" ".join(str(error.__cause__ if is_explained else error).split()))
            if is_explained or not (explanation := self._explanation()):
                raise
            raise LaunchError(f"{error}\n{explanation}") from error
        except BaseException as error:
            self.fail(f"{type(error).__name__} in the middle of a launch")
            raise
        finally:
            self.end_round()

    def begin_round(self) -> int:
        """The number of the round; refused where the ranks could no longer agree."""
        thread = threading.get_ident()
        with self._guard:
            if self._thread not in (0, thread):
                raise LaunchError(
                    f"{self._where}another thread is in the middle of a round: all ranks must launch the same "
                    "collectives in one order. Launch from one thread, or use a process group for each thread"
                )
            self._refuse_unusable()
            self._thread = thread
        self._round = next_round(self._round)
        self._watch.begin(self._round)
        return self._round

    def end_round(self) -> None:
        with self._guard:
            self._thread = 0

    def _refuse_unusable(self) -> None:
        if self._pid != os.getpid():
            raise LaunchError(
                f"{self._where}launch in a forked process: the ranks know its parent. Start the process with the "
                "'spawn' method and create the process group there"
            )
        if not self._group_exists():
            raise LaunchError(
                f"{self._where}the process group was destroyed; create it again and compile the model again "
                "(torch.compiler.reset())"
            )
        if self._closed:
            raise LaunchError(f"{self._where}{self._closed}")
        if self._failure:
            raise LaunchError(f"{self._where}an earlier launch failed: {self._failure}. {_AGAIN}")
        if failed := self._records.failed(besides=self.group.rank):
            place, reason = failed
            raise LaunchError(f"{self._where}{names_of(self.group, [place])} has failed: {reason}. {_AGAIN}")

    # --- before the first round

    def talk(self, store: Store) -> RankTalk:
        """With the ranks of the group, who have this memory. The area keeps no store: its host may end sooner."""
        return RankTalk(store, self.group, self._prefix, self.timeout_s, self._gone)

    def _gone(self, missing: Missing) -> str:
        failed = self._records.failed(besides=self.group.rank)
        if failed is not None and failed[0] in missing:
            return f"{self._where}{names_of(self.group, [failed[0]])} has failed: {failed[1]}. {_AGAIN}"
        return self._ended(missing)

    # --- failures

    def fail(self, reason: str) -> None:
        """From now on every launch of every rank that waits for this rank fails, and quotes the reason."""
        if not self._failure and self._pid == os.getpid():
            self._failure = reason
            self._records.write(self.group.rank, reason)
            for lines in self._lines:
                lines[self.group.rank, window_layout.ARRIVED // 4] = FAILED

    def _explanation(self) -> str:
        """What is known of the ranks that a launch waited for in vain; "": nothing."""
        if ended := self._watch.ended():
            names = ", ".join(f"{names_of(self.group, [place])} (pid {self.processes[place].pid})" for place in ended)
            reason = next((f": {reason}" for place in ended if (reason := self._records.reason(place))), "")
            return f"{self._where}{names} has ended, or has closed the group{reason}. {_AGAIN}"
        if failed := self._records.failed(besides=self.group.rank):
            place, reason = failed
            return f"{self._where}{names_of(self.group, [place])} has failed: {reason}. {_AGAIN}"
        return self._stop_astray(range(self.group.size))

    # --- ranks that wait for each other in different areas

    @property
    def _group_key(self) -> tuple[str, str, int]:
        return self._session.token, self.group.name, self.group.rank

    @property
    def _group_number(self) -> int:
        return int.from_bytes(hashlib.sha256(repr(self._group_key).encode()).digest()[:8])

    def _others_of_group(self) -> list[SharedArea]:
        """Areas of the group in which the thread of this call has had its last round."""
        found = [area for area in list(_live_areas) if area is not self and area._group_key == self._group_key]
        thread, place = threading.get_native_id(), self.group.rank
        return [area for area in found if any(lines[place, THREAD // 4] == thread for lines in area._lines[:1])]

    def _is_ahead(self, place: int) -> bool:
        """Whether a rank has begun a round here that this rank has not: it waits for this rank."""
        lines = self._lines[0]
        if self._closed or self._failure or lines[place, window_layout.ARRIVED // 4] == FAILED:
            return False
        begun, own = (int(lines[at, window_layout.ROUND // 4]) for at in (place, self.group.rank))
        return begun != own and has_arrived(begun, own)

    def _stop_astray(self, places: Missing) -> str:
        """Stops those of some ranks that wait for this rank in another area, and says which; "": there are none."""
        for area in self._others_of_group():
            if astray := [place for place in places if area._is_ahead(place)]:
                here, there = names_of(self.group, [self.group.rank]), names_of(self.group, astray)
                reason = (
                    f"{here} and {there} wait for each other in different models, or in one model for inputs of "
                    "different shapes: all ranks must make the same calls in the same order, with inputs of the same "
                    "shapes"
                )
                area.fail(reason)
                return f"{self._where}{reason}. {_AGAIN}"
        return ""

    # --- memory

    def address(self, window: str) -> int:
        return int(self.buffers[window].ctypes.data)

    @property
    def buffers(self) -> Mapping[str, Any]:
        """The windows as arrays of bytes, to pass to a launch by name."""
        return self._arrays

    def close(self, reason: str = "the shared memory of the group was closed") -> None:
        """Other ranks that still wait for this rank then fail. The memory goes when no array of it is left."""
        if not self._closed:
            self._closed = reason
            self._release()

    @property
    def _where(self) -> str:
        return f"collectives of group {self.group}: "

    # --- making it

    @property
    def _creator(self) -> int:
        """The place of the rank that creates the file: the lowest global number."""
        return self.group.ranks.index(min(self.group.ranks))

    def _announce(self, exchange: StoreExchange, error: LaunchError) -> None:
        """Tells the other ranks wherever they wait for this rank, also those that come later."""
        subjects = ("member", "mapped", "file") if self.group.rank == self._creator else ("member", "mapped")
        with suppress(LaunchError):  # the store may be what has failed
            for subject in subjects:
                exchange.add_error(subject, error)

    def _open(self, exchange: StoreExchange, folder: Path) -> SharedFile:
        if self.group.rank == self._creator:
            return SharedFile.create(self._layout.nbytes, folder)
        said = exchange.hear("file", self._creator, self._ended)
        self._raise_said(self._creator, said)
        return SharedFile.open(said["name"], self._layout.nbytes, folder)

    def _share(self, exchange: StoreExchange, names: tuple[str, ...]) -> None:
        """Returns when all ranks have mapped the file."""
        self._take_memory(names)
        if self.group.rank == self._creator:
            exchange.say("file", {"name": self._file.path.name})
        exchange.say("mapped", {})
        for place, said in enumerate(exchange.hear_all("mapped", self._ended)):
            self._raise_said(place, said)

    def _raise_said(self, place: int, said: Said) -> None:
        if "error" in said:
            raise LaunchError(f"{self._where}{names_of(self.group, [place])}: {said['error']}")

    def _take_memory(self, names: tuple[str, ...]) -> None:
        """A page belongs to the memory of the processor that asks first: each rank takes its own slots."""
        self._file.lock(self.group.rank)
        created = self.group.rank == self._creator
        if created:
            self._file.allocate(0, self._layout.offsets[0] if self._layout.offsets else self._layout.nbytes)
        for offset, window in zip(self._layout.offsets, self._layout.windows, strict=True):
            if created:
                self._file.allocate(offset, window.slots)
            for parity in (0, 1):
                self._file.allocate(offset + window.slot(parity, self.group.rank), window.stride)
        try:
            self._lay_out(names)
        except OSError as reason:
            raise LaunchError(f"{self._where}the shared memory cannot be mapped: {reason}") from reason

    def _lay_out(self, names: tuple[str, ...]) -> None:
        self._memory = mmap.mmap(self._file.descriptor, self._layout.nbytes)
        whole = np.frombuffer(self._memory, np.uint8)
        self._records = RankRecords(whole[: RankRecords.nbytes(self.group.size)])
        placed = list(zip(self._layout.offsets, self._layout.windows, strict=True))
        self._arrays = {
            name: whole[offset : offset + window.nbytes] for name, (offset, window) in zip(names, placed, strict=True)
        }
        lines = [whole[offset : offset + RANK_LINE * self.group.size] for offset, _ in placed]
        self._lines = [words.view(np.uint32).reshape(self.group.size, RANK_LINE // 4) for words in lines]
        for words, (_, window) in zip(self._lines, placed, strict=True):
            mine = words[self.group.rank]
            mine[window_layout.PATIENCE_MS // 4] = min(int(self.timeout_s * 1000), 0xFFFFFFFF)
            mine[window_layout.GLOBAL_RANK // 4] = self.group.global_rank
            mine[window_layout.PROCESS // 4] = os.getpid()
            mine[window_layout.STRIDE // 4 :][:2].view(np.uint64)[0] = window.stride

    def _ended(self, missing: Missing) -> str:
        session = replace(self._session, processes=tuple(self.processes)) if self.processes else self._session
        if ended := session.ended(self.group, missing):
            return f"{ended}. {_AGAIN}"
        return self._stop_astray(missing)


_AGAIN = "Create the process group again, or restart all ranks"


def announce_left_out(store: Store, group: RankGroup, session: RankSession, reason: str) -> None:
    """In place of an area: this rank leaves its collectives to torch. Ranks that make an area for them fail."""
    exchange = StoreExchange(store, group, _next_prefix(session, group), DEFAULT_TIMEOUT_S)
    exchange.say("member", {"error": f"it leaves collectives to torch that others fuse: {reason}"})


def _release(watch: RankWatch, file: SharedFile, pid: int) -> None:
    """A forked child has neither the watchdog nor the lock."""
    if pid == os.getpid():
        watch.close()
        file.close()


def _next_prefix(session: RankSession, group: RankGroup) -> str:
    """Of the keys by which the ranks make their next area."""
    key = session.token, group.name, group.rank
    with _count_lock:
        number = _areas_made[key] = _areas_made.get(key, -1) + 1
    return f"superkernel/{group.name}/{session.token}/{number}"


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
