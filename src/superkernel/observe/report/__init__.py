"""observe.report: what ran -> one HTML page that opens from disk, without a network."""

from .data import (
    Benefit,
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
]
