"""plan.spans: the time stamps of one launch -> spans: what each core did, and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from . import Plan
from .steps import Record, SpanKind


@dataclass(frozen=True)
class Span:
    """What one core did between two time stamps."""

    core: int
    what: SpanKind
    op: str | None  # None: of no op
    begin_ns: float
    end_ns: float


@dataclass(frozen=True)
class StepTime:
    """The time at which one core reached one step of the plan, in monotonic nanoseconds."""

    core: int
    step: int
    ns: float


class TimeStamps(Protocol):
    """The time stamps that one launch left in memory; they are decoded on request."""

    def step_times(self) -> Sequence[StepTime]: ...


def spans_of(plan: Plan, times: Sequence[StepTime]) -> tuple[Span, ...]:
    """Record steps nest on each core, so an end closes the last begin that is open."""
    open_records: dict[int, list[float]] = {}
    spans = []
    for time in times:
        step = plan.steps[time.step]
        assert isinstance(step, Record)
        begins = open_records.setdefault(time.core, [])
        if step.begin:
            begins.append(time.ns)
        else:
            op = None if step.op is None else plan.graph.nodes[step.op].name
            spans.append(Span(time.core, step.what, op, begins.pop(), time.ns))
    return tuple(spans)
