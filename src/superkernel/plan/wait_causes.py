"""plan.wait_causes: a plan and the spans of one launch -> the signal that each blocked wait waited for.

A wait names every signal that it needs; the one that came last ended it. A wait that found all its signals given did
not block, and has no cause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model.ranks import RankGroup
from . import Plan
from .spans import Span
from .steps import AwaitEvent, AwaitRanks, Barrier, Cores, Need, Point, Select, SpanKind, Wait

_Signal = tuple[float, str, int | None]  # when it was given at the latest, by which op or event, on which core


@dataclass(frozen=True)
class _BlockingStep:
    """A step at which the cores of an op may block."""

    cores: frozenset[int]
    needs: tuple[Need, ...] = ()
    barrier: Cores = ()
    outside: str = ""  # an event or a tiling, which a thread outside of the launch gives


class WaitCauses:
    """The waits of one plan; `explained` serves every launch of it."""

    def __init__(self, plan: Plan) -> None:
        self._names, self._group_of = plan.op_names, plan.group_of
        self._before: dict[str, list[_BlockingStep]] = defaultdict(list)
        self._inside: dict[str, list[_BlockingStep]] = defaultdict(list)
        self._ranks: dict[str, str] = {}  # op -> the ranks that it waits for
        for step in plan.steps:
            match step:
                case Wait(behind=False):
                    steps = self._inside if step.inside else self._before
                    steps[self._names[step.op]].append(_BlockingStep(frozenset(step.cores), step.needs))
                case Barrier(debug=False):
                    found = _BlockingStep(frozenset(step.cores), barrier=step.cores)
                    self._before[self._names[step.op]].append(found)
                case AwaitEvent():
                    found = _BlockingStep(frozenset(step.cores), outside=f"event {step.event}")
                    self._before[self._names[step.op]].append(found)
                case AwaitRanks():
                    before = self._ranks.get(self._names[step.op])
                    others = _other_ranks(step.group)
                    self._ranks[self._names[step.op]] = f"{before} and {others}" if before else others
                case Select():
                    found = _BlockingStep(frozenset(step.cores), outside=f"tiling of {self._names[step.op]}")
                    self._before[self._names[step.op]].append(found)

    def explained(self, spans: Sequence[Span]) -> Iterator[Span]:
        """The spans of one launch, in their order; waits that blocked have their cause."""
        launch = _LaunchTimes(spans)
        for span in spans:
            if span.op is not None and span.what is SpanKind.RANKS:
                yield replace(span, waited_for=self._ranks.get(span.op))
            elif span.op is None or span.what not in (SpanKind.WAIT, SpanKind.BARRIER):
                yield span
            elif span.what is SpanKind.BARRIER and span.inside:
                yield _caused(span, launch.last_arrival(span))
            else:
                steps = (self._inside if span.inside else self._before).get(span.op, ())
                yield _caused(span, self._last_signal(span, steps, launch))

    def _last_signal(self, span: Span, steps: Sequence[_BlockingStep], launch: _LaunchTimes) -> _Signal | None:
        signals = [signal for step in steps if span.core in step.cores for signal in self._signals(span, step, launch)]
        last = max(signals, key=lambda signal: signal[0], default=None)
        if last is not None and last[0] > span.begin_ns:
            return last
        outside = next((step.outside for step in steps if step.outside and span.core in step.cores), "")
        return (span.end_ns, outside, None) if outside else None

    def _signals(self, span: Span, step: _BlockingStep, launch: _LaunchTimes) -> Iterator[_Signal]:
        """With early start an op may signal before its end: a time after the wait is cut to its end."""
        for need in step.needs:
            name = self._names[need.mark.op]
            times = launch.ends if need.mark.point == Point.DONE.value else launch.begins
            for core in need.cores:
                if need.near and self._group_of[core] != self._group_of[span.core]:
                    continue
                if core != span.core and (time := times.get((name, core))) is not None:
                    yield min(time, span.end_ns), name, core
        for core in step.barrier:
            if core != span.core and (arrival := launch.last_op(core, span.end_ns)) is not None:
                yield arrival


class _LaunchTimes:
    """When the ops of one launch began and ended on each core, and when cores arrived in sync_all."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.begins: dict[tuple[str, int], float] = {}
        self.ends: dict[tuple[str, int], float] = {}
        self._ended: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._meetings: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for span in sorted(spans, key=lambda span: span.end_ns):
            if span.op is None:
                continue
            if span.what is SpanKind.OP:
                self.begins[span.op, span.core], self.ends[span.op, span.core] = span.begin_ns, span.end_ns
                self._ended[span.core].append((span.end_ns, span.op))
            elif span.what is SpanKind.BARRIER and span.inside:
                self._meetings[span.op][span.core].append(span.begin_ns)

    def last_op(self, core: int, until_ns: float) -> _Signal | None:
        """The op that a core had finished last at that time."""
        ended = self._ended.get(core, [])
        place = bisect_right(ended, until_ns, key=lambda entry: entry[0])
        return (ended[place - 1][0], ended[place - 1][1], core) if place else None

    def last_arrival(self, span: Span) -> _Signal | None:
        """The core that arrived last in a sync_all, if that is another one."""
        assert span.op is not None
        arrivals = self._meetings[span.op]
        number = bisect_right(arrivals[span.core], span.begin_ns) - 1
        last = max(((times[number], core) for core, times in arrivals.items() if len(times) > number), default=None)
        return None if last is None or last[1] == span.core else (last[0], span.op, last[1])


def _other_ranks(group: RankGroup) -> str:
    others = [str(rank) for place, rank in enumerate(group.ranks) if place != group.rank]
    return f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(others)}" if others else f"ranks of {group}"


def _caused(span: Span, signal: _Signal | None) -> Span:
    return span if signal is None else replace(span, waited_for=signal[1], signalled_by=signal[2])
