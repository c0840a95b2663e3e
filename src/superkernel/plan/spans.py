"""plan.spans: the time stamps of one launch -> spans: what each core did, and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from . import Plan
from .steps import Call, Record, SpanKind, Wait

RECORDED_MEETINGS = 64  # calls of sync_all per op and core that leave time stamps; as kRecordedMeetings in state.h


@dataclass(frozen=True, slots=True)
class Span:
    """What one core did between two time stamps."""

    core: int
    what: SpanKind
    op: str | None  # None: of no op
    begin_ns: float
    end_ns: float
    inside: bool = False  # a wait within the call of its op: at its wait point, or in sync_all
    waited_for: str | None = None  # of a wait that blocked: the op or the event whose signal ended it, where known
    signalled_by: int | None = None  # the core that gave that signal


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time at which one core reached one step of the plan, in monotonic nanoseconds.

    A step that is no record stands for a wait inside a call: it appears twice, at the begin and at the end of the wait.
    """

    core: int
    step: int
    ns: float


class TimeStamps(Protocol):
    """The time stamps that one launch left in memory; they are decoded on request."""

    def step_times(self) -> Sequence[StepTime]: ...


def spans_of(plan: Plan, times: Sequence[StepTime]) -> tuple[Span, ...]:
    """Spans nest on each core, so an end closes the last begin that is open."""
    steps, names = plan.steps, plan.op_names
    open_steps: dict[int, list[tuple[int, float]]] = {}  # core -> steps that began, and when
    spans = []
    for time in times:
        core, number, ns = time.core, time.step, time.ns
        step = steps[number]
        begun = open_steps.get(core)
        if begun is None:
            begun = open_steps[core] = []
        if isinstance(step, Record):
            if step.begin:
                begun.append((number, ns))
            else:
                op = None if step.op is None else names[step.op]
                spans.append(Span(core, step.what, op, begun.pop()[1], ns))
        elif begun and begun[-1][0] == number:
            assert isinstance(step, Wait | Call)
            what = SpanKind.WAIT if isinstance(step, Wait) else SpanKind.BARRIER
            spans.append(Span(core, what, names[step.op], begun.pop()[1], ns, inside=True))
        else:
            begun.append((number, ns))
    return tuple(spans)
