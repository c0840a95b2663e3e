"""frontend.gate: two ways to run a segment -> the faster one, found on real calls: they take turns, then one stays."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from ..cache import Cache, digest
from ..errors import BuildError, SuperKernelError
from ..runtime import launch_events

TURNS = 5  # measured calls of each way; the first call of each warms it up and is not counted
MARGIN = 1.03  # by so much five calls differ for no reason: below it the one launch stays

Launcher = Callable[[Any, Any], None]


@dataclass
class Gate:
    """Launches a segment, fused or op by op. Both give the same bits, so that any call may be either."""

    fused: Launcher
    make_unfused: Callable[[], Launcher]
    key: str
    cache: Cache | None
    times: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    fuses: bool | None = None  # None: not decided yet
    _calls: int = 0
    _unfused: Launcher | None = None
    _builder: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._recall()

    def __call__(self, values: Any, sizes: Any) -> None:
        if self.fuses:
            self.fused(values, sizes)
        elif self.fuses is None:
            self._measure(values, sizes)
        else:
            self._other()(values, sizes)

    def begin_to_build(self) -> None:
        """The ops as launches of their own, in a thread: the second call needs them."""
        if self.fuses is None:
            self._builder = threading.Thread(target=self._build, name="superkernel-gate", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        with suppress(SuperKernelError):  # whoever needs it will be told
            self._unfused = self.make_unfused()

    def _other(self) -> Launcher:
        if self._builder is not None:
            self._builder.join()
        if self._unfused is None:
            self._unfused = self.make_unfused()
        return self._unfused

    def _measure(self, values: Any, sizes: Any) -> None:
        with self._lock:
            fused = self._calls % 2 == 0
            warm = self._calls >= 2 and not launch_events.has_listeners()  # publishing a launch takes time
            self._calls += 1
        launch = self.fused if fused else self._other()
        began = perf_counter_ns()
        launch(values, sizes)
        took = perf_counter_ns() - began
        with self._lock:
            if warm:
                self.times[fused].append(took)
            if self.fuses is None and min(map(len, self.times.values())) >= TURNS:
                self.fuses = _pays(self.times)
                self._remember()

    @property
    def medians_us(self) -> dict[str, float]:
        words = {True: "fused", False: "unfused"}
        return {words[way]: median(times) / 1000 for way, times in self.times.items() if times}

    def _entry(self) -> str:
        return digest("gate", self.key)

    def _remember(self) -> None:
        if self.cache is None:
            return
        text = json.dumps({"fused": self.times[True], "unfused": self.times[False]})
        with suppress(BuildError):  # else the next process measures again
            self.cache.make(self._entry(), ".json", lambda path: _write(path, text))

    def _recall(self) -> None:
        if self.cache is None or (entry := self.cache.get(self._entry(), ".json")) is None:
            return
        try:
            kept = json.loads(entry.read_text())
            times = {True: [int(t) for t in kept["fused"]], False: [int(t) for t in kept["unfused"]]}
        except (OSError, ValueError, KeyError, TypeError):
            return
        if all(times.values()):
            self.times = times
            self.fuses = _pays(times)


def _pays(times: Mapping[bool, Sequence[int]]) -> bool:
    return median(times[True]) <= MARGIN * median(times[False])


def _write(path: Path, text: str) -> None:
    path.write_text(text)
