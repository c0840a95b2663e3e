"""observe.emulation: an emulated launch -> a Profile, for the report: lanes, ops, and the waits before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..plan.spans import Span
from ..plan.steps import SpanKind
from ..runtime.super_kernel import SuperKernel
from ..targets.protocol import EmulatedLaunch, EmulatedMachine
from ..version import __version__
from .build_profile import profiled_kernel
from .profile import SUPER_KERNEL, Clock, Profile, ProfiledLaunch

_TICKS = "times are ticks of the emulator: they say nothing about the time on a chip"


def emulation_profile(
    kernel: SuperKernel, emulated: EmulatedLaunch | None, machine: EmulatedMachine, notes: Sequence[str]
) -> Profile:
    """One launch; none where every launch failed."""
    plan = kernel.plan
    described = profiled_kernel(kernel.graph, plan, kernel.provenance, kernel.source)
    # what ops move is not what took these times
    ops = tuple(replace(op, bytes_read=None, bytes_written=None) for op in described.ops)
    spans = tuple(_named_waits(emulated.spans)) if emulated is not None else ()
    launches: tuple[ProfiledLaunch, ...] = ()
    if spans:
        begin, end = min(span.begin_ns for span in spans), max(span.end_ns for span in spans)
        launches = (
            ProfiledLaunch(
                kernel.name, SUPER_KERNEL, begin, end, kernel.name, 0, machine.name, plan.cores, spans=spans
            ),
        )
    facts: dict[str, str | int] = {"emulated": machine.name, "ops": len(ops), "syncs": machine.syncs}
    facts |= {
        "flag actions": machine.sync_actions,
        "flag actions with one full barrier per op": machine.barrier_actions,
    }
    kernels = (replace(described, ops=ops),)
    said = (*notes, _TICKS)
    return Profile(launches, kernels, facts, detail=True, notes=said, package=__version__, clock=Clock.TICKS)


def _named_waits(spans: Sequence[Span]) -> Iterator[Span]:
    """A wait between ops is named after the op that the core runs next."""
    following: dict[int, str | None] = {}
    named = []
    for span in sorted(spans, key=lambda span: span.begin_ns, reverse=True):
        if span.what is SpanKind.OP:
            following[span.core] = span.op
        nameless = span.what is SpanKind.WAIT and span.op is None
        named.append(replace(span, op=following.get(span.core)) if nameless else span)
    yield from reversed(named)
