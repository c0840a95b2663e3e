"""observe.report.view: the profiles of a report -> what its scripts draw, as one small JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...plan.steps import SpanKind
from ..calls import ProfiledCall
from ..profile import SUPER_KERNEL, Clock, ProfiledKernel, ProfiledLaunch
from .data import ReportData, ReportedRun
from .figures import OpRow, by_type, op_rows
from .graph_layout import lay_out
from .shown_calls import choices, kind_pairs

# More would make a page of tens of megabytes; the tables and the trace have them all.
MOST_LAUNCHES = 20_000
MOST_SPANS = 60_000  # of one run, in all its choices together
MOST_CALLS_DRAWN = 5_000
_DIGITS = 3  # of a microsecond


@dataclass
class _TextTable:
    """Texts by number: a name that a thousand spans share is written once."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return self.numbers[text]


def view(data: ReportData) -> dict[str, Any]:
    """One JSON object with everything that is drawn."""
    rows = by_type(data)
    types = _TextTable()
    types.number(SUPER_KERNEL)  # always the first colour
    for row in rows:
        types.number(row.type)
    for run in data.runs:
        for inner in run.inner_types:
            types.number(inner.op_type)
    bars = [
        {"type": types.number(row.type), "time": [_scaled(us, data) for us in row.time_us], "count": row.count}
        for row in rows
    ]
    shown, ops = choices(data), [op_rows(run) for run in data.runs]
    return {
        "runs": [run.title for run in data.runs],
        "unit": "ticks" if data.clock is Clock.TICKS else "µs",
        "bars": bars,
        "calls": _calls(data),
        "choices": [choice.label for choice in shown],
        "timelines": [
            _Timeline(run, types).view([choice.calls[at] for choice in shown]) for at, run in enumerate(data.runs)
        ],
        "graphs": [
            _graph(kernel, types, times.get(title, {}), data)
            for run, times in zip(data.runs, map(_times_by_kernel, ops), strict=True)
            for title, kernel in zip(run.kernel_titles, run.profile.kernels, strict=True)
        ],
        "roofline": [_roofline(run, ops[at]) for at, run in enumerate(data.runs)],
        "types": types.texts,  # last: all of the above add to it
    }


def _scaled(us: float, data: ReportData) -> float:
    """In the unit of the page."""
    return round(1000 * us) if data.clock is Clock.TICKS else round(us, _DIGITS)


def cut_short(run: ReportedRun, chosen: Sequence[Sequence[ProfiledCall]]) -> tuple[str, ...]:
    """What the timeline of a run leaves out of the calls to choose from, in words."""
    shown = [[launch for call in calls for launch in call.launches] for calls in chosen]
    notes = []
    if (most := max(map(len, shown), default=0)) > MOST_LAUNCHES:
        notes.append(f"Only the first {MOST_LAUNCHES:,} of {most:,} launches are drawn")
    if (spans := sum(len(launch.spans) for launches in shown for launch in launches)) > MOST_SPANS:
        notes.append(f"Only {MOST_SPANS:,} of {spans:,} spans are drawn, those of whole launches")
    if (calls := sum(len(kind.calls) for kind in run.calls)) > (drawn := max(map(len, chosen), default=0)) > 1:
        notes.append(f"Of {calls:,} calls the first {drawn:,} are drawn together")
    return tuple(f"{note}; trace.json of a profile has all of them." for note in notes)


