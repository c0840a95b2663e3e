"""observe.tables: launches -> op_statistic.csv and kernel_details.csv, for pandas and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..plan.spans import Span
from ..plan.steps import SpanKind
from .profile import Profile, ProfiledKernel, ProfiledLaunch

STATISTIC = (
    "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)",
)  # fmt: skip
DETAILS = ("Name", "Type", "Block Dim", "Start(us)", "Duration(us)", "Wait(us)", "stream", "scope", "fused into")


@dataclass(frozen=True)
class TypeStatistic:
    """All launches of one type on one kind of cores."""

    op_type: str
    core_type: str
    count: int
    total_us: float
    min_us: float
    max_us: float
    ratio: float  # percent of all launches

    @property
    def avg_us(self) -> float:
        return self.total_us / self.count


def statistic(launches: Sequence[ProfiledLaunch]) -> list[TypeStatistic]:
    """One row per type and kind of cores, the longest first."""
    groups: dict[tuple[str, str], list[float]] = {}
    for launch in launches:
        groups.setdefault((launch.type, launch.core_type), []).append(launch.duration_us)
    total = sum(launch.duration_us for launch in launches)
    rows = [
        TypeStatistic(op, core, len(us), sum(us), min(us), max(us), 100 * sum(us) / total if total else 0.0)
        for (op, core), us in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_us, row.op_type, row.core_type))


def statistic_csv(profile: Profile) -> str:
    rows: list[Sequence[object]] = []
    for row in statistic(profile.launches):
        decimals = map(_decimal, (row.total_us, row.min_us, row.avg_us, row.max_us, row.ratio))
        rows.append((row.op_type, row.core_type, row.count, *decimals))
    return _csv(STATISTIC, rows)


def details_csv(profile: Profile) -> str:
    """Launches in the order they were dispatched; behind a super kernel its ops, where they were recorded."""
    rows: list[Sequence[object]] = []
    for launch in profile.launches:
        times = map(_decimal, (launch.start_us, launch.duration_us, launch.wait_ns / 1000))
        rows.append((launch.name, launch.type, launch.block_dim or "", *times, launch.stream, launch.scope, ""))
        if launch.kernel is not None and (kernel := profile.kernels[launch.kernel]).fused:
            rows += _op_rows(launch, kernel)
    return _csv(DETAILS, rows)


def _op_rows(launch: ProfiledLaunch, kernel: ProfiledKernel) -> Iterator[Sequence[object]]:
    by_op: dict[str | None, list[Span]] = {}
    for span in launch.spans:
        by_op.setdefault(span.op, []).append(span)
    for op in kernel.ops:
        spans = by_op.get(op.name, [])
        runs = [span for span in spans if span.what is SpanKind.OP]
        if not runs:
            continue
        begin, end = min(span.begin_ns for span in runs), max(span.end_ns for span in runs)
        waits = [span.end_ns - span.begin_ns for span in spans if span.what in (SpanKind.WAIT, SpanKind.BARRIER)]
        times = (_decimal(ns / 1000) for ns in (begin, end - begin, max(waits, default=0.0)))
        yield (op.name, op.type, op.blocks, *times, op.stream, launch.scope, kernel.name)


def _decimal(value: float) -> str:
    """Never with an exponent."""
    return f"{value:.3f}"


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
