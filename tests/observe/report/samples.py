"""Data for reports: small ones with everything in them, large ones, and names that are hard to show."""

from __future__ import annotations

from superkernel.observe.report import (
    Edge,
    Fact,
    Kernel,
    Launch,
    Op,
    ReportData,
    Run,
    Span,
    SpanKind,
    Split,
    Sync,
)

# ends a script element, an attribute, a comment and a JSON text, wherever it is put unescaped
HOSTILE = """</script><script>window.harmed=1</script><img src=x onerror="window.harmed=1">'"`${1}<!--&amp;\\u003c"""
MACHINE = (Fact("processor", "A processor with 2 cores"), Fact("cores used", "2"))
READ_RATE = 20e9


def before() -> Run:
    launches = tuple(
        Launch(f"{kind} {number}", kind, 40.0 * number, 30.0)
        for number, kind in enumerate(("MatMul", "Softmax", "MatMul", "Cast"))
    )
    return Run("unfused", MACHINE, launches, read_bytes_per_s=READ_RATE)


def after(name: str = "matmul_0") -> Run:
    """Two cores run three ops; the second op waits on core 1, the third comes after a barrier."""
    ops = (
        Op(name, "MatMul", 2, 400_000, 4_000, origin="model.py:7"),
        Op("softmax", "Softmax", 1, 4_000, 4_000),
        Op("matmul_1", "MatMul", 2, 200_000, None),
        Op("print", "Print"),
    )
    edges = (
        Edge(name, "softmax", Sync.COUNTER, ("read-after-write on 't0'",)),
        Edge("softmax", "matmul_1", Sync.BARRIER, ("read-after-write on 't1'", "write-after-read on 't0'")),
        Edge(name, "matmul_1", Sync.NONE, ("write-after-read on 't0'",)),
        Edge("matmul_1", "print", Sync.LOCAL),
    )
    spans = [Span(core, "", SpanKind.KERNEL, 2.0, 60.0, "sk1") for core in (0, 1)]
    spans += [Span(core, name, SpanKind.OP, 3.0, 23.0 + core, "sk1") for core in (0, 1)]
    spans += [
        Span(0, "softmax", SpanKind.WAIT, 23.0, 24.5, "sk1"),
        Span(0, "softmax", SpanKind.OP, 24.5, 30.0, "sk1"),
        Span(0, "matmul_1", SpanKind.BARRIER, 30.0, 30.5, "sk1"),
        Span(1, "matmul_1", SpanKind.BARRIER, 24.5, 30.5, "sk1"),
        Span(0, "matmul_1", SpanKind.OP, 30.5, 50.0, "sk1"),
        Span(1, "matmul_1", SpanKind.OP, 30.5, 50.5, "sk1"),
        Span(1, "matmul_1", SpanKind.NOTIFY, 50.5, 50.6, "sk1"),
        Span(0, "print", SpanKind.OP, 50.6, 59.0, "sk1"),
    ]
    kernel = Kernel(
        "sk1",
        "attention",
        "early-start=1",
        ops,
        edges,
        "plan sk1: 4 ops\n  call matmul_0",
        "// step 1\nint main() {}\n",
    )
    launches = (Launch("sk1", "SuperKernel", 0.0, 62.0, "attention"), Launch("Cast 3", "Cast", 70.0, 30.0))
    splits = (
        Split("attention", "the op nonzero has no sub-kernel", True, (name, "softmax"), "model.py:9"),
        Split("tail", "collective", False, ("all_reduce",)),
    )
    return Run("fused", MACHINE, launches, tuple(spans), (kernel,), splits, READ_RATE, ("one call, of three",))


def both() -> ReportData:
    return ReportData("A small model", (before(), after()), created="2026-01-02 03:04", notes=("measured together",))


def hostile() -> ReportData:
    """Everything that a user or a model names says the same harmful thing."""
    run = after(HOSTILE)
    kernel = Kernel(HOSTILE, HOSTILE, HOSTILE, run.kernels[0].ops, run.kernels[0].edges, HOSTILE, f"// {HOSTILE}\n")
    spans = tuple(Span(span.core, span.op, span.kind, span.begin_us, span.end_us, HOSTILE) for span in run.spans)
    made = Run(
        HOSTILE,
        (Fact(HOSTILE, HOSTILE),),
        (Launch(HOSTILE, HOSTILE, 0.0, 62.0, HOSTILE),),
        spans,
        (kernel,),
        (Split(HOSTILE, HOSTILE, True, (HOSTILE,), HOSTILE),),
        READ_RATE,
        (HOSTILE,),
    )
    return ReportData(HOSTILE, (made,), created=HOSTILE, notes=(HOSTILE,))


def many_spans(count: int = 10_000, cores: int = 4) -> ReportData:
    """Ops one after the other on every core."""
    ops = tuple(Op(f"op_{number}", f"Type{number % 9}", cores, 1 << number % 20) for number in range(200))
    edges = tuple(
        Edge(first.name, second.name, sync)
        for first, second, sync in zip(ops, ops[1:], list(Sync) * len(ops), strict=False)
    )
    spans = tuple(
        Span(
            number % cores,
            ops[number // cores % len(ops)].name,
            SpanKind.OP,
            2.0 * (number // cores),
            2.0 * (number // cores) + 1.5,
            "sk1",
        )
        for number in range(count)
    )
    launch = Launch("sk1", "SuperKernel", 0.0, 2.0 * count / cores)
    return ReportData("Many spans", (Run("fused", MACHINE, (launch,), spans, (Kernel("sk1", ops=ops, edges=edges),)),))
