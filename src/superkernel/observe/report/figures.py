"""observe.report.figures: the data of a report -> the numbers on its page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .data import ReportData, Run, Span, SpanKind

OpKey = tuple[str, str]  # kernel, op


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
    runs: int  # how often it was seen on the timeline
    time_us: float | None
    bytes_moved: int | None
    bytes_per_s: float | None
    share: float | None  # of the measured bandwidth; above 1 where the data lay in a cache


@dataclass(frozen=True)
class CoreShares:
    """How the cores spent the time in which any of them did something."""

    cores: int
    elapsed_us: float
    working: float  # shares of all cores' time, 0 to 1
    waiting: float


def by_type(data: ReportData) -> tuple[TypeRow, ...]:
    """Launches by their type, the type that took longest first."""
    times: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in data.runs])
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(data.runs))
    for number, run in enumerate(data.runs):
        for launch in run.launches:
            times[launch.type][number].append(launch.duration_us)
            counts[launch.type][number] += launch.count
    rows = [TypeRow(name, tuple(map(math.fsum, times[name])), tuple(counts[name])) for name in times]
    return tuple(sorted(rows, key=lambda row: (-max(row.time_us), row.type)))


def op_rows(run: Run) -> tuple[OpRow, ...]:
    """The ops of all super kernels, in order."""
    seen = _durations(run.spans)
    rows = []
    for kernel in run.kernels:
        for op in kernel.ops:
            durations = seen.get((kernel.name, op.name), [])
            time_us = op.duration_us if op.duration_us is not None else median(durations) if durations else None
            moved = op.bytes_moved
            # an op that no clock can see has no speed either
            rate = moved / time_us * 1e6 if moved and time_us else None
            share = rate / run.read_bytes_per_s if rate and run.read_bytes_per_s else None
            rows.append(OpRow(kernel.name, op.name, op.type, len(durations), time_us, moved, rate, share))
    return tuple(rows)


def core_shares(run: Run) -> CoreShares | None:
    """None without spans, or where they all have no length."""
    inner = [span for span in run.spans if span.kind is not SpanKind.KERNEL]
    if not inner:
        return None
    elapsed = _covered(run.spans)  # what the host did between launches is not theirs
    cores = len({span.core for span in run.spans})
    if elapsed <= 0:
        return None
    waiting_kinds = (SpanKind.WAIT, SpanKind.BARRIER)
    working = waiting = 0.0
    for spans in _by_core(inner).values():
        idle = _covered(span for span in spans if span.kind in waiting_kinds)
        either = _covered(span for span in spans if span.kind in (SpanKind.OP, *waiting_kinds))
        # an op that waits inside is waiting there
        working += either - idle
        waiting += idle
    return CoreShares(cores, elapsed, working / (cores * elapsed), waiting / (cores * elapsed))


def _durations(spans: Iterable[Span]) -> dict[OpKey, list[float]]:
    """Op -> its times, one per run: from the first core's begin to the last core's end.

    The n-th span of every core belongs to the n-th run, because all cores run the ops in one order.
    """
    per_core: dict[OpKey, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        if span.kind is SpanKind.OP:
            per_core[span.kernel, span.op][span.core].append(span)
    found: dict[OpKey, list[float]] = {}
    for key, cores in per_core.items():
        ordered = [sorted(each, key=lambda span: span.begin_us) for each in cores.values()]
        runs = max(map(len, ordered))
        together = ([each[n] for each in ordered if n < len(each)] for n in range(runs))
        found[key] = [max(s.end_us for s in group) - min(s.begin_us for s in group) for group in together]
    return found


def _by_core(spans: Iterable[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.core].append(span)
    return found


def _covered(spans: Iterable[Span]) -> float:
    """How much time lies in at least one of them."""
    total, reached = 0.0, -math.inf
    for span in sorted(spans, key=lambda one: one.begin_us):
        if span.end_us > reached:
            total += span.end_us - max(span.begin_us, reached)
            reached = span.end_us
    return total
