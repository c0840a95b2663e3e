"""observe.core_time: the spans of launches -> how long cores worked and waited: op by op, and by op type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..plan.spans import Span
from ..plan.steps import SpanKind
from .profile import Profile, ProfiledLaunch

WAITS = (SpanKind.WAIT, SpanKind.BARRIER, SpanKind.RANKS)
Interval = tuple[float, float]


@dataclass(frozen=True)
class OpTime:
    """One op in one launch. Waits are those before the op, and inside it: at its wait point or in sync_all."""

    begin_ns: float  # of its first core
    duration_ns: float  # to the end of its last core, without the time in which its cores only waited inside it
    longest_wait_ns: float  # of one core


@dataclass(frozen=True)
class InnerTypeRow:
    """The ops of one type inside of super kernels."""

    op_type: str
    ops: int  # how often such an op ran
    working_us: float  # added over cores
    waiting_us: float
    share: float  # of the working time of all types


def op_times(launch: ProfiledLaunch) -> dict[str, OpTime]:
    """The ops of a launch that were recorded, in the order of their end."""
    runs: dict[str, list[Span]] = defaultdict(list)
    waits: dict[str, list[Span]] = defaultdict(list)
    for span in launch.spans:
        if span.op is not None:
            if span.what is SpanKind.OP:
                runs[span.op].append(span)
            elif span.what in WAITS:
                waits[span.op].append(span)
    return {op: _op_time(spans, waits.get(op, ())) for op, spans in runs.items()}


def _op_time(runs: Sequence[Span], waits: Sequence[Span]) -> OpTime:
    begin, end = min([span.begin_ns for span in runs]), max([span.end_ns for span in runs])
    by_core: dict[int, float] = {}
    for span in waits:
        by_core[span.core] = by_core.get(span.core, 0.0) + span.end_ns - span.begin_ns
    longest = max(by_core.values(), default=0.0)
    inside = [span for span in waits if span.inside]
    if not inside:
        return OpTime(begin, end - begin, longest)
    work = [piece for run in runs for piece in _without(run, inside)]
    only_waiting = covered_ns(map(_interval, runs)) - covered_ns(work)
    return OpTime(begin, end - begin - only_waiting, longest)


def _interval(span: Span) -> Interval:
    return span.begin_ns, span.end_ns


def _without(run: Span, waits: Sequence[Span]) -> list[Interval]:
    """The parts of an op's span on one core in which it did not wait."""
    pieces, reached = [], run.begin_ns
    for wait in sorted((wait for wait in waits if wait.core == run.core), key=_interval):
        if run.begin_ns <= wait.begin_ns and wait.end_ns <= run.end_ns:
            pieces.append((reached, wait.begin_ns))
            reached = wait.end_ns
    return [*pieces, (reached, run.end_ns)]


def covered_ns(intervals: Iterable[Interval]) -> float:
    """The time that lies in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def inner_types(profile: Profile) -> list[InnerTypeRow]:
    """The ops inside of super kernels by type, the type that took most of the cores' time first."""
    types = [{op.name: op.type or op.name for op in kernel.ops} for kernel in profile.kernels]
    counts: dict[str, int] = defaultdict(int)
    working: dict[str, float] = defaultdict(float)
    waiting: dict[str, float] = defaultdict(float)
    for launch in profile.launches:
        if launch.kernel is None or not profile.kernels[launch.kernel].fused:
            continue
        type_of, seen = types[launch.kernel], set()
        for span in launch.spans:
            if span.op is None:
                continue
            length, kind = span.end_ns - span.begin_ns, type_of.get(span.op, span.op)
            if span.what is SpanKind.OP:
                working[kind] += length
                if span.op not in seen:  # on the first of its cores
                    seen.add(span.op)
                    counts[kind] += 1
            elif span.what in WAITS:
                waiting[kind] += length
                if span.inside:  # within the span of its op
                    working[kind] -= length
    total = sum(working.values())
    rows = [
        InnerTypeRow(
            kind, counts[kind], working[kind] / 1000, waiting[kind] / 1000, working[kind] / total if total else 0.0
        )
        for kind in counts
    ]
    return sorted(rows, key=lambda row: (-row.working_us, row.op_type))
