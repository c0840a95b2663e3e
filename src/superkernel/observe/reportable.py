"""observe.reportable: one profile, or two -> what a report shows of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from .compare import Comparison
from .facts import KernelFact, Profile
from .report import Edge, Fact, Kernel, Launch, Op, ReportData, Run, Span, SpanKind, Split, Sync

MOST_LAUNCHES = 2000  # with what cores did in them: a page of more is too slow to look at


def of_one(profile: Profile, title: str) -> ReportData:
    return ReportData(title, (run_of(profile, title),), created=_when(profile))


def of_two(comparison: Comparison) -> ReportData:
    names = [Path(title).name or title for title in comparison.titles]
    runs = (run_of(comparison.before, names[0]), run_of(comparison.after, names[1]))
    title = f"{names[0]} and {names[1]}"
    return ReportData(title, runs, created=_when(comparison.after), notes=tuple(comparison.notes))


def run_of(profile: Profile, title: str) -> Run:
    """Times are counted from the first launch: before it a script may have compiled for minutes."""
    shown = profile.launches[:MOST_LAUNCHES]
    begins = [*(one.start_us for one in profile.launches), *(one.begin_us for one in profile.spans)]
    first = min(begins, default=0.0)
    launches = tuple(
        Launch(one.name, one.type, one.start_us - first, one.duration_us, one.scope) for one in profile.launches
    )
    titled = _titled(profile)
    titles = list(titled)
    names = [titles[one.kernel] if one.kernel >= 0 else one.name for one in shown]
    spans = tuple(
        Span(one.core, one.op, SpanKind(one.kind), one.begin_us - first, one.end_us - first, names[one.launch])
        for one in profile.spans
        if one.launch < len(shown)
    )
    notes = list(profile.notes)
    if len(spans) < len(profile.spans):
        notes.append(f"the timeline shows what cores did in the first {len(shown)} launches")
    if not profile.spans:
        notes.append("recorded without detail: what each core did is not known (detail=True, or superkernel trace)")
    machine = tuple(Fact(name, str(value)) for name, value in profile.machine.items())
    kernels = tuple(_kernel(one, title) for title, one in titled.items())
    rate = profile.read_bytes_per_s
    return Run(title, machine, launches, spans, kernels, _splits(profile), rate, tuple(notes))


def _titled(profile: Profile) -> Mapping[str, KernelFact]:
    """One of each name: scopes that are called alike are told apart by a number."""
    found: dict[str, KernelFact] = {}
    for kernel in profile.kernels:
        name, number = kernel.name, 2
        while name in found:
            name, number = f"{kernel.name} ({number})", number + 1
        found[name] = kernel
    return found


def _kernel(kernel: KernelFact, name: str) -> Kernel:
    ops = tuple(Op(o.name, o.type, o.blocks, o.bytes_read, o.bytes_written, None, o.origin) for o in kernel.ops)
    edges = tuple(Edge(one.producer, one.consumer, Sync(one.sync), one.reasons) for one in kernel.edges)
    return Kernel(name, kernel.scope, kernel.options, ops, edges, kernel.plan, kernel.source, kernel.fused)


def _splits(profile: Profile) -> tuple[Split, ...]:
    found = [
        Split(kernel.scope, kernel.reason, kernel.fused, tuple(op.name for op in kernel.ops), _last_line(kernel))
        for kernel in profile.kernels
        if kernel.reason
    ]
    found += [Split(kernel.scope, told, False) for kernel in profile.kernels for told in kernel.unfusible]
    found += [Split(one.scope, one.reason, False, (one.name,)) for one in profile.foreign]
    return tuple(dict.fromkeys(found))


def _last_line(kernel: KernelFact) -> str:
    return next((op.origin for op in reversed(kernel.ops) if op.origin), "")


def _when(profile: Profile) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(profile.began_ns / 1e9))
