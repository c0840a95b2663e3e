"""observe.report.verdict: the profiles of a report -> what the page says first, and the machine it says last."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import counted
from ...model.notebook_html import escaped
from ..compare import percent_less
from .data import ReportData, ReportedRun
from .figures import core_shares
from .markup import Column, paragraph, table, with_units
from .shown_calls import KindPair, kind_pairs
from .units import change_text, percent_text, rate_text, time_text


def verdict_html(data: ReportData) -> str:
    """The verdict, what speaks against it, and the numbers behind it."""
    cards = "".join(
        f'<div class="card"><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>'
        f'<dd class="note">{with_units(note)}</dd></div>'
        for name, value, note in _cards(data)
    )
    warnings = "".join(paragraph(f"Warning: {warning}", "warning") for warning in data.warnings)
    notes = [*data.notes, *(f"{run.title}: {note}" for run in data.runs for note in run.notes)]
    said = "<ul>" + "".join(f"<li>{escaped(note)}</li>" for note in notes) + "</ul>" if notes else ""
    return f'{paragraph(verdict(data), "verdict")}\n{warnings}<dl class="cards">{cards}</dl>\n{said}'


def verdict(data: ReportData) -> str:
    """One sentence."""
    empty = [run.title for run in data.runs if not run.profile.launches]
    if empty:
        return f"{' and '.join(empty)}: nothing was launched, so there is nothing to compare."
    pair = kind_pairs(data)[0]
    if len(data.runs) == 1:
        return _verdict_on_one(data, pair)
    before, after = pair.kinds
    if before is None or after is None or before.signature != after.signature:
        first, last = (run.profile.total_us for run in data.runs)
        change = change_text(percent_less(first, last))
        times = f"{time_text(first, data.clock)} before, {time_text(last, data.clock)} after"
        return f"The runs have no call in common. Time in all launches: {change} ({times})."
    change = change_text(percent_less(before.times.median, after.times.median))
    times = " before, ".join(time_text(kind.times.median, data.clock) for kind in (before, after))
    return (
        f"A call of {pair.name} takes {_more_or_less(change)}: {times} after ({_medians(before.calls, after.calls)})."
    )


def _verdict_on_one(data: ReportData, pair: KindPair) -> str:
    (kind,) = pair.kinds
    assert kind is not None
    median, p99, slowest = (time_text(us, data.clock) for us in (kind.times.median, kind.times.p99, kind.times.slowest))
    launches = f"{kind.launches:g} {'launch' if kind.launches == 1 else 'launches'}"
    if len(kind.calls) == 1:
        return f"One call of {pair.name}, {launches}, took {median}."
    return (
        f"A call of {pair.name}, {launches}, takes {median} "
        f"(median of {len(kind.calls):,} calls; 99 % within {p99}, slowest {slowest})."
    )


def _more_or_less(change: str) -> str:
    """'25.0 % less' -> '25.0 % less time'."""
    return "as long as before" if change == "unchanged" else f"{change} time"


def _medians(before: tuple[object, ...], after: tuple[object, ...]) -> str:
    if len(before) == len(after):
        return "one call each" if len(before) == 1 else f"medians of {len(before):,} calls each"
    return f"medians of {len(before):,} and {len(after):,} calls"


def _cards(data: ReportData) -> Iterator[tuple[str, str, str]]:
    first, last = data.runs[0], data.runs[-1]
    before_us, after_us = first.profile.total_us, last.profile.total_us
    before, after = len(first.profile.launches), len(last.profile.launches)
    if len(data.runs) == 1:
        yield "Time in launches", time_text(after_us, data.clock), last.title
        yield "Launches", f"{after:,}", last.title
    elif before and after:
        times = f"{time_text(before_us, data.clock)} before, {time_text(after_us, data.clock)} after"
        yield "Time in launches", change_text(percent_less(before_us, after_us)), times
        yield "Launches", change_text(percent_less(before, after)), f"{before:,} before, {after:,} after"
    yield from _host_card(data)
    if fused := [kernel for kernel in last.profile.kernels if kernel.fused]:
        yield "Super kernels", f"{len(fused):,}", f"{sum(len(kernel.ops) for kernel in fused):,} ops inside"
    if shares := core_shares(last):
        idle = max(0.0, 1 - shares.working - shares.waiting)
        inside = time_text(shares.elapsed_us, data.clock)  # a launch is longer: it begins with the call of the run time
        where = f"{last.title}, {counted(shares.cores, 'core')}, {inside} inside of super kernels"
        note = f"{where}; {percent_text(shares.waiting)} waiting, {percent_text(idle)} between ops"
        yield "Cores at work", percent_text(shares.working), note


def _host_card(data: ReportData) -> Iterator[tuple[str, str, str]]:
    """What the host takes between the launches of a call."""
    kinds = [run.calls[0] for run in data.runs if run.calls]
    if len(kinds) == len(data.runs) and any(kind.launches > 1 for kind in kinds):
        note = "in a call, median" if len(kinds) == 1 else f"in a call, median; {time_text(kinds[0].host_us)} before"
        yield "Host between launches", time_text(kinds[-1].host_us, data.clock), note


def machine_html(data: ReportData) -> str:
    """One row per fact, one column per run."""
    facts = [_facts(run) for run in data.runs]
    names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    if not names:
        return paragraph("Nothing was recorded about the machine.", "absent")
    rows = [(name, *(of_run.get(name, "") for of_run in facts)) for name in names]
    return table((Column("machine"), *(Column(run.title) for run in data.runs)), rows, "Machine")


def _facts(run: ReportedRun) -> dict[str, str]:
    facts = {name: str(value) for name, value in run.profile.machine.items()}
    if (load := run.profile.load) is not None:
        facts["busy with other programs"] = f"{load.others:.2f} of {load.processors} processors"
    if (rate := run.profile.read_bytes_per_s) is not None:
        facts["measured read bandwidth"] = rate_text(rate)
    return facts
