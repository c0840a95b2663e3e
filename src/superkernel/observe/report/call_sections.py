"""observe.report.call_sections: the profiles of a report -> its tables of calls, scopes, inner op types and waits."""

from __future__ import annotations

from collections.abc import Sequence

from ..calls import CallKind, scope_times
from ..compare import percent_less
from ..core_time import InnerTypeRow
from ..waits import NOT_KNOWN, ranked_waits
from .data import ReportData, ReportedRun
from .markup import Cell, Column, chart, paragraph, table
from .shown_calls import KindPair, kind_pairs
from .units import UNKNOWN, change_text, percent_text, time_text

MOST_WAITS = 200  # rows of the table, the longest first
_NO_DETAIL = "What cores did was not recorded: record with sk.profile(dir, detail=True), or superkernel trace."


def calls_html(data: ReportData) -> str:
    """Per kind of calls and run: median, p99, slowest, and what the host takes."""
    pairs = kind_pairs(data)
    if not pairs:
        return paragraph("No launch was recorded.", "absent")
    titles = ("calls", "median", "99 % within", "slowest", "fastest", "launches per call", "host between launches",
              "gap before a call")  # fmt: skip
    columns = [Column("call of"), Column("run"), *(Column(title, True) for title in titles)]
    columns += [Column("median against before", True)] if len(data.runs) == 2 else []
    rows = [row for pair in pairs for row in _kind_rows(data, pair)]
    drawn = any(pair.most_calls > 1 for pair in pairs[:1])
    picture = chart("calls", 0, f"Time of each call of {pairs[0].name}") if drawn else ""
    return picture + table(columns, rows, "Calls: one run of a compiled graph, or of a super kernel")


def _kind_rows(data: ReportData, pair: KindPair) -> list[list[str | Cell]]:
    rows = []
    for run, kind in zip(data.runs, pair.kinds, strict=True):
        if kind is None:
            continue
        times = kind.times
        timed = (times.median, times.p99, times.slowest, times.fastest)
        cells: list[str | Cell] = [pair.name, run.title, Cell(f"{len(kind.calls):,}", len(kind.calls))]
        cells += [_time(us, data) for us in timed]
        cells += [Cell(f"{kind.launches:g}", kind.launches), _time(kind.host_us, data), _time(kind.before_us, data)]
        if len(data.runs) == 2:
            cells.append(_against_before(pair.kinds[0], kind, run is data.runs[1]))
        rows.append(cells)
    return rows


def _against_before(before: CallKind | None, kind: CallKind, is_after: bool) -> Cell:
    if before is None or not is_after:
        return Cell("", None)
    less = percent_less(before.times.median, kind.times.median)
    return Cell(change_text(less), less)


def scopes_html(data: ReportData) -> str:
    """Scopes per call, before and after."""
    runs = [scope_times(run.profile) for run in data.runs]
    names = dict.fromkeys(name for found in runs for name in found)
    if not names:
        return paragraph("No launch was recorded.", "absent")
    columns = [Column("scope")]
    for run in data.runs:
        columns += [Column(f"launches, {run.title}", True), Column(f"time, {run.title}", True)]
    columns += [Column("change", True)] if len(data.runs) == 2 else []
    rows = []
    for name in names:
        times = [found.get(name) for found in runs]
        cells: list[str | Cell] = [name]
        for time in times:
            count = Cell(UNKNOWN, None) if time is None else Cell(f"{time.launches:g}", time.launches)
            cells += [count, _time(None if time is None else time.time_us, data)]
        if len(data.runs) == 2:
            first, second = times
            less = None if first is None or second is None else percent_less(first.time_us, second.time_us)
            cells.append(Cell(change_text(less), less))
        rows.append(cells)
    return table(columns, rows, "Scopes: launches and their time, per call")


def inner_types_html(data: ReportData) -> str:
    """What cores worked on inside of super kernels."""
    found = [(run, run.inner_types) for run in data.runs]
    if not any(rows for _, rows in found):
        fused = any(kernel.fused for run in data.runs for kernel in run.profile.kernels)
        return paragraph(_NO_DETAIL if fused else "No super kernel was recorded.", "absent")
    titles = ("ops", "cores worked", "of all work", "cores waited")
    columns = (Column("op type"), Column("run"), *(Column(title, True) for title in titles))
    rows = [_inner_cells(run, row, data) for run, of_run in found for row in of_run]
    said = "Time is added over cores and launches. Waits are those before the ops of a type, and inside them."
    return paragraph(said) + table(columns, rows, "Time inside super kernels, by op type")


def _inner_cells(run: ReportedRun, row: InnerTypeRow, data: ReportData) -> Sequence[str | Cell]:
    share, waited = Cell(percent_text(row.share), row.share), _time(row.waiting_us, data)
    return row.op_type, run.title, Cell(f"{row.ops:,}", row.ops), _time(row.working_us, data), share, waited


def waits_html(data: ReportData) -> str:
    """The longest waits, with the op or event whose signal ended them."""
    found = [(run, row) for run in data.runs for row in ranked_waits(run.profile)]
    if not found:
        spans = any(run.has_spans for run in data.runs)
        return paragraph("No core waited." if spans else _NO_DETAIL, "absent")
    found.sort(key=lambda pair: -pair[1].total_us)
    titles = ("run", "super kernel", "op", "where it waited", "waited for")
    columns = (*map(Column, titles), *(Column(title, True) for title in ("waits", "total", "longest")))
    rows: list[Sequence[str | Cell]] = []
    for run, row in found[:MOST_WAITS]:
        kernel = run.kernel_titles[row.kernel]
        waited_for = row.waited_for if row.waited_for != NOT_KNOWN else UNKNOWN
        times = _time(row.total_us, data), _time(row.longest_us, data)
        rows.append((run.title, kernel, row.op, row.where, waited_for, Cell(f"{row.count:,}", row.count), *times))
    more = len(found) - MOST_WAITS
    cut = paragraph(f"{more:,} shorter ones are left out; waits.csv has all.", "absent") if more > 0 else ""
    said = (
        f"Total is added over cores and launches. {UNKNOWN}: the signals had been given already, so that nothing "
        "was waited for, or what was waited for is not known."
    )
    return paragraph(said) + table(columns, rows, "Waits, the longest first") + cut


def _time(us: float | None, data: ReportData) -> Cell:
    return Cell(time_text(us, data.clock), us)
