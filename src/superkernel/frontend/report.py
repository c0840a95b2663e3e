"""frontend.report: what became of every scope -> a report for printing, notebooks, logs and trace files."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch._logging import trace_structured

from .advice import Advice, advise
from .explain_text import html_page, report_lines
from .scope_report import CompileFacts, ScopeReport

_log = logging.getLogger("superkernel")
_WIDTH = 100  # columns, where the output is no terminal
_UNLIMITED = 100_000  # columns of logs and traces


@dataclass
class CompileReport(CompileFacts):
    """What the back end compiled for one callable; printed, one screen of advice and then the detail."""

    @property
    def advice(self) -> Advice:
        return advise(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.advice.to_dict(),
            "graph_breaks": [found.to_dict() for found in self.graph_breaks],
            "graphs": self.graphs,
            "scopes": [scope.to_dict() for scope in self.scopes],
            "outside": self.outside,
            "notes": list(self.notes),
            "cache": {"hits": self.cache["hits"], "misses": self.cache["misses"]},
        }

    def text(self, width: int) -> str:
        """Lines of at most `width` columns."""
        return "\n".join(report_lines(self, width))

    def __str__(self) -> str:
        return self.text(shutil.get_terminal_size((_WIDTH, 40)).columns)

    def _repr_html_(self) -> str:
        return html_page(self, _WIDTH)


def log_scopes(scopes: Sequence[ScopeReport]) -> None:
    """The scopes of one graph: to the log (TORCH_LOGS="superkernel", or with a +) and to torch's trace for tlparse."""
    part = CompileReport(list(scopes), 1)
    for scope in scopes:
        fused = sum(segment.fused for segment in scope.segments)
        _log.info("super_kernel_scope %r: %d of %d segments fused", scope.name, fused, len(scope.segments))
        for found in scope.unfusible:
            _log.info("super_kernel_scope %r: unfusible %s", scope.name, found)
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", part.text(_UNLIMITED))
    _trace("superkernel_report", lambda: part.text(_UNLIMITED))
    _trace("superkernel_report_json", lambda: json.dumps(part.to_dict(), indent=1))
    for scope in scopes:
        for number, segment in enumerate(scope.segments, 1):
            if (kernel := segment.kernel) is not None:
                _trace(f"superkernel_{scope.name}_{number}_plan", lambda: str(kernel.plan))
                _trace(f"superkernel_{scope.name}_{number}_source", lambda: kernel.source)


def _trace(name: str, payload: Callable[[], str]) -> None:
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload)


_collecting: ContextVar[CompileReport | None] = ContextVar("superkernel_report", default=None)
_explaining: ContextVar[bool] = ContextVar("superkernel_explaining", default=False)


@contextmanager
def collecting(explaining: bool = False) -> Iterator[CompileReport]:
    """Collects a report of everything that the back end compiles inside; `explaining`: nothing else is wanted.

    A script that is explained may collect reports of its own: they are also part of that of the script.
    """
    report, enclosing = CompileReport(), _collecting.get()
    tokens = _collecting.set(report), _explaining.set(explaining or _explaining.get())
    try:
        yield report
    finally:
        _collecting.reset(tokens[0])
        _explaining.reset(tokens[1])
        if enclosing is not None and not explaining:
            enclosing.add(report)


def is_explaining() -> bool:
    """Whether what is compiled now is only reported: where nothing can be launched, torch may compute its values."""
    return _explaining.get()


def current_report() -> CompileReport:
    """The report of the enclosing `collecting`; a fresh report outside of it."""
    return _collecting.get() or CompileReport()
