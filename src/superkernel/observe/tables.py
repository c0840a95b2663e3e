"""observe.tables: a profile -> its tables (csv), for pandas and spreadsheets: launches, calls, ops inside, waits."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .calls import call_kinds
from .core_time import inner_types, op_times
from .profile import Profile, ProfiledKernel, ProfiledLaunch
from .waits import ranked_waits

STATISTIC = (
    "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)",
)  # fmt: skip
DETAILS = ("Name", "Type", "Block Dim", "Start(us)", "Duration(us)", "Wait(us)", "stream", "scope", "fused into")
CALLS = (
    "Call",
    "Graphs",
    "Thread",
    "Start(us)",
    "Duration(us)",
    "Launches",
    "In launches(us)",
    "Host(us)",
    "Gap before(us)",
)
INNER_TYPES = ("OP Type", "Count", "Core Time(us)", "Wait Time(us)", "Ratio(%)")
WAITS = ("Super Kernel", "Op", "Where", "Waited for", "Count", "Total(us)", "Longest(us)")


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
    times = op_times(launch)
    for op in kernel.ops:
        if (time := times.get(op.name)) is not None:
            shown = (_decimal(ns / 1000) for ns in (time.begin_ns, time.duration_ns, time.longest_wait_ns))
            yield (op.name, op.type, op.blocks, *shown, op.stream, launch.scope, kernel.name)


def calls_csv(profile: Profile) -> str:
    """One row per call, in the order of their begin."""
    calls = sorted(
        ((call, kind) for kind in call_kinds(profile) for call in kind.calls), key=lambda pair: pair[0].places
    )
    rows: list[Sequence[object]] = []
    for number, (call, kind) in enumerate(calls):
        start, durations = _decimal(call.begin_ns / 1000), (call.in_launches_us, call.host_us, call.before_us)
        in_launches, host, before = map(_decimal, durations)
        thread, count = call.launches[0].thread, len(call.launches)
        rows.append((number, kind.name, thread, start, _decimal(call.duration_us), count, in_launches, host, before))
    return _csv(CALLS, rows)


def inner_types_csv(profile: Profile) -> str:
    """Empty without detail."""
    rows = [
        (row.op_type, row.ops, *map(_decimal, (row.working_us, row.waiting_us, 100 * row.share)))
        for row in inner_types(profile)
    ]
    return _csv(INNER_TYPES, rows)


def waits_csv(profile: Profile) -> str:
    """Empty without detail."""
    rows = [
        (profile.kernels[row.kernel].name, row.op, row.where, row.waited_for, row.count,
         _decimal(row.total_us), _decimal(row.longest_us))
        for row in ranked_waits(profile)
    ]  # fmt: skip
    return _csv(WAITS, rows)


def _decimal(value: float) -> str:
    """Never with an exponent."""
    return f"{value:.3f}"


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
