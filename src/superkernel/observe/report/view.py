"""observe.report.view: the profiles of a report -> what its scripts draw, as one small JSON object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...plan.steps import SpanKind
from ..profile import SUPER_KERNEL, ProfiledKernel
from .data import ReportData, ReportedRun
from .figures import by_type, op_rows
from .graph_layout import lay_out

# More would make a page of tens of megabytes; the tables and the trace have them all.
MOST_LAUNCHES = 20_000
MOST_SPANS = 50_000
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
    bars = [
        {"type": types.number(row.type), "time": [round(us, _DIGITS) for us in row.time_us], "count": row.count}
        for row in rows
    ]
    return {
        "runs": [run.title for run in data.runs],
        "bars": bars,
        "timelines": [_timeline(run, types) for run in data.runs],
        "graphs": [_graph(kernel, types) for run in data.runs for kernel in run.profile.kernels],
        "roofline": [_roofline(run) for run in data.runs],
        "types": types.texts,  # last: all of the above add to it
    }


def cut_short(run: ReportedRun) -> tuple[str, ...]:
    """What the timeline leaves out, in words."""
    spans = sum(len(launch.spans) for launch in run.detailed)
    limits = (("launches", len(run.profile.launches), MOST_LAUNCHES), ("spans", spans, MOST_SPANS))
    return tuple(
        f"Only the first {limit:,} of {count:,} {what} are drawn; trace.json of a profile has all of them."
        for what, count, limit in limits
        if count > limit
    )


def _timeline(run: ReportedRun, types: _TextTable) -> dict[str, Any]:
    names, kinds = _TextTable(), list(SpanKind)
    op_types = {(k, op.name): op.type for k, kernel in enumerate(run.profile.kernels) for op in kernel.ops}
    launches = sorted(run.profile.launches, key=lambda launch: launch.begin_ns)[:MOST_LAUNCHES]
    spans = [(launch, span) for launch in run.detailed for span in launch.spans]
    spans = sorted(spans, key=lambda pair: pair[1].begin_ns)[:MOST_SPANS]
    cores = sorted({span.core for _, span in spans})
    row_of = {core: row for row, core in enumerate(cores)}

    def us(ns: float) -> float:
        return round((ns - run.begin_ns) / 1000, _DIGITS)

    drawn_spans = []
    for launch, span in spans:
        launch_type = "op" if launch.type == SUPER_KERNEL else launch.type
        op_type = op_types.get((launch.kernel, span.op)) if launch.kernel is not None and span.op else None
        op, type_number = names.number(span.op or ""), types.number(op_type or launch_type)
        times = us(span.begin_ns), us(span.end_ns)
        title = names.number(run.launch_title(launch))
        drawn_spans.append((row_of[span.core], *times, kinds.index(span.what), op, type_number, title))
    drawn_launches = []
    for launch in launches:
        numbers = names.number(launch.name), types.number(launch.type), names.number(launch.scope)
        drawn_launches.append((us(launch.begin_ns), us(launch.end_ns), *numbers))
    rows = [run.core_name(core) for core in cores]
    return {"names": names.texts, "cores": rows, "kinds": kinds, "launches": drawn_launches, "spans": drawn_spans}


def _graph(kernel: ProfiledKernel, types: _TextTable) -> dict[str, Any]:
    number = {op.name: index for index, op in enumerate(kernel.ops)}
    layout = lay_out(list(number), kernel.edges)
    return {
        "ops": [
            {"name": op.name, "type": types.number(op.type or "op"), "x": x, "y": y, "blocks": op.blocks}
            | ({"origin": op.origin} if op.origin else {})
            for op, (x, y) in zip(kernel.ops, layout.points, strict=True)
        ],
        "passed": layout.passed,
        "edges": [
            (number[edge.producer], number[edge.consumer], edge.sync.value, edge.reasons, way)
            for edge, way in zip(kernel.edges, layout.ways, strict=True)
        ],
    }


def _roofline(run: ReportedRun) -> dict[str, Any]:
    points = [
        (row.bytes_moved, _significant(row.bytes_per_s / 1e9), _significant(row.time_us), row.name, row.kernel)
        for row in op_rows(run)
        if row.bytes_moved and row.bytes_per_s and row.time_us
    ]
    roof = run.profile.read_bytes_per_s
    return {"roof": None if roof is None else _significant(roof / 1e9), "points": points}


def _significant(value: float) -> float:
    return float(f"{value:.5g}")
