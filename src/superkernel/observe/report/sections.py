"""observe.report.sections: the profiles of a report -> its sections, as HTML that is complete without a script.

Charts are drawn into the elements with `data-chart`; all numbers that they show are in tables as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...model.notebook_html import escaped
from ..profile import ProfiledKernel
from .call_sections import calls_html, inner_types_html, scopes_html, waits_html
from .data import ReportData, ReportedRun
from .figures import by_type, op_rows
from .markup import Cell, Column, chart, folded, listing, paragraph, table
from .shown_calls import Choice, choices
from .units import bytes_text, percent_text, rate_text, time_text
from .verdict import machine_html, verdict_html
from .view import cut_short

MOST_TEXT = 400_000  # characters of one kind of listing per report
_KEYS = "Zoom: wheel, or + and -. Move: drag, or arrow keys. Everything again: 0."
_BUTTONS = (  # of a timeline: what it does, its name, its sign
    ("in", "zoom in", "+"), ("out", "zoom out", "\N{MINUS SIGN}"), ("left", "earlier", "←"), ("right", "later", "→"),
    ("all", "show all", "All"),
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    content: str  # HTML

    @property
    def html(self) -> str:
        return (
            f'<section id="{self.id}" aria-labelledby="{self.id}-title">\n'
            f'<h2 id="{self.id}-title">{escaped(self.title)}</h2>\n{self.content}\n</section>'
        )


def sections(data: ReportData) -> tuple[Section, ...]:
    bars = "Before and after" if len(data.runs) == 2 else "Time by op type"
    return (
        Section("summary", "Verdict", verdict_html(data)),
        Section("calls", "Calls", calls_html(data)),
        Section("scopes", "Scopes", scopes_html(data)),
        Section("bars", bars, _bars(data)),
        Section("inner", "Inside super kernels", inner_types_html(data)),
        Section("waits", "Waits", waits_html(data)),
        Section("timeline", "Timeline", _timelines(data)),
        Section("graph", "Ops and synchronisation", _graphs(data)),
        Section("plan", "Plan", _texts(data, "plan", "No plan was recorded.")),
        Section("source", "Emitted source", _texts(data, "source", "No emitted source was recorded.")),
        Section("splits", "Where super kernels ended", _splits(data)),
        Section("roofline", "Roofline", _roofline(data)),
        Section("machine", "Machine", machine_html(data)),
    )


def _bars(data: ReportData) -> str:
    rows = by_type(data)
    if not rows:
        return paragraph("No launch was recorded.", "absent")
    columns = [Column("op type")]
    for run in data.runs:
        columns += [Column(f"launches, {run.title}", True), Column(f"total time, {run.title}", True)]
    if len(data.runs) == 2:
        columns.append(Column("difference", True))
    cells = []
    for row in rows:
        line: list[str | Cell] = [row.type]
        for count, time_us in zip(row.count, row.time_us, strict=True):
            line += [Cell(f"{count:,}", count), Cell(time_text(time_us, data.clock), time_us)]
        if len(data.runs) == 2:
            less = row.time_us[1] - row.time_us[0]
            line.append(Cell(("+" if less > 0 else "") + time_text(less, data.clock), less))
        cells.append(line)
    choice = (
        '<label>Show <select id="bars-metric"><option value="time">total time</option>'
        '<option value="count">number of launches</option></select></label>'
    )
    charts = chart("totals", 0, "Total per run, by op type") + chart("types", 0, "Each op type, per run")
    shown = table(columns, cells, "Launches by op type")
    return f'<div class="tools">{choice}</div>{charts}{folded("All numbers", shown)}'


def _timelines(data: ReportData) -> str:
    shown = choices(data)
    drawn = [bool(run.profile.launches) for run in data.runs]
    tools = ""
    if len(shown) > 1:
        options = "".join(f'<option value="{at}">{escaped(choice.label)}</option>' for at, choice in enumerate(shown))
        tools += f'<label>Call <select id="timeline-call">{options}</select></label>'
    if drawn == [True, True]:
        tools += '<label><input type="checkbox" id="timeline-shared"> one scale for both runs</label>'
    tools = f'<div class="tools">{tools}</div>\n' if tools else ""
    return tools + "\n".join(_timeline(data, number, shown) for number in range(len(data.runs)))


def _timeline(data: ReportData, number: int, shown: Sequence[Choice]) -> str:
    run = data.runs[number]
    title = f"<h3>{escaped(run.title)}</h3>"
    if not run.profile.launches:
        return title + paragraph("Nothing was recorded: no launch, and nothing inside of one.", "absent")
    notes = "".join(paragraph(note, "absent") for note in cut_short(run, [choice.calls[number] for choice in shown]))
    if not run.has_spans:
        remedy = "recorded with sk.profile(dir, detail=True), or profiling=1"
        notes += paragraph(f"Launches only: what each core did is {remedy}.", "absent")
    buttons = "".join(
        f'<button type="button" data-timeline="{number}" data-do="{do}" aria-label="{label}">{sign}</button>'
        for do, label, sign in _BUTTONS
    )
    range_shown = f'<output id="timeline-{number}-range" aria-live="polite"></output>'
    hint = f'<span class="hint" id="timeline-{number}-keys">{escaped(_KEYS)}</span>'
    picture = chart("timeline", number, f"What each core did: {run.title}", f"timeline-{number}-keys")
    return f'{title}{notes}<div class="tools">{buttons}{range_shown}{hint}</div>{picture}'


def _graphs(data: ReportData) -> str:
    kernels = [kernel for _, kernel in _kernels(data)]
    if not any(kernel.ops for kernel in kernels):
        return paragraph("No super kernel was recorded.", "absent")
    drawn = [number for number, kernel in enumerate(kernels) if kernel.ops]
    first = next((number for number in drawn if kernels[number].fused), drawn[0])
    options = "".join(
        f'<option value="{number}"{" selected" if number == first else ""}>{escaped(title)}</option>'
        for number, (title, kernel) in enumerate(_kernels(data))
        if kernel.ops
    )
    choice = f'<label>Super kernel <select id="graph-kernel">{options}</select></label>'
    implied = '<label><input type="checkbox" id="graph-implied"> edges that others imply (none)</label>'
    key = (
        '<dl class="key">'
        "<dt>none</dt><dd>implied by another edge</dd><dt>local</dt><dd>both sides on one core</dd>"
        "<dt>near</dt><dd>both sides in one group of cores</dd>"
        "<dt>flag</dt><dd>one core to wait for</dd><dt>counter</dt><dd>several cores to wait for</dd>"
        "<dt>barrier</dt><dd>all wait for all</dd><dt>lock</dt><dd>waits for a tiling</dd></dl>"
    )
    edges = [
        (title, edge.producer, edge.consumer, edge.sync.value, "; ".join(edge.reasons))
        for title, kernel in _kernels(data)
        for edge in kernel.edges
    ]
    columns = tuple(map(Column, ("super kernel", "producer", "consumer", "sync", "because")))
    listed = folded("All edges", table(columns, edges, "Dependencies")) if edges else ""
    picture = chart("graph", 0, "Ops, and how each waits for those before it")
    return f'<div class="tools">{choice}{implied}</div>{picture}{key}{listed}'


def _kernels(data: ReportData) -> Iterator[tuple[str, ProfiledKernel]]:
    """Every super kernel with its title on the page."""
    for run in data.runs:
        for title, kernel in zip(run.kernel_titles, run.profile.kernels, strict=True):
            scope = f" (scope {kernel.scope})" if kernel.scope and kernel.scope != title else ""
            yield (f"{run.title}: " if len(data.runs) == 2 else "") + title + scope, kernel


def _texts(data: ReportData, which: str, absent: str) -> str:
    """One folded listing per super kernel; equal texts are shown once."""
    shown: dict[str, str] = {}
    pieces = []
    room = MOST_TEXT
    for title, kernel in _kernels(data):
        text = kernel.plan if which == "plan" else kernel.source
        if not text.strip():
            continue
        if text in shown:
            pieces.append(paragraph(f"{title}: the same as {shown[text]}."))
            continue
        shown[text] = title
        options = f", options {kernel.options}" if kernel.options else ""
        heading = f"{title}: {len(text.splitlines()):,} lines{options}"
        if room <= 0:
            pieces.append(paragraph(f"{heading}; left out, or this page would be too large.", "absent"))
            continue
        content = listing(text[:room], title)
        if len(text) > room:
            content += paragraph(f"Cut here: {len(text) - room:,} more characters.", "absent")
        room -= len(text)
        pieces.append(folded(heading, content, opened=which == "plan" and not pieces))
    return "\n".join(pieces) or paragraph(absent, "absent")


def _splits(data: ReportData) -> str:
    rows = list(dict.fromkeys(row for run in data.runs for row in _split_rows(run)))
    if not rows:
        return paragraph("Nothing was recorded about how scopes were split.", "absent")
    titles = ("run", "scope", "became", "why it ended there", "ops", "its last line")
    return table(tuple(map(Column, titles)), rows, "Parts of scopes, and why each ended")


def _split_rows(run: ReportedRun) -> Iterator[tuple[str, ...]]:
    """Run, scope, whether it was fused, the reason, ops, and the last source line of each part of a scope."""
    kernels = run.profile.kernels
    for kernel in kernels:
        if kernel.reason:
            last_line = next((op.origin for op in reversed(kernel.ops) if op.origin), "")
            became, ops = "fused" if kernel.fused else "not fused", ", ".join(op.name for op in kernel.ops)
            yield run.title, kernel.scope, became, kernel.reason, ops, last_line
    for kernel in kernels:
        for description in kernel.unfusible:
            yield run.title, kernel.scope, "not fused", description, "", ""
    for launch in run.profile.launches:
        if launch.reason:
            yield run.title, launch.scope, "not fused", launch.reason, launch.name, ""


def _roofline(data: ReportData) -> str:
    rows = [(run, row) for run in data.runs for row in op_rows(run)]
    if not rows:
        return paragraph("No op was recorded.", "absent")
    missing = sum(row.bytes_per_s is None for _, row in rows)
    unknown = f"{missing:,} of {len(rows):,} ops are not drawn: their bytes or their time are not known."
    notes = paragraph(unknown, "absent") if missing else ""
    if all(run.profile.read_bytes_per_s is None for run in data.runs):
        notes += paragraph("The memory's bandwidth was not measured, so there is no roof to compare with.", "absent")
    drawn = missing < len(rows)
    label = "Bytes that each op moves, and how fast, and the measured bandwidth"
    picture = chart("roofline", 0, label) if drawn else ""
    said = "Ops above the line found their data in a cache. Ops far below it compute, wait, or are too short to matter."
    columns = (
        *map(Column, ("run", "super kernel", "op", "op type")),
        *(Column(title, True) for title in ("seen", "time", "bytes moved", "speed", "of the bandwidth")),
    )
    cells: list[Sequence[str | Cell]] = []
    for run, row in rows:
        moved = Cell(bytes_text(row.bytes_moved), row.bytes_moved)
        speed = Cell(rate_text(row.bytes_per_s), row.bytes_per_s), Cell(percent_text(row.share), row.share)
        time = Cell(f"{row.runs:,}", row.runs), Cell(time_text(row.time_us, data.clock), row.time_us)
        cells.append((run.title, row.kernel, row.name, row.type, *time, moved, *speed))
    listed = folded("All ops", table(columns, cells, "Ops: time, bytes and speed"), opened=not drawn)
    return notes + (paragraph(said) if drawn else "") + picture + listed
