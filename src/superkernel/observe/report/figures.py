"""observe.report.figures: the profiles of a report -> the numbers on its page."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from ...plan.spans import Span
from ...plan.steps import SpanKind
from ..core_time import WAITS, covered_ns, op_times
from .data import ReportData, ReportedRun

OpKey = tuple[int | None, str | None]  # kernel, op


@dataclass(frozen=True)
class TypeRow:
    """What the launches of one type took, per run of the report."""

    type: str
    time_us: tuple[float, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class OpRow:
    """One op: how long it takes, what it moves, and how fast that is."""

    kernel: str
    name: str
    type: str
    runs: int  # how often it is on the timeline
    time_us: float | None
    bytes_moved: int | None
    bytes_per_s: float | None
    share: float | None  # of the measured bandwidth; above 1 where the data lay in a cache


@dataclass(frozen=True)
class CoreShares:
    """How the cores spent the time in which at least one of them was in a span."""

    cores: int
    elapsed_us: float
    working: float  # shares of all cores' time, 0 to 1
    waiting: float


def by_type(data: ReportData) -> tuple[TypeRow, ...]:
    """Launches by their type, the type that took longest first."""
    times: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in data.runs])
    for number, run in enumerate(data.runs):
        for launch in run.profile.launches:
            times[launch.type][number].append(launch.duration_us)
    rows = [TypeRow(name, tuple(map(math.fsum, each)), tuple(map(len, each))) for name, each in times.items()]
    return tuple(sorted(rows, key=lambda row: (-max(row.time_us), row.type)))


def op_rows(run: ReportedRun) -> tuple[OpRow, ...]:
    """The ops of all kernels, in order."""
    profile, durations = run.profile, _op_durations(run)
    rows = []
    for number, kernel in enumerate(profile.kernels):
        for op in kernel.ops:
            times = durations.get((number, op.name), [])
            time_us = median(times) if times else None
            moved = op.bytes_moved
            # an op too short for the clock has no speed either
            rate = moved / time_us * 1e6 if moved and time_us else None
            share = rate / profile.read_bytes_per_s if rate and profile.read_bytes_per_s else None
            rows.append(OpRow(run.kernel_titles[number], op.name, op.type, len(times), time_us, moved, rate, share))
    return tuple(rows)


def core_shares(run: ReportedRun) -> CoreShares | None:
    """None without spans, or where they all have no length. What the host does between launches does not count."""
    cores, elapsed, available, working, waiting = 0, 0.0, 0.0, 0.0, 0.0
    for launch in run.profile.launches:
        if all(span.what is SpanKind.KERNEL for span in launch.spans):
            continue
        by_core: dict[int, list[Span]] = defaultdict(list)
        for span in launch.spans:
            by_core[span.core].append(span)
        launch_ns = covered_ns((span.begin_ns, span.end_ns) for span in launch.spans)
        cores, elapsed = max(cores, len(by_core)), elapsed + launch_ns
        available += launch_ns * len(by_core)
        for spans in by_core.values():
            idle = covered_ns((span.begin_ns, span.end_ns) for span in spans if span.what in WAITS)
            either = covered_ns((span.begin_ns, span.end_ns) for span in spans if span.what in (SpanKind.OP, *WAITS))
            working += either - idle  # a wait inside of an op is waiting
            waiting += idle
    return CoreShares(cores, elapsed / 1000, working / available, waiting / available) if available > 0 else None


def _op_durations(run: ReportedRun) -> dict[OpKey, list[float]]:
    """Op -> its time in each launch, in microseconds; see OpTime for what counts."""
    durations: dict[OpKey, list[float]] = defaultdict(list)
    for launch in run.profile.launches:
        for op, time in op_times(launch).items():
            durations[launch.kernel, op].append(time.duration_ns / 1000)
    return durations
