"""observe.report.view: the data of a report -> what its scripts draw, as small as it can be said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .data import Kernel, ReportData, Run, SpanKind
from .figures import by_type, op_rows
from .layers import lay_out

# More would make a page of tens of megabytes; the tables and the trace have them all.
MOST_LAUNCHES = 20_000
MOST_SPANS = 50_000
SUPER_KERNEL = "SuperKernel"
_NANOSECOND = 3  # digits of a microsecond that are kept


@dataclass
class _Names:
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
    types = _Names()
    types.number(SUPER_KERNEL)  # always the first colour
    for row in rows:
        types.number(row.type)
    return {
        "runs": [run.title for run in data.runs],
        "bars": [{"type": types.number(row.type), "time": _all_short(row.time_us), "count": row.count} for row in rows],
        "timelines": [_timeline(run, types) for run in data.runs],
        "graphs": [_graph(kernel, types) for run in data.runs for kernel in run.kernels],
        "roofline": [_roofline(run) for run in data.runs],
        "types": types.texts,  # last: all of the above add to it
    }


def cut_short(run: Run) -> tuple[str, ...]:
    """What the timeline leaves out, in words."""
    limits = (("launches", len(run.launches), MOST_LAUNCHES), ("spans", len(run.spans), MOST_SPANS))
    return tuple(
        f"Only the first {limit:,} of {count:,} {what} are drawn; trace.json of a profile has all of them."
        for what, count, limit in limits
        if count > limit
    )


def _timeline(run: Run, types: _Names) -> dict[str, Any]:
    names = _Names()
    known = {(kernel.name, op.name): op.type for kernel in run.kernels for op in kernel.ops}
    launched = {launch.name: launch.type for launch in run.launches if launch.type != SUPER_KERNEL}
    launches = sorted(run.launches, key=lambda launch: launch.start_us)[:MOST_LAUNCHES]
    spans = sorted(run.spans, key=lambda span: span.begin_us)[:MOST_SPANS]
    cores = sorted({span.core for span in spans})
    row_of = {core: row for row, core in enumerate(cores)}
    kinds = [kind.value for kind in SpanKind]
    drawn_spans = [
        (
            row_of[span.core],
            _short(span.begin_us),
            _short(span.end_us),
            kinds.index(span.kind.value),
            names.number(span.op),
            types.number(known.get((span.kernel, span.op)) or launched.get(span.kernel) or "op"),
            names.number(span.kernel),
        )
        for span in spans
    ]
    drawn_launches = [
        (
            _short(launch.start_us),
            _short(launch.start_us + launch.duration_us),
            names.number(launch.name),
            types.number(launch.type),
            names.number(launch.scope),
            launch.count,
        )
        for launch in launches
    ]
    return {"names": names.texts, "cores": cores, "kinds": kinds, "launches": drawn_launches, "spans": drawn_spans}


def _graph(kernel: Kernel, types: _Names) -> dict[str, Any]:
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


def _roofline(run: Run) -> dict[str, Any]:
    points = [
        (row.bytes_moved, _significant(row.bytes_per_s / 1e9), _significant(row.time_us), row.name, row.kernel)
        for row in op_rows(run)
        if row.bytes_moved and row.bytes_per_s and row.time_us
    ]
    roof = run.read_bytes_per_s
    return {"roof": None if roof is None else _significant(roof / 1e9), "points": points}


def _short(us: float) -> float:
    return round(us, _NANOSECOND)


def _all_short(values: tuple[float, ...]) -> list[float]:
    return [_short(value) for value in values]


def _significant(value: float) -> float:
    return float(f"{value:.5g}")
