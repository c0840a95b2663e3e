"""runtime.turns: alternatives that give the same bits -> the fastest, measured on real launches that alternate."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

TURNS = 5  # measured launches of each alternative; the first launch of each warms it up and is not counted
MARGIN = 1.03  # the noise of five launches: a slowdown below it is none


@dataclass
class Turns:
    """Alternatives by name, those to prefer first. Several threads may launch at once."""

    names: tuple[str, ...]
    times: dict[str, list[int]] = field(default_factory=dict)  # nanoseconds
    chosen: str | None = None  # None: not decided yet
    _launches: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.times = {name: list(self.times.get(name, ())) for name in self.names}

    def take(self) -> tuple[str, bool]:
        """The alternative whose turn it is, and whether its time counts."""
        with self._lock:
            turn, self._launches = self._launches, self._launches + 1
        return self.names[turn % len(self.names)], turn >= len(self.names)

    def record(self, name: str, duration: int) -> bool:
        """Whether this launch was the one that decided."""
        with self._lock:
            self.times[name].append(duration)
            if self.chosen is not None or min(map(len, self.times.values())) < TURNS:
                return False
            self.chosen = fastest(self.names, self.times)
            return True

    def adopt(self, times: Mapping[str, Sequence[int]]) -> None:
        """Times that were measured earlier; they decide if they are complete."""
        if set(times) == set(self.names) and all(times.values()):
            self.times = {name: list(times[name]) for name in self.names}
            self.chosen = fastest(self.names, self.times)

    @property
    def medians_us(self) -> dict[str, float]:
        return {name: median(times) / 1000 for name, times in self.times.items() if times}


def fastest(names: Sequence[str], times: Mapping[str, Sequence[int]]) -> str:
    """The first name whose median is the least, but for noise."""
    least = min(median(times[name]) for name in names)
    return next(name for name in names if median(times[name]) <= MARGIN * least)
