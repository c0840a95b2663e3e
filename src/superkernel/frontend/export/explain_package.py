"""frontend.export.explain_package: the compiled entries of a package -> the explain report, as text."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.options import Options
from ..lowering.program_trace import KernelCall
from ..report import CompileReport
from ..scope_report import OpReport, ScopeReport, SegmentReport
from .compile_entry import CompiledEntry

_WIDTH = 100  # columns


def explain_package(compiled: Mapping[str, CompiledEntry], options: Options) -> str:
    """By launch: its ops with their source lines, its syncs, and the plan."""
    report = CompileReport(graphs=len(compiled))
    plans = []
    for launch, entry in compiled.items():
        scope = ScopeReport(launch, str(options), len(report.scopes) + 1, "inference")
        report.scopes.append(scope)
        if entry.kernel is None:
            continue
        plan = entry.kernel.plans[0]
        calls = zip(entry.kernel.graph.nodes, entry.calls, strict=True)
        ops = tuple(
            OpReport(node.name, node.kernel.name, node.blocks, call.origins, None, isinstance(call, KernelCall))
            for node, call in calls
        )
        sizes = [place.nbytes for place in entry.shape.launches[0].arguments]
        counts = plan.sync_counts, len(sizes), sum(sizes)
        scope.segments.append(SegmentReport(ops, True, "ended with the graph", *counts, kernel=entry.kernel))
        plans.append(f"\n{launch}\n{plan}\n")
    return "\n".join([report.text(_WIDTH), *plans])
