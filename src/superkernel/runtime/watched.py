"""watched: an executable or a series of launches -> the same, which tells whoever watches of every launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

from ..plan.spans import Span
from ..targets.protocol import Executable, LaunchInputs, LaunchSequence, OpLabel, Prepared, Recording, SequencedLaunch
from . import launch_events as watch
from .launch_events import Alone, Launched, Whole

Result = TypeVar("Result")


@dataclass(frozen=True)
class Seen:
    """What is launched, and what to call it."""

    executable: Executable
    what: Whole | Alone

    @property
    def name(self) -> str:
        return self.what.node.name if isinstance(self.what, Alone) else self.what.graph.name


class WatchedExecutable:
    """Launches `seen()` in the place of `plain`: another binary where time stamps are wanted, made at first need."""

    def __init__(self, plain: Executable, seen: Callable[[], Seen]) -> None:
        self.plain, self._make = plain, seen
        self.source, self.binary, self.commands, self.remarks = (
            plain.source,
            plain.binary,
            plain.commands,
            plain.remarks,
        )
        self._seen: Seen | None = None
        plain.time_launches(True)

    def _now(self) -> Seen:
        self._seen = self._seen or self._make()
        return self._seen

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        seen = self._now()
        made = self._told(
            seen, lambda: seen.executable.launch(buffers, launch_inputs), lambda: _bytes_of(seen, buffers)
        )
        return made

    def launch_values(self, values: Any, sizes: Any) -> None:
        seen = self._now()
        self._told(seen, lambda: seen.executable.launch_values(values, sizes), lambda: tuple(sizes))

    def launch_addresses(
        self,
        values: Sequence[int],
        sizes: Sequence[int],
        launch_inputs: LaunchInputs,
        named: Mapping[str, Any],
        op_label: OpLabel | None = None,
    ) -> None:
        seen = self._now()
        self._told(
            seen,
            lambda: seen.executable.launch_addresses(values, sizes, launch_inputs, named, op_label),
            lambda: tuple(sizes) if isinstance(seen.what, Whole) else (),
        )

    @staticmethod
    def _told(seen: Seen, start: Callable[[], Result], sizes: Callable[[], tuple[int, ...]]) -> Result:
        with watch.shown_to_torch(seen.name):
            result = start()
        begin, end = seen.executable.last_launch()
        watch.tell([Launched(seen.what, begin, end, get_ident(), sizes(), seen.executable.recording())])
        return result

    # everything else is the plain one's

    def argument_arrays(self) -> tuple[Any, Any]:
        return self.plain.argument_arrays()

    def running(self) -> int:
        return sum(executable.running() for executable in self._executables())

    def spans(self) -> tuple[Span, ...]:
        return self.plain.spans()

    def recording(self) -> Recording | None:
        return self.plain.recording()

    def time_launches(self, wanted: bool) -> None:
        self.plain.time_launches(wanted)

    def last_launch(self) -> tuple[int, int]:
        return self.plain.last_launch()

    def save(self, directory: Path) -> None:
        self.plain.save(directory)

    def close(self) -> None:
        for executable in self._executables():
            executable.close()

    def _executables(self) -> list[Executable]:
        own = [] if self._seen is None or self._seen.executable is self.plain else [self._seen.executable]
        return [self.plain, *own]


def _bytes_of(seen: Seen, buffers: Mapping[str, Any]) -> tuple[int, ...]:
    """What was passed, or what the typed names that nobody passed take."""
    sizes = []
    for name, buffer in seen.what.graph.buffers.items():
        passed = buffers.get(name)
        sizes.append(int(getattr(passed, "nbytes", 0) if name in buffers else buffer.nbytes or 0))
    return tuple(sizes)


class WatchedSequence:
    """Launches in a row, each of them told."""

    def __init__(
        self, plain: LaunchSequence, legs: Sequence[SequencedLaunch], what: Sequence[Alone], prepared: Prepared
    ) -> None:
        self._plain, self._legs, self._what, self._prepared = plain, legs, what, prepared
        self._records = any(alone.plan.options.profiling for alone in what)
        self._singles: list[LaunchSequence] = []
        for leg in legs:
            leg.executable.time_launches(True)

    def launch_values(self, values: Any, sizes: Any) -> None:
        moments: list[tuple[int, int]] = []
        if self._records or watch.torch_profiles():
            self._launch_each(values, sizes)
            return
        try:
            self._plain.launch_timed(values, sizes, moments)
        finally:
            known, thread = tuple(sizes), get_ident()
            pairs = zip(self._what, moments, strict=False)
            watch.tell([Launched(what, begin, end, thread, known) for what, (begin, end) in pairs])

    def _launch_each(self, values: Any, sizes: Any) -> None:
        """One by one, so that each has a name in torch's trace, and its time stamps are taken before the next one."""
        if not self._singles:
            self._singles = [self._prepared.launch_sequence([leg]) for leg in self._legs]
        known, thread = tuple(sizes), get_ident()
        for single, leg, what in zip(self._singles, self._legs, self._what, strict=True):
            moments: list[tuple[int, int]] = []
            with watch.shown_to_torch(what.node.name):
                single.launch_timed(values, sizes, moments)
            begin, end = moments[0]
            watch.tell([Launched(what, begin, end, thread, known, leg.executable.recording())])

    def launch_timed(self, values: Any, sizes: Any, moments: list[tuple[int, int]]) -> None:
        self._plain.launch_timed(values, sizes, moments)
