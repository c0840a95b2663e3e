"""observe.report: what ran -> one HTML page that opens from disk, without a network."""

from .data import Benefit, Edge, Fact, Kernel, Launch, Op, ReportData, Run, Span, SpanKind, Split, Sync
from .write import write_report

__all__ = [
    "Benefit",
    "Edge",
    "Fact",
    "Kernel",
    "Launch",
    "Op",
    "ReportData",
    "Run",
    "Span",
    "SpanKind",
    "Split",
    "Sync",
    "write_report",
]
