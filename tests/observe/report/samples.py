"""Profiles for reports: small ones with everything in them, large ones, and names that are hard to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from superkernel.observe.profile import (
    SUPER_KERNEL,
    Profile,
    ProfiledEdge,
    ProfiledKernel,
    ProfiledLaunch,
    ProfiledOp,
)
from superkernel.observe.report import ReportData, ReportedRun
from superkernel.plan.plan import SyncKind
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind

# ends a script element, an attribute, a comment and a JSON text, wherever it is put unescaped
HOSTILE = """</script><script>window.harmed=1</script><img src=x onerror="window.harmed=1">'"`${1}<!--&amp;\\u003c"""
MACHINE = {"processor": "A processor with 2 cores", "cores used": 2}
READ_RATE = 20e9


def launch(name: str, kind: str, start_us: float, duration_us: float, **more: Any) -> ProfiledLaunch:
    return ProfiledLaunch(name, kind, 1000 * start_us, 1000 * (start_us + duration_us), **more)


def span(core: int, op: str, what: SpanKind, begin_us: float, end_us: float, **more: Any) -> Span:
    return Span(core, what, op or None, 1000 * begin_us, 1000 * end_us, **more)


def kernel_run(spans: Sequence[Span] = (), ops: Sequence[ProfiledOp] = (), title: str = "r") -> ReportedRun:
    """One launch of the kernel `k`, as long as its spans."""
    end_ns = max((span.end_ns for span in spans), default=0)
    whole = ProfiledLaunch("k", SUPER_KERNEL, 0, end_ns, kernel=0, spans=tuple(spans))
    return ReportedRun(title, Profile((whole,), (ProfiledKernel("k", ops=tuple(ops)),)))


def before() -> ReportedRun:
    """The ops of `after` launched one by one; torch launches the last."""
    launches = tuple(
        launch(f"{kind} {number}", kind, 40.0 * number, 30.0, scope="attention", kernel=0, call=0)
        for number, kind in enumerate(("MatMul", "Softmax", "MatMul"))
    )
    launches = (*launches, launch("Cast 3", "Cast", 120.0, 30.0, scope="tail", call=0))
    kernel = ProfiledKernel("sk1", "attention", fused=False, identity="0123")
    return ReportedRun("unfused", Profile(launches, (kernel,), MACHINE, READ_RATE, True))


def after(name: str = "matmul_0") -> ReportedRun:
    """Two cores run three ops; the second op waits on core 1, the third comes after a barrier."""
    ops = (
        ProfiledOp(name, "MatMul", 2, 0, 400_000, 4_000, "model.py:7"),
        ProfiledOp("softmax", "Softmax", 1, 0, 4_000, 4_000),
        ProfiledOp("matmul_1", "MatMul", 2, 0, 200_000, None, "model.py:9"),
        ProfiledOp("print", "Print"),
    )
    edges = (
        ProfiledEdge(name, "softmax", SyncKind.COUNTER, ("read-after-write on 't0'",)),
        ProfiledEdge("softmax", "matmul_1", SyncKind.BARRIER, ("read-after-write on 't1'", "write-after-read on 't0'")),
        ProfiledEdge(name, "matmul_1", SyncKind.NONE, ("write-after-read on 't0'",)),
        ProfiledEdge("matmul_1", "print", SyncKind.LOCAL),
    )
    spans = [span(core, "", SpanKind.KERNEL, 2.0, 60.0) for core in (0, 1)]
    spans += [span(core, name, SpanKind.OP, 3.0, 23.0 + core) for core in (0, 1)]
    spans += [
        span(0, "softmax", SpanKind.WAIT, 23.0, 24.5, waited_for=name, signalled_by=1),
        span(0, "softmax", SpanKind.OP, 24.5, 30.0),
        span(0, "matmul_1", SpanKind.BARRIER, 30.0, 30.5),
        span(1, "matmul_1", SpanKind.BARRIER, 24.5, 30.5),
        span(0, "matmul_1", SpanKind.OP, 30.5, 50.0),
        span(1, "matmul_1", SpanKind.OP, 30.5, 50.5),
        span(1, "matmul_1", SpanKind.NOTIFY, 50.5, 50.6),
        span(0, "print", SpanKind.OP, 50.6, 59.0),
    ]
    kernel = ProfiledKernel(
        "sk1",
        "attention",
        "early-start=1",
        ops,
        edges,
        "plan sk1: 4 ops\n  call matmul_0",
        "// step 1\nint main() {}\n",
        cores=2,
        reason="the op nonzero has no sub-kernel",
        unfusible=("nonzero: its output has a size that depends on data",),
        identity="0123",
    )
    launches = (
        launch("sk1", SUPER_KERNEL, 0.0, 62.0, scope="attention", kernel=0, call=0, spans=tuple(spans)),
        launch("Cast 3", "Cast", 70.0, 30.0, scope="tail", reason="collective", call=0),
    )
    notes = ("one call, of three",)
    return ReportedRun("fused", Profile(launches, (kernel,), MACHINE, READ_RATE, True, notes, "1.0"))


