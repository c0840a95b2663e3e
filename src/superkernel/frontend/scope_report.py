"""frontend.scope_report: what became of each scope of a compiled callable, as data: ops, segments, scopes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from .capture.fusibility import Unfusible
from .collective_report import CollectiveReport
from .gate_conditions import GateConditions
from .graph_breaks import GraphBreak
from .listed_ops import ListedOp
from .part_verdict import PartChoice, PartVerdict


@dataclass(frozen=True)
class OpReport:
    """One op of a segment: a use of a sub-kernel."""

    name: str
    kernel: str
    blocks: int
    origins: tuple[str, ...]  # source lines of the model
    listed: ListedOp | None = None  # its entry in the op list, for a target whose operators come compiled
    generated: bool = False  # its kernel was written by a compiler, not registered for an operator

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
    obstacle: Unfusible | None = None  # the op that ended it, or for which nothing of it is fused
    verdict: PartVerdict | None = None  # of the comparison with stock Inductor; None: not compared
    collectives: tuple[CollectiveReport, ...] = ()

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
    def conditions(self) -> GateConditions | None:
        """When the times were measured, and at which load; None: there are none."""
        decided = self.verdict if self.left_out or self.gate is None else self.gate
        return None if decided is None else decided.conditions

    @property
    def measured(self) -> str:
        return "" if self.conditions is None else str(self.conditions)

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
            "collectives": [collective.to_dict() for collective in self.collectives],
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
class CompileFacts:
    """What the back end compiled for one callable."""

    scopes: list[ScopeReport] = field(default_factory=list)
    graphs: int = 0
    outside: int = 0  # nodes that belong to no scope
    outside_by: str = "Inductor"  # what runs them; empty: nothing
    notes: list[str] = field(default_factory=list)
    cache: Counter[str] = field(default_factory=Counter)  # hits, misses
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    skipped: list[GraphBreak] = field(default_factory=list)  # why Dynamo made no graph of a function
    is_script: bool = False  # everything that one process of a script compiles

    @property
    def segments(self) -> list[SegmentReport]:
        return [segment for scope in self.scopes for segment in scope.segments]

    def add(self, other: CompileFacts) -> None:
        """What was compiled besides."""
        self.scopes += [replace(scope, number=self.graphs + scope.number) for scope in other.scopes]
        self.graphs += other.graphs
        self.outside += other.outside
        self.notes += [note for note in other.notes if note not in self.notes]
        self.cache += other.cache
