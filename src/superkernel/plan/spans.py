"""records: time stamps of a launch -> spans: what each core did, from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..targets.protocol import StepTime
from . import Plan
from .steps import Record


@dataclass(frozen=True)
class Span:
    core: int
    what: str  # kernel, op, wait or notify
    op: str | None
    begin_ns: float
    end_ns: float


def spans_of(plan: Plan, times: Sequence[StepTime]) -> tuple[Span, ...]:
    """Marks nest on each core, so an end closes the last begin that is open."""
    open_marks: dict[int, list[tuple[Record, float]]] = {}
    spans = []
    for time in times:
        step = plan.steps[time.step]
        assert isinstance(step, Record)
        stack = open_marks.setdefault(time.core, [])
        if step.begin:
            stack.append((step, time.ns))
        else:
            _, begin = stack.pop()
            op = None if step.op is None else plan.graph.nodes[step.op].name
            spans.append(Span(time.core, step.what.value, op, begin, time.ns))
    return tuple(spans)
