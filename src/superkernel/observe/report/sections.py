"""observe.report.sections: the profiles of a report -> its sections, as HTML that is complete without a script.

Charts are drawn into the elements with `data-chart`; all numbers that they show are in tables as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..compare import percent_less
from ..profile import ProfiledKernel
from .data import ReportData, ReportedRun
from .figures import by_type, core_shares, op_rows
from .markup import Column, escaped, folded, listing, paragraph, table
from .units import bytes_text, change_text, percent_text, rate_text, time_text
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
        Section("summary", "Summary", _summary(data)),
        Section("bars", bars, _bars(data)),
        Section("timeline", "Timeline", _timelines(data)),
        Section("graph", "Ops and synchronisation", _graphs(data)),
        Section("plan", "Plan", _texts(data, "plan", "No plan was recorded.")),
        Section("source", "Emitted source", _texts(data, "source", "No emitted source was recorded.")),
        Section("splits", "Where super kernels ended", _splits(data)),
        Section("roofline", "Roofline", _roofline(data)),
    )


def _summary(data: ReportData) -> str:
    cards = "".join(
        f'<div class="card"><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>'
        f'<dd class="note">{escaped(note)}</dd></div>'
        for name, value, note in _cards(data)
    )
    notes = [*data.notes, *(f"{run.title}: {note}" for run in data.runs for note in run.notes)]
    said = "<ul>" + "".join(f"<li>{escaped(note)}</li>" for note in notes) + "</ul>" if notes else ""
    return f'<dl class="cards">{cards}</dl>\n{said}\n{_machines(data)}'


def _cards(data: ReportData) -> Iterator[tuple[str, str, str]]:
    first, last = data.runs[0], data.runs[-1]
    before_us, after_us = first.profile.total_us, last.profile.total_us
    before, after = len(first.profile.launches), len(last.profile.launches)
    if len(data.runs) == 1:
        yield "Time in launches", time_text(after_us), last.title
        yield "Launches", f"{after:,}", last.title
    else:
        times = f"{time_text(before_us)} before, {time_text(after_us)} after"
        yield "Time in launches", change_text(percent_less(before_us, after_us)), times
        yield "Launches", change_text(percent_less(before, after)), f"{before:,} before, {after:,} after"
    if fused := [kernel for kernel in last.profile.kernels if kernel.fused]:
        yield "Super kernels", f"{len(fused):,}", f"{sum(len(kernel.ops) for kernel in fused):,} ops inside"
    if shares := core_shares(last):
        idle = max(0.0, 1 - shares.working - shares.waiting)
        where = f"{last.title}, inside of launches, {shares.cores} {'core' if shares.cores == 1 else 'cores'}"
        note = f"{where}; {percent_text(shares.waiting)} waiting, {percent_text(idle)} between ops"
        yield "Cores at work", percent_text(shares.working), note


def _machines(data: ReportData) -> str:
    """One row per fact, one column per run."""
    facts = [dict(run.profile.machine) for run in data.runs]
    for run, of_run in zip(data.runs, facts, strict=True):
        if (rate := run.profile.read_bytes_per_s) is not None:
            of_run["measured read bandwidth"] = rate_text(rate)
    names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    if not names:
        return paragraph("Nothing was recorded about the machine.", "absent")
    rows = [(name, *(str(of_run.get(name, "")) for of_run in facts)) for name in names]
    return table((Column("machine"), *(Column(run.title) for run in data.runs)), rows, "Machine")


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
        line = [row.type]
        for count, time_us in zip(row.count, row.time_us, strict=True):
            line += [f"{count:,}", time_text(time_us)]
        if len(data.runs) == 2:
            less = row.time_us[1] - row.time_us[0]
            line.append(("+" if less > 0 else "") + time_text(less))
        cells.append(line)
    choice = (
        '<label>Show <select id="bars-metric"><option value="time">total time</option>'
        '<option value="count">number of launches</option></select></label>'
    )
    charts = _chart("totals", 0, "Total per run, by op type") + _chart("types", 0, "Each op type, per run")
    shown = table(columns, cells, "Launches by op type")
    return f'<div class="tools">{choice}</div>{charts}{folded("All numbers", shown)}'


def _timelines(data: ReportData) -> str:
    drawn = [bool(run.profile.launches) for run in data.runs]
    shared = '<label><input type="checkbox" id="timeline-shared"> one scale for both runs</label>'
    tools = f'<div class="tools">{shared}</div>\n' if drawn == [True, True] else ""
    return tools + "\n".join(_timeline(number, run) for number, run in enumerate(data.runs))


def _timeline(number: int, run: ReportedRun) -> str:
    title = f"<h3>{escaped(run.title)}</h3>"
    if not run.profile.launches:
        return title + paragraph("Nothing was recorded: no launch, and nothing inside of one.", "absent")
    notes = "".join(paragraph(note, "absent") for note in cut_short(run))
    if not run.has_spans:
        remedy = "recorded with sk.profile(dir, detail=True), or profiling=1"
        notes += paragraph(f"Launches only: what each core did is {remedy}.", "absent")
    buttons = "".join(
        f'<button type="button" data-timeline="{number}" data-do="{do}" aria-label="{label}">{sign}</button>'
        for do, label, sign in _BUTTONS
    )
    shown = f'<output id="timeline-{number}-range" aria-live="polite"></output>'
    hint = f'<span class="hint" id="timeline-{number}-keys">{escaped(_KEYS)}</span>'
    chart = _chart("timeline", number, f"What each core did: {run.title}", f"timeline-{number}-keys")
    return f'{title}{notes}<div class="tools">{buttons}{shown}{hint}</div>{chart}'


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
    chart = _chart("graph", 0, "Ops, and how each waits for those before it")
    return f'<div class="tools">{choice}{implied}</div>{chart}{key}{listed}'


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
    chart = _chart("roofline", 0, "Bytes that each op moves, and how fast, and the measured bandwidth") if drawn else ""
    said = "Ops above the line found their data in a cache. Ops far below it compute, wait, or are too short to matter."
    columns = (
        *map(Column, ("run", "super kernel", "op", "op type")),
        *(Column(title, True) for title in ("seen", "time", "bytes moved", "speed", "of the bandwidth")),
    )
    cells = []
    for run, row in rows:
        moved, rate = bytes_text(row.bytes_moved), rate_text(row.bytes_per_s)
        numbers = (f"{row.runs:,}", time_text(row.time_us), moved, rate, percent_text(row.share))
        cells.append((run.title, row.kernel, row.name, row.type, *numbers))
    listed = folded("All ops", table(columns, cells, "Ops: time, bytes and speed"), opened=not drawn)
    return notes + (paragraph(said) if drawn else "") + chart + listed


def _chart(kind: str, number: int, label: str, described_by: str = "") -> str:
    """The element of a chart. The keyboard reaches it where keys do something."""
    keys = f' tabindex="0" aria-describedby="{described_by}"' if described_by else ""
    role = "group" if described_by else "img"
    return (
        f'<figure><div class="chart {kind}" id="{kind}-{number}" data-chart="{kind}" data-number="{number}" '
        f'role="{role}" aria-label="{escaped(label)}"{keys}></div>'
        f"<figcaption>{escaped(label)}</figcaption></figure>"
    )