def both() -> ReportData:
    return ReportData("A small model", (before(), after()), notes=("measured together",))


def hostile(text: str = HOSTILE) -> ReportData:
    """Everything that a user or a model names says the same harmful thing."""
    profile = after(text).profile
    kernel = replace(
        profile.kernels[0],
        name=text,
        scope=text,
        options=text,
        plan=text,
        source=f"// {text}\n",
        reason=text,
        unfusible=(text,),
    )
    whole = replace(profile.launches[0], name=text, type=text, scope=text)
    profile = replace(profile, launches=(whole,), kernels=(kernel,), machine={text: text}, notes=(text,))
    return ReportData(text, (ReportedRun(text, profile),), (text,))


def large(ops: int = 1000, calls: int = 200) -> ReportData:
    """Calls of one super kernel on two cores, before and after: every op waits for the one before it."""
    described = tuple(ProfiledOp(f"layer{at // 10}_op{at % 10}", f"Type{at % 12}", 2, 0, 4096) for at in range(ops))
    edges = tuple(ProfiledEdge(first.name, second.name, SyncKind.COUNTER) for first, second in pairwise(described))
    kernel = ProfiledKernel("sk1", "layers", "", described, edges, cores=2, identity="g")

    def launches(step_us: float) -> Iterator[ProfiledLaunch]:
        for call in range(calls):
            at, spans = 1000.0 * ops * call, []
            for number, op in enumerate(described):
                for core in (0, 1):
                    begin = at + step_us * (number + 0.1 * core)
                    spans.append(span(core, op.name, SpanKind.WAIT, begin, begin + 0.2))
                    spans.append(span(core, op.name, SpanKind.OP, begin + 0.2, begin + step_us - 0.1))
            yield launch("sk1", SUPER_KERNEL, at, step_us * ops, kernel=0, call=call, spans=tuple(spans))

    runs = (ReportedRun(title, Profile(tuple(launches(us)), (kernel,))) for title, us in (("before", 2), ("after", 1)))
    return ReportData("Large", tuple(runs))


def many_spans(count: int = 10_000, cores: int = 4) -> ReportData:
    """Ops one after the other on every core."""
    ops = tuple(ProfiledOp(f"op_{number}", f"Type{number % 9}", cores, 0, 1 << number % 20) for number in range(200))
    edges = tuple(
        ProfiledEdge(first.name, second.name, sync)
        for first, second, sync in zip(ops, ops[1:], list(SyncKind) * len(ops), strict=False)
    )
    spans = tuple(
        span(
            number % cores,
            ops[number // cores % len(ops)].name,
            SpanKind.OP,
            2.0 * (number // cores),
            2.0 * (number // cores) + 1.5,
        )
        for number in range(count)
    )
    whole = launch("sk1", SUPER_KERNEL, 0.0, 2.0 * count / cores, kernel=0, spans=spans)
    profile = Profile((whole,), (ProfiledKernel("sk1", ops=ops, edges=edges),), MACHINE)
    return ReportData("Many spans", (ReportedRun("fused", profile),))
