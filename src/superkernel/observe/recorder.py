"""observe.recorder: `with profile(directory):` -> the launches of this process while it lasts, in files."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from ..errors import OptionError, SuperKernelError, shown
from ..model import notebook_html
from ..runtime.launch_events import LaunchEvent, add_listener, launch_call, remove_listener
from . import store
from .build_profile import build_profile
from .machine_load import LoadMeter
from .profile import Profile
from .rank_of_process import find_rank, folder_of
from .tables import statistic

MOST_RECORDED = 20_000  # launches whose time stamps are kept: those of a day would fill the memory

_open: set[Path] = set()
_open_lock = threading.Lock()


class profile:  # a name that users write, like contextlib.suppress
    """Record every launch of this process, in all its threads, from `with` to its end; then write the directory.

    Each rank of a torch.distributed job writes a folder of its own in it, `rank0`, `rank1`, ...

    detail: also what every core did. Kernels that do not record it are compiled anew when they are launched.
    """

    def __init__(self, directory: str | Path, detail: bool = False) -> None:
        if not isinstance(detail, bool | int):
            raise OptionError(f"profile: detail is {shown(detail)}; it must be True or False")
        try:
            if not directory:  # a variable that was not set, rather than the current directory
                raise TypeError
            chosen = Path(directory).resolve()  # one directory has one name, and the program may go elsewhere
        except (TypeError, ValueError):
            raise OptionError(f"profile: the directory is {shown(directory)}; a path is needed") from None
        self._chosen, self.directory = chosen, folder_of(chosen, find_rank(0))
        self.detail = bool(detail)
        self.result: Profile | None = None  # after the end
        self._events: list[LaunchEvent] = []
        self._recorded = 0  # events with time stamps
        self._began = 0, 0  # monotonic, and since 1970
        self._load = LoadMeter()

    def __enter__(self) -> profile:
        self.directory = folder_of(self._chosen, find_rank(0))  # the group may have been made in between
        with _open_lock:
            if self.directory in _open:
                raise OptionError(
                    f"profile directory {shown(str(self.directory))}: another profile is being recorded into it"
                )
            store.check_writable(self.directory)
            _open.add(self.directory)
        self._events, self._recorded, self.result = [], 0, None
        add_listener(self)
        self._load = LoadMeter()
        self._began = time.monotonic_ns(), time.time_ns()
        return self

    def call(self) -> AbstractContextManager[None]:
        """The launches inside are one call of the profile: for a function of several graphs or kernels."""
        return launch_call()

    def on_launch(self, event: LaunchEvent) -> None:
        if event.time_stamps is not None:
            self._recorded += 1
            if self._recorded > MOST_RECORDED:
                event = replace(event, time_stamps=None)
        self._events.append(event)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        load = self._load.read()
        remove_listener(self)
        try:
            built = build_profile(list(self._events), *self._began, self.detail)
            notes, rank = (*built.notes, *self._notes()), find_rank(self._began[0])
            self.result = replace(built, notes=notes, load=load, rank=rank)
            store.write(self.directory, self.result)
        except SuperKernelError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # the first error matters more
        finally:
            with _open_lock:
                _open.discard(self.directory)

    def _repr_html_(self) -> str:
        """For notebooks: what was launched, by type, and where the files are."""
        if self.result is None:
            return notebook_html.paragraph(f"a profile that has not ended, for {self.directory}")
        launches = self.result.launches
        count = "1 launch" if len(launches) == 1 else f"{len(launches)} launches"
        rows = [(row.op_type, row.core_type, str(row.count), f"{row.total_us:.2f}") for row in statistic(launches)]
        return notebook_html.page(
            notebook_html.heading(f"{count}, {self.result.total_us:.2f} us"),
            notebook_html.table(["OP Type", "Core Type", "Count", "Total Time(us)"], rows),
            *map(notebook_html.paragraph, self.result.notes),
            notebook_html.paragraph(f"{self.directory}: {', '.join(store.FILES)}"),
        )

    def _notes(self) -> tuple[str, ...]:
        dropped = self._recorded - MOST_RECORDED
        note = f"what cores did is kept for the first {MOST_RECORDED} launches, not for {dropped} later ones"
        return (note,) if dropped > 0 else ()