class _Timeline:
    """The timeline of one run, with its calls to choose from."""

    def __init__(self, run: ReportedRun, types: _TextTable) -> None:
        self._run, self._types, self._names = run, types, _TextTable()
        self._kinds, self._room = list(SpanKind), MOST_SPANS
        kernels = run.profile.kernels
        self._op_types = {(k, op.name): op.type for k, kernel in enumerate(kernels) for op in kernel.ops}

    def view(self, chosen: Sequence[Sequence[ProfiledCall]]) -> dict[str, Any]:
        cores = sorted(
            {span.core for calls in chosen for call in calls for launch in call.launches for span in launch.spans}
        )
        self._row_of = {core: row for row, core in enumerate(cores)}
        drawn = [self._choice(calls) for calls in chosen]
        rows = [self._run.core_name(core) for core in cores]
        return {"names": self._names.texts, "cores": rows, "kinds": self._kinds, "choices": drawn}

    def _choice(self, calls: Sequence[ProfiledCall]) -> dict[str, Any]:
        """Times count from the first launch, or from the first span where that is earlier."""
        launches = [launch for call in calls for launch in call.launches][:MOST_LAUNCHES]
        begins = [launch.begin_ns for launch in launches]
        begins += [span.begin_ns for launch in launches for span in launch.spans]
        zero = min(begins, default=0.0)
        drawn, spans = [], []
        for launch in launches:
            drawn.append(self._launch(launch, zero))
            if len(launch.spans) <= self._room:
                self._room -= len(launch.spans)
                spans += [self._span(launch, at, zero) for at in range(len(launch.spans))]
        return {"launches": sorted(drawn), "spans": sorted(spans, key=lambda span: span[1])}

    def _time(self, ns: float) -> float:
        if self._run.profile.clock is Clock.TICKS:
            return round(ns)
        return round(ns / 1000, _DIGITS)

    def _launch(self, launch: ProfiledLaunch, zero: float) -> tuple[float, ...]:
        names = self._names
        numbers = names.number(launch.name), self._types.number(launch.type), names.number(launch.scope)
        return (self._time(launch.begin_ns - zero), self._time(launch.end_ns - zero), *numbers)

    def _span(self, launch: ProfiledLaunch, at: int, zero: float) -> tuple[float, ...]:
        """Row, begin, end, kind, op, type, kernel; of a wait also: inside, what it waited for, and on which core."""
        span, names = launch.spans[at], self._names
        launch_type = "op" if launch.type == SUPER_KERNEL else launch.type
        op_type = self._op_types.get((launch.kernel, span.op)) if launch.kernel is not None and span.op else None
        op, type_number = names.number(span.op or ""), self._types.number(op_type or launch_type)
        times = self._time(span.begin_ns - zero), self._time(span.end_ns - zero)
        title = names.number(self._run.launch_title(launch))
        found = (self._row_of[span.core], *times, self._kinds.index(span.what), op, type_number, title)
        if not span.inside and span.waited_for is None:
            return found
        signalled_by = -1 if span.signalled_by is None else span.signalled_by
        return (*found, int(span.inside), names.number(span.waited_for or ""), signalled_by)


def _calls(data: ReportData) -> list[list[tuple[int, float]]]:
    """Per run, number and duration of the calls that took most time together."""
    pairs = kind_pairs(data)
    if not pairs:
        return [[] for _ in data.runs]
    found = []
    for kind in pairs[0].kinds:
        times = [(number, _scaled(call.duration_us, data)) for number, call in enumerate(kind.calls if kind else ())]
        if len(times) > MOST_CALLS_DRAWN:  # the slowest always
            times = sorted(sorted(times, key=lambda point: -point[1])[:MOST_CALLS_DRAWN])
        found.append(times)
    return found


def _times_by_kernel(rows: Sequence[OpRow]) -> dict[str, dict[str, float]]:
    """Kernel -> op -> its time, where it is known."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.time_us is not None:
            times.setdefault(row.kernel, {})[row.name] = row.time_us
    return times


def _graph(kernel: ProfiledKernel, types: _TextTable, times: Mapping[str, float], data: ReportData) -> dict[str, Any]:
    number = {op.name: index for index, op in enumerate(kernel.ops)}
    layout = lay_out(list(number), kernel.edges)
    return {
        "ops": [
            {"name": op.name, "type": types.number(op.type or "op"), "x": x, "y": y, "blocks": op.blocks}
            | ({"origin": op.origin} if op.origin else {})
            | ({"time": _scaled(time, data)} if (time := times.get(op.name)) is not None else {})
            for op, (x, y) in zip(kernel.ops, layout.points, strict=True)
        ],
        "passed": layout.passed,
        "edges": [
            (number[edge.producer], number[edge.consumer], edge.sync.value, edge.reasons, way)
            for edge, way in zip(kernel.edges, layout.ways, strict=True)
        ],
    }


def _roofline(run: ReportedRun, rows: Sequence[OpRow]) -> dict[str, Any]:
    points = [
        (row.bytes_moved, _significant(row.bytes_per_s / 1e9), _significant(row.time_us), row.name, row.kernel)
        for row in rows
        if row.bytes_moved and row.bytes_per_s and row.time_us
    ]
    roof = run.profile.read_bytes_per_s
    return {"roof": None if roof is None else _significant(roof / 1e9), "points": points}


def _significant(value: float) -> float:
    return float(f"{value:.5g}")
