"""bench.measure: functions in, median and spread of their times out; all in one run, in alternating order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from ...observe.machine import machine_facts


@dataclass(frozen=True)
class Timing:
    """Microseconds per call over the rounds."""

    name: str
    median: float
    low: float  # lower and upper quartile
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / self.median if self.median else 0.0

    def __str__(self) -> str:
        return f"{self.name:<58} {self.median:>10.3f} us   +-{50 * self.spread:.0f} %"


@dataclass(frozen=True)
class Figure:
    """A promised figure. `at_least`: the value must not be below the limit; otherwise not above."""

    name: str
    value: float
    limit: float
    at_least: bool
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        verdict = "met" if self.met else "NOT MET"
        return f"{self.name:<58} {self.value:>8.2f} {self.unit:<3} {side} {self.limit:g}: {verdict}"


Cases = Mapping[str, Callable[[], object]]  # by name
_IN_MICROSECONDS = {"us": 1.0, "s": 1e6}


@dataclass(frozen=True)
class Comparison:
    """One workload, run by us and by every peer."""

    name: str
    ours: Timing  # named after its runner, as the others
    peers: tuple[Timing, ...]
    floor: Timing | None = None  # the time to read the data alone
    unit: str = "us"  # to show it in; timings are in microseconds
    unfused: Timing | None = None  # the same sub-kernels, one launch each

    @property
    def best(self) -> Timing:
        return min(self.peers, key=lambda peer: peer.median)

    @property
    def ratio(self) -> float:
        """How many times faster we are than the best peer."""
        return self.best.median / self.ours.median

    @property
    def share(self) -> float | None:
        return self.floor.median / self.ours.median if self.floor else None

    @property
    def fusion(self) -> Figure:
        """Fusion must not cost time, up to 2 % or the spread of the rounds."""
        assert self.unfused is not None
        noise = max(self.ours.spread, self.unfused.spread) / 2
        ratio = self.unfused.median / self.ours.median
        return Figure(f"{self.name}: time with fuse=off to ours", ratio, min(0.98, 1 - noise), True)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.unit, *(timing.name for timing in self.timed))

    @property
    def timed(self) -> tuple[Timing, ...]:
        """Ours fused, ours unfused, and every peer."""
        return (self.ours, *([self.unfused] if self.unfused else []), *self.peers)

    def shown(self, timing: Timing) -> float:
        return timing.median / _IN_MICROSECONDS[self.unit]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"best": self.best.name, "ratio": self.ratio, "share": self.share}

    def __str__(self) -> str:
        cells = "".join(f"{self.shown(timing):>14.2f}" for timing in self.timed)
        share = f"{100 * self.share:>6.0f} %" if self.share is not None else ""
        return f"{self.name:<40}{cells}{self.ratio:>12.2f} x{share}"


@dataclass(frozen=True)
class Latency:
    """Microseconds of single calls of a workload under a condition."""

    workload: str
    condition: str
    runner: str
    threads: int
    calls: int
    p50: float
    p99: float
    largest: float

    @property
    def tail(self) -> float:
        return self.p99 / self.p50

    def __str__(self) -> str:
        times = f"p50 {self.p50:>9.2f}   p99 {self.p99:>9.2f}   max {self.largest:>10.2f} us"
        return f"{self.runner:<22} threads {self.threads:>2}   {times}   {self.calls} calls"


@dataclass
class Result:
    suite: str
    machine: dict[str, Any]
    checks: dict[str, bool] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cores(self) -> int:
        """The cores of every runner."""
        return int(self.machine["cores_used"])

    def add(self, other: Result) -> None:
        """What was measured in another process on the same machine."""
        self.checks |= other.checks
        self.timings += other.timings
        self.comparisons += other.comparisons
        self.figures += other.figures
        self.latencies += other.latencies
        self.notes += other.notes

    @property
    def ok(self) -> bool:
        """Whether every timed result is right; whether the figures are met is not part of this."""
        return all(self.checks.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "ok": self.ok,
            "figures_met": all(figure.met for figure in self.figures),
            "machine": self.machine,
            "checks": self.checks,
            "timings": [asdict(timing) | {"spread": timing.spread} for timing in self.timings],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "latencies": [asdict(latency) | {"tail": latency.tail} for latency in self.latencies],
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
            "notes": self.notes,
        }

    def __str__(self) -> str:
        machine = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        wrong = [name for name, right in self.checks.items() if not right]
        lines = [f"suite {self.suite} on {machine}", "", "times: median per call, half the quartile range"]
        lines += [f"  {timing}" for timing in self.timings]
        lines += _compared(self.comparisons)
        lines += _single_calls(self.latencies)
        verdict = f"WRONG: {', '.join(wrong)}" if wrong else "all right"
        lines += ["", f"results: {len(self.checks)} checked, {verdict}"]
        lines += ["", "figures"] + [f"  {figure}" for figure in self.figures]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def _compared(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A table for each set of comparisons with the same columns."""
    for (unit, *runners), rows in groupby(comparisons, lambda comparison: comparison.columns):
        yield ""
        yield f"  {f'median, {unit}':<40}{''.join(f'{name:>14}' for name in runners)}   best/ours"
        yield from (f"  {row}" for row in rows)


def _single_calls(latencies: Sequence[Latency]) -> Iterator[str]:
    """A list for each workload and condition."""
    for (workload, condition), rows in groupby(latencies, lambda row: (row.workload, row.condition)):
        yield ""
        yield f"  {workload}, {condition}"
        yield from (f"    {row}" for row in rows)


def measure(cases: Cases, rounds: int, budget_s: float = 0.02, lead: int = 0) -> dict[str, Timing]:
    """Median and spread of every case; see times_by_round."""
    taken = times_by_round(cases, rounds, budget_s, lead)
    return {name: summary(name, times) for name, times in taken.items()}


def times_by_round(cases: Cases, rounds: int, budget_s: float = 0.02, lead: int = 0) -> dict[str, list[float]]:
    """Time every case in every round, each round in another order; a round calls a case for about `budget_s`.

    `lead`: untimed calls before these, because the caches hold the data of another case.
    """
    repeats = {name: _repeats(case, budget_s) for name, case in cases.items()}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for i in range(rounds):
        for name in order[i % len(order) :] + order[: i % len(order)]:
            for _ in range(lead):
                cases[name]()
            taken[name].append(burst(cases[name], repeats[name]))
    return taken


def ratio_by_round(times: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios per round: a change of the machine's speed affects both sides of a round."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def summary(name: str, times: list[float]) -> Timing:
    if len(times) < 2:
        return Timing(name, times[0], times[0], times[0])
    low, _, high = statistics.quantiles(times, n=4)
    return Timing(name, statistics.median(times), low, high)


def _repeats(case: Callable[[], object], budget_s: float) -> int:
    case()
    once = burst(case, 3) * 1e-6
    return max(1, min(20000, int(budget_s / max(once, 1e-9))))


def burst(case: Callable[[], object], repeats: int) -> float:
    """Microseconds per call."""
    start = time.perf_counter()
    for _ in range(repeats):
        case()
    return (time.perf_counter() - start) / repeats * 1e6


def describe_machine(cores: int) -> dict[str, Any]:
    facts = machine_facts([]) | {"cores used": cores}
    return {name.replace(" ", "_"): fact for name, fact in facts.items()}
