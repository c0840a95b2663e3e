"""frontend.report: what became of every scope -> a report for printing, logs and trace files."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch._logging import trace_structured

from .capture.fusibility import Unfusible
from .listed_ops import ListedOp
from .part_verdict import PartChoice, PartVerdict

_log = logging.getLogger("superkernel")


@dataclass(frozen=True)
class OpReport:
    """One op of a segment: a use of a sub-kernel."""

    name: str
    kernel: str
    blocks: int
    origins: tuple[str, ...]  # source lines of the model
    listed: ListedOp | None = None  # its entry in the op list, for a target whose operators come compiled

    def to_dict(self) -> dict[str, Any]:
        fields = {"name": self.name, "kernel": self.kernel, "blocks": self.blocks, "origins": list(self.origins)}
        return fields | ({} if self.listed is None else self.listed.to_dict())

    def __str__(self) -> str:
        return self.name


@dataclass
class SegmentReport:
    """One super kernel, or the part of a scope that did not become one."""

    ops: tuple[OpReport, ...]
    fused: bool
    reason: str  # why it ended where it did, or why it is not fused
    syncs: dict[str, int] = field(default_factory=dict)
    buffers: int = 0
    buffer_bytes: int = 0
    gate: Any = None  # the ProfitGate, which measures while the model runs
    kernel: Any = None  # the SuperKernel
    emulated: bool = False  # it cannot be launched here
    verdict: PartVerdict | None = None  # of the comparison with stock Inductor; None: not compared

    def apply(self, verdict: PartVerdict) -> None:
        """What the comparison with stock Inductor decided for the part of this segment."""
        self.verdict = verdict
        if verdict.choice is PartChoice.INDUCTOR:
            self.fused, self.reason = False, verdict.reason

    @property
    def left_out(self) -> bool:
        """Stock Inductor runs it, because that is faster."""
        return self.verdict is not None and self.verdict.choice is PartChoice.INDUCTOR

    @property
    def measured(self) -> str:
        """When the times were measured, and at which load; empty: there are none."""
        kept = self.verdict if self.left_out or self.gate is None else self.gate
        return str(kept.conditions) if kept is not None and kept.conditions is not None else ""

    @property
    def launches(self) -> str:
        """How it is launched at present."""
        if self.left_out:
            return "left out"
        if not self.fused:
            return "unfused"
        if self.gate is None:
            return "emulated" if self.emulated else "fused"
        return str(self.gate.chosen or "measuring")

    @property
    def times_us(self) -> dict[str, float]:
        """Medians by the way to launch. Of a segment that is left out: what its part was compared by."""
        if self.left_out and self.verdict is not None:
            return dict(self.verdict.times_us)
        return dict(self.gate.medians_us) if self.gate is not None else {}

    def to_dict(self) -> dict[str, Any]:
        return {
            "ops": [op.to_dict() for op in self.ops],
            "fused": self.fused,
            "reason": self.reason,
            "syncs": dict(self.syncs),
            "buffers": self.buffers,
            "bytes": self.buffer_bytes,
            "launches": self.launches,
            "gate_us": self.times_us,
            "gate_measured": self.measured,
            "compared_us": dict(self.verdict.times_us) if self.verdict is not None else {},
        }


@dataclass
class ScopeReport:
    """One scope in one graph."""

    name: str
    options: str
    number: int  # of its graph
    kind: str  # of its graph: inference, forward, backward
    segments: list[SegmentReport] = field(default_factory=list)
    unfusible: list[Unfusible] = field(default_factory=list)

    @property
    def graph(self) -> str:
        return f"{self.number} ({self.kind})"

    @property
    def fused(self) -> bool:
        return any(segment.fused for segment in self.segments)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "graph": self.graph,
            "segments": [segment.to_dict() for segment in self.segments],
            "unfusible": [{"op": u.op, "reason": u.reason, "origins": list(u.origins)} for u in self.unfusible],
        }


@dataclass
class CompileReport:
    """What the back end compiled for one callable."""

    scopes: list[ScopeReport] = field(default_factory=list)
    graphs: int = 0
    outside: int = 0  # nodes that belong to no scope
    outside_by: str = "Inductor"  # what runs them; empty: nothing
    notes: list[str] = field(default_factory=list)
    cache: Counter[str] = field(default_factory=Counter)  # hits, misses

    def to_dict(self) -> dict[str, Any]:
        return {
            "graphs": self.graphs,
            "scopes": [scope.to_dict() for scope in self.scopes],
            "outside": self.outside,
            "notes": list(self.notes),
            "cache": {"hits": self.cache["hits"], "misses": self.cache["misses"]},
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: CompileReport) -> Iterator[str]:
    found = f"{_count(report.graphs, 'graph')}, {_count(len(report.scopes), 'scope')}"
    outside = f"{_count(report.outside, 'op')} outside of scopes" + (
        f" ({report.outside_by})" if report.outside_by else ""
    )
    yield f"{found}; {outside}; cache: {report.cache['hits']} hits, {report.cache['misses']} misses"
    yield from (f"  note: {note}" for note in report.notes)
    for scope in report.scopes:
        options = f", options {scope.options}" if scope.options else ""
        yield f"scope {scope.name!r} in graph {scope.graph}: {_count(len(scope.segments), 'segment')}{options}"
        yield from (f"  unfusible {found}" for found in scope.unfusible)
        for number, segment in enumerate(scope.segments, 1):
            yield from _segment_lines(number, segment)


def _segment_lines(number: int, segment: SegmentReport) -> Iterator[str]:
    states = {
        "unfused": "not fused",
        "left out": "left out: stock Inductor runs it",
        "measuring": "fused or not: still measuring",
        "emulated": "one super kernel, emulated",
    }
    state = states.get(segment.launches, segment.launches)
    times = ", ".join(f"{launch} {us:.1f} us" for launch, us in segment.times_us.items())
    when = f"; {segment.measured}" if segment.measured else ""
    measured = f" (gate: {times}{when})" if times else ""
    yield f"  segment {number}: {_count(len(segment.ops), 'op')}, {state}{measured}; {segment.reason}"
    if segment.kernel is not None:
        syncs = ", ".join(f"{count} {kind}" for kind, count in segment.syncs.items()) or "none"
        yield f"    syncs: {syncs}; {_count(segment.buffers, 'buffer')}, {_bytes(segment.buffer_bytes)}"
    width = max((len(op.name) for op in segment.ops), default=0)
    for op in segment.ops:
        origin = op.origins[0] if op.origins else ""
        more = f" (+{len(op.origins) - 1} lines)" if len(op.origins) > 1 else ""
        core = f"{op.listed.core:<6}  " if op.listed is not None else ""
        yield f"    {op.name:<{width}}  {op.blocks:>2} x  {core}{origin}{more}".rstrip()
        if op.listed is not None:
            yield from (f"      {line}" for line in _listed_lines(op.listed))
    if missing := dict.fromkeys(op.listed.missing for op in segment.ops if op.listed is not None and op.listed.missing):
        yield from (f"    without a compiled kernel: {_ops_without(segment, reason)}: {reason}" for reason in missing)


def _listed_lines(listed: ListedOp) -> Iterator[str]:
    yield str(listed)
    if listed.attributes:
        yield "attributes: " + ", ".join(f"{name}={value}" for name, value in listed.attributes.items())
    order = [f"stream {listed.stream}", *(f"sends {event}" for event in listed.send)]
    order += [f"receives {event}" for event in listed.recv]
    if len(order) > 1 or listed.stream:
        yield ", ".join(order)
    if listed.metadata is not None:
        yield f"metadata: {listed.metadata}"


def _ops_without(segment: SegmentReport, reason: str) -> str:
    names = [op.name for op in segment.ops if op.listed is not None and op.listed.missing == reason]
    return ", ".join(names) if len(names) < len(segment.ops) or len(names) == 1 else f"all {len(names)} ops"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _bytes(number: int) -> str:
    for unit in ("B", "KB", "MB"):
        if number < 10_000:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GB"


def log_scopes(scopes: Sequence[ScopeReport]) -> None:
    """The scopes of one graph: to the log (TORCH_LOGS="superkernel", or with a +) and to torch's trace for tlparse."""
    part = CompileReport(list(scopes), 1)
    for scope in scopes:
        fused = sum(segment.fused for segment in scope.segments)
        _log.info("super_kernel_scope %r: %d of %d segments fused", scope.name, fused, len(scope.segments))
        for found in scope.unfusible:
            _log.info("super_kernel_scope %r: unfusible %s", scope.name, found)
    _log.debug("%s", part)
    _trace("superkernel_report", lambda: str(part))
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
    """Collects a report of everything that the back end compiles inside; `explaining`: nothing else is wanted."""
    report = CompileReport()
    tokens = _collecting.set(report), _explaining.set(explaining)
    try:
        yield report
    finally:
        _collecting.reset(tokens[0])
        _explaining.reset(tokens[1])


def is_explaining() -> bool:
    """Whether what is compiled now is only reported: where nothing can be launched, torch may compute its values."""
    return _explaining.get()


def current_report() -> CompileReport:
    """The report of the enclosing `collecting`; a fresh report outside of it."""
    return _collecting.get() or CompileReport()
