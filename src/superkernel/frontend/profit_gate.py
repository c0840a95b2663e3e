"""frontend.profit_gate: two ways to launch a segment -> the faster one, measured on real calls that alternate."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..cache import Cache, digest
from ..errors import SuperKernelError
from ..runtime import launch_events
from .lowering.lowering_cache import write_entry

TURNS = 5  # measured calls of each way; the first call of each warms it up and is not counted
MARGIN = 1.03  # the noise of five calls: a slowdown below it keeps the segment fused

LaunchFunction = Callable[[Any, Any], None]  # values and sizes of the arguments


@dataclass
class ProfitGate:
    """Launches a segment, fused or op by op. Both give the same bits, so any call may be either."""

    fused: LaunchFunction
    build_unfused: Callable[[], LaunchFunction]
    clock: Callable[[], int]  # of the target: nanoseconds, read when all launches have completed
    key: str
    cache: Cache | None
    times: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})  # by fused
    fuses: bool | None = None  # None: not decided yet
    _calls: int = 0
    _unfused: LaunchFunction | None = None
    _builder: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._read_decision()

    def __call__(self, values: Any, sizes: Any) -> None:
        if self.fuses:
            self.fused(values, sizes)
        elif self.fuses is None:
            self._measure(values, sizes)
        else:
            self._unfused_launch()(values, sizes)

    def begin_build(self) -> None:
        """Build the unfused launches in a thread: the second call needs them."""
        if self.fuses is None:
            self._builder = threading.Thread(target=self._build, name="superkernel-gate", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        with suppress(SuperKernelError):  # raised again by the call that needs the launches
            self._unfused = self.build_unfused()

    def _unfused_launch(self) -> LaunchFunction:
        if self._builder is not None:
            self._builder.join()
        if self._unfused is None:
            self._unfused = self.build_unfused()
        return self._unfused

    def _measure(self, values: Any, sizes: Any) -> None:
        with self._lock:
            fused = self._calls % 2 == 0
            counts = self._calls >= 2 and not launch_events.has_listeners()  # publishing a launch takes time
            self._calls += 1
        launch = self.fused if fused else self._unfused_launch()
        begin = self.clock()
        launch(values, sizes)
        duration = self.clock() - begin
        with self._lock:
            if counts:
                self.times[fused].append(duration)
            if self.fuses is None and min(map(len, self.times.values())) >= TURNS:
                self.fuses = _pays(self.times)
                self._write_decision()

    @property
    def medians_us(self) -> dict[str, float]:
        words = {True: "fused", False: "unfused"}
        return {words[fused]: median(times) / 1000 for fused, times in self.times.items() if times}

    def _entry(self) -> str:
        return digest("gate", self.key)

    def _write_decision(self) -> None:
        if self.cache is not None:
            text = json.dumps({"fused": self.times[True], "unfused": self.times[False]})
            write_entry(self._entry(), text, self.cache)

    def _read_decision(self) -> None:
        if self.cache is None or (entry := self.cache.get(self._entry(), ".json")) is None:
            return
        try:
            fields = json.loads(entry.read_text())
            times = {True: [int(t) for t in fields["fused"]], False: [int(t) for t in fields["unfused"]]}
        except (OSError, ValueError, KeyError, TypeError):
            return
        if all(times.values()):
            self.times = times
            self.fuses = _pays(times)


def _pays(times: Mapping[bool, Sequence[int]]) -> bool:
    return median(times[True]) <= MARGIN * median(times[False])
