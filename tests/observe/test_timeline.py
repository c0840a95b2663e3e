"""observe.timeline: what viewers of traces need beside valid JSON."""

from __future__ import annotations

from superkernel.observe.profile import Profile, ProfiledLaunch
from superkernel.observe.timeline import merged, trace
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind

STEPS = 2000


def back_to_back() -> Profile:
    """One launch whose only core goes from op to op without a pause, as fast as time stamps can tell."""
    times = [7000 + step * 333.7 for step in range(STEPS + 1)]
    spans = [Span(0, SpanKind.KERNEL, None, times[0], times[-1])]
    spans += [Span(0, SpanKind.OP, f"op{i}", times[i], times[i + 1]) for i in range(STEPS)]
    launch = ProfiledLaunch("k", "SuperKernel", 6500, times[-1] + 500, spans=tuple(spans))
    return Profile((launch,), began_ns=1_790_857_123_456_789_123)


def whole_nanoseconds(found: dict) -> list[tuple[int, int]]:  # type: ignore[type-arg]
    """Begin and end of the slices of cores, as a viewer rounds them: down, begin and duration apart."""
    slices = [e for e in found["traceEvents"] if e["ph"] == "X" and e["cat"] != "launch"]
    return [(int(e["ts"] * 1000), int(e["ts"] * 1000) + int(e["dur"] * 1000)) for e in slices]


def misplaced(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Slices that outlast the one they begin in: Perfetto drops them."""
    found, around = [], []  # ends of the slices that are still open
    for begin, end in sorted(slices, key=lambda ends: (ends[0], -ends[1])):
        while around and around[-1] <= begin:
            around.pop()
        if around and end > around[-1]:
            found.append((begin, end))
        around.append(end)
    return found


def test_slices_of_a_core_nest_also_in_whole_nanoseconds() -> None:
    slices = whole_nanoseconds(trace(back_to_back()))
    assert len(slices) == STEPS + 1 and not misplaced(slices)


def test_they_still_do_in_torchs_trace_which_counts_from_far_away() -> None:
    ours = trace(back_to_back())
    theirs = {"baseTimeNanoseconds": ours["baseTimeNanoseconds"] - 7_800_000 * 10**9 + 1, "traceEvents": []}
    slices = whole_nanoseconds(merged(ours, theirs))
    assert len(slices) == STEPS + 1 and not misplaced(slices)


def test_times_lie_within_nanoseconds_of_what_was_measured() -> None:
    profile = back_to_back()
    events = [e for e in trace(profile)["traceEvents"] if e["ph"] == "X" and e["cat"] == "op"]
    for event, span in zip(events, profile.launches[0].spans[1:], strict=True):
        assert abs(event["ts"] - span.begin_ns / 1000) < 0.002
        assert abs(event["ts"] + event["dur"] - span.end_ns / 1000) < 0.005
