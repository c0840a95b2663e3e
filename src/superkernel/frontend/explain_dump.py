"""frontend.explain_dump: a graph that a target's own tools dumped -> the op list of each of its scopes, as a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import OptionError, SuperKernelError, UnsupportedError
from ..model.op import Op
from ..model.options import Options, StrictScopeCheck
from ..model.tensor_arg import ScratchBuffers, TensorArg
from ..runtime.compile import compile as link_ops
from ..targets.operator_library import DumpedOp, GraphDump, OperatorLibrary
from .capture.fusibility import Cause, Unfusible
from .compile_graph import WHOLE_GRAPH
from .listed_ops import listed_op
from .report import CompileReport
from .scope_report import OpReport, ScopeReport, SegmentReport
from .settings import BackendSettings, Fuse

_KIND = "dump"


def explain_dump(path: Path, options: Mapping[str, Any] | None = None) -> CompileReport:
    """What would become of every scope of a dumped graph; nothing runs."""
    settings = BackendSettings.parse(options)
    library = settings.model_support.operators
    if library is None:
        raise OptionError(
            f"{path} is no Python file, and target {settings.target!r} reads no dumped graphs: use --target ascend for "
            "those of GE and torchair"
        )
    report = CompileReport(outside_by="")
    for graph in library.read_graphs(path):
        report.graphs += 1
        scopes = _scopes(graph, settings)
        report.outside += len(graph.ops) - sum(map(len, scopes.values()))
        for name, ops in scopes.items():
            reader = _ScopeReader(name, graph, frozenset(ops), settings, library, f"{path}: op ")
            report.scopes.append(reader.report(report.graphs))
    return report


def _scopes(graph: GraphDump, settings: BackendSettings) -> dict[str, list[DumpedOp]]:
    """The ops of each scope; a graph without scopes is one, unless only marked ops are wanted."""
    names = list(dict.fromkeys(op.scope for op in graph.ops if op.scope is not None))
    if settings.fuse is Fuse.WHOLE or (not names and settings.fuse is not Fuse.MARKED):
        return {WHOLE_GRAPH: list(graph.ops)}
    return {name: [op for op in graph.ops if op.scope == name] for name in names}


@dataclass
class _ScopeReader:
    """Cuts one scope of a graph into segments and describes each."""

    name: str
    graph: GraphDump
    members: frozenset[DumpedOp]
    settings: BackendSettings
    library: OperatorLibrary
    where: str
    scratch: ScratchBuffers = field(default_factory=lambda: ScratchBuffers("scratch"))

    @property
    def _prefix(self) -> str:
        return f"super_kernel_scope {self.name!r}: "

    def report(self, number: int) -> ScopeReport:
        options = self._options()
        found = [self._unfusible(op) for op in self.graph.ops if op in self.members and op.op is None]
        foreign = self._foreign()
        report = ScopeReport(self.name, str(options), number, _KIND, unfusible=list(found))
        strict = [*(unfusible for unfusible in found if unfusible.cause is not Cause.COLLECTIVE), *foreign]
        reasons = "; ".join(map(str, strict))
        if strict and options.strict_scope_check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._prefix}strict-scope-check=abort: {reasons}")
        if strict and options.strict_scope_check is StrictScopeCheck.BYPASS:
            report.unfusible += foreign
            reason = f"strict-scope-check=bypass: {strict[0]}"
            report.segments.append(SegmentReport((), False, reason, obstacle=strict[0]))
            return report
        runs = self._runs()
        for place, (ops, reason, obstacle) in enumerate(runs, 1):
            name = re.sub(r"\W", "_", self.name) + ("" if len(runs) == 1 else f"_{place}")
            report.segments.append(replace(self._segment(ops, name, options, reason), obstacle=obstacle))
        return report

    def _options(self) -> Options:
        given = {op.options: op for op in self.graph.ops if op in self.members and op.options.strip()}
        parsed = {}
        for text, op in given.items():
            try:
                parsed[Options.parse(text)] = op
            except OptionError as error:
                raise OptionError(f"{self._prefix}{error} ({self.where}{op.name})") from None
        if len(parsed) > 1:
            first, second = list(parsed.values())[:2]
            raise OptionError(
                f"{self._prefix}is given different options: {first.options!r} by {first.name}, "
                f"and {second.options!r} by {second.name}"
            )
        return next(iter(parsed), Options.parse(self.settings.options))

    def _unfusible(self, op: DumpedOp) -> Unfusible:
        cause = Cause.COLLECTIVE if op.collective else Cause.NO_KERNEL
        return Unfusible(op.op_type, op.reason, (f"{self.where}{op.name}",), cause)

    def _foreign(self) -> list[Unfusible]:
        """The first op of each run of others between the first and the last op of the scope."""
        places = [at for at, op in enumerate(self.graph.ops) if op in self.members]
        between = self.graph.ops[places[0] : places[-1]]
        found = []
        for inside, run in groupby(between, key=lambda op: op in self.members):
            op = next(run)
            if not inside:
                found.append(self._foreign_op(op))
        return found

    def _foreign_op(self, op: DumpedOp) -> Unfusible:
        owner = f"of scope {op.scope!r}" if op.scope else "outside of the scope"
        reason = f"an op {owner} lies between its ops"
        return Unfusible(op.op_type, reason, (f"{self.where}{op.name}",), Cause.OUTSIDE_SCOPE)

    def _runs(self) -> list[tuple[list[Op], str, Unfusible | None]]:
        """Ops that become one super kernel, why each run ends where it does, and the op that ends it."""
        runs: list[tuple[list[Op], str, Unfusible | None]] = []
        current: list[Op] = []
        left = sum(op in self.members for op in self.graph.ops)
        for dumped in self.graph.ops:
            is_member = dumped in self.members
            left -= is_member
            if is_member and dumped.op is not None:
                current.append(dumped.op)
                continue
            if current and (is_member or left):
                why = dumped.reason if is_member else "which lies outside of the scope"
                reason = f"ended by {dumped.op_type}{': ' if is_member else ', '}{why}"
                runs.append((current, reason, self._unfusible(dumped) if is_member else self._foreign_op(dumped)))
                current = []
        return [*runs, (current, "ended with the scope", None)] if current else runs

    def _segment(self, ops: Sequence[Op], name: str, options: Options, reason: str) -> SegmentReport:
        folder = None if self.settings.kernel_meta is None else Path(self.settings.kernel_meta)
        known = self.library.find_kernels(ops, folder, self.scratch)
        reports = tuple(
            OpReport(str(found.op.name), found.op.kernel.name, found.op.kernel.block_dim, (), listed_op(found))
            for found in known
        )
        try:
            target, chip = self.settings.target, self.settings.chip
            kernel = link_ops([found.op for found in known], name, options, target, chip=chip, title="segment")
        except SuperKernelError as why:
            return SegmentReport(reports, False, str(why).removeprefix(f"super_kernel_scope {name!r}: "))
        sizes = _sizes(found.op for found in known)
        has_code = all(self.library.has_code(found.op) for found in known)
        emulated = kernel.target.launcher is None or not has_code
        counts = kernel.plan.sync_counts, len(kernel.graph.buffers), sum(sizes.values())
        return SegmentReport(reports, True, reason, *counts, None, kernel, emulated)


def _sizes(ops: Iterable[Op]) -> dict[str, int]:
    """The bytes of each buffer."""
    sizes: dict[str, int] = {}
    for argument in (argument for op in ops for argument in op.args):
        if isinstance(argument, TensorArg):
            sizes[argument.name] = max(sizes.get(argument.name, 0), argument.numel * argument.itemsize)
    return sizes
