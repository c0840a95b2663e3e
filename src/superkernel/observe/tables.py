"""observe.tables: launches -> op_statistic.csv and kernel_details.csv, for pandas and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .facts import LaunchFact, Profile, SpanFact

STATISTIC = (
    "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)",
)  # fmt: skip
DETAILS = ("Name", "Type", "Block Dim", "Start(us)", "Duration(us)", "Wait(us)", "stream", "scope", "fused into")


@dataclass(frozen=True)
class Row:
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


def statistic(launches: Sequence[LaunchFact]) -> list[Row]:
    """One row per type and kind of cores, the longest first."""
    groups: dict[tuple[str, str], list[float]] = {}
    for launch in launches:
        groups.setdefault((launch.type, launch.core_type), []).append(launch.duration_us)
    total = sum(launch.duration_us for launch in launches)
    rows = [
        Row(op, core, len(us), sum(us), min(us), max(us), 100 * sum(us) / total if total else 0.0)
        for (op, core), us in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_us, row.op_type, row.core_type))


def statistic_csv(profile: Profile) -> str:
    return _csv(
        STATISTIC,
        (
            (
                row.op_type, row.core_type, row.count, _us(row.total_us), _us(row.min_us), _us(row.avg_us),
                _us(row.max_us), f"{row.ratio:.3f}",
            )
            for row in statistic(profile.launches)
        ),
    )  # fmt: skip


def details_csv(profile: Profile) -> str:
    """Launches in the order they were dispatched; behind a super kernel its ops, where they were recorded."""
    inside: dict[tuple[int, str], list[SpanFact]] = {}
    for span in profile.spans:
        inside.setdefault((span.launch, span.op), []).append(span)
    rows: list[Sequence[object]] = []
    for number, launch in enumerate(profile.launches):
        rows.append(
            (
                launch.name, launch.type, launch.block_dim or "", _us(launch.start_us), _us(launch.duration_us),
                _us(launch.wait_us), launch.stream, launch.scope, "",
            )
        )  # fmt: skip
        kernel = profile.kernels[launch.kernel] if launch.kernel >= 0 else None
        if kernel is None or not kernel.fused:
            continue
        for op in kernel.ops:
            spans = inside.get((number, op.name), [])
            runs = [span for span in spans if span.kind == "op"]
            if not runs:
                continue
            begin, end = min(span.begin_us for span in runs), max(span.end_us for span in runs)
            waits = [span.end_us - span.begin_us for span in spans if span.kind in ("wait", "barrier")]
            wait = max(waits, default=0.0)
            rows.append(
                (op.name, op.type, op.blocks, _us(begin), _us(end - begin), _us(wait), op.stream, launch.scope,
                 kernel.name)
            )  # fmt: skip
    return _csv(DETAILS, rows)


def _us(value: float) -> str:
    """Plain decimals: never an exponent."""
    return f"{value:.3f}"


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
