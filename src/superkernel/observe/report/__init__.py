"""observe.report: profiles -> one HTML page that opens from disk, without a network."""

from .data import ReportData, ReportedRun
from .page import write_report

__all__ = ["ReportData", "ReportedRun", "write_report"]
