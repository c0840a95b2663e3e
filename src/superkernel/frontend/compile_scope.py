"""frontend.compile_scope: the parts of one scope -> lowered, checked together, built; with a report of each segment."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch.fx import Node

from ..errors import BuildError, LaunchError, OptionError, SuperKernelError, UnsupportedError
from ..model.options import Options, StrictScopeCheck
from ..runtime.launch_events import Provenance
from .capture.fusibility import Cause, Unfusible, unfusible_node
from .capture.partition import GraphPart, example_inputs, is_free
from .compile_part import (
    CompiledPart,
    LoweredPart,
    build_part,
    lower_part,
    lower_with_library_calls,
    segment_reports,
)
from .lowering.inductor import compile_context, copied_module
from .part_gate import MeasuredPart, PartGate
from .part_verdict import LibraryCallTimes, PartChoice, PartVerdict
from .program import Program
from .run_parts import PartFunction
from .scope_report import ScopeReport, SegmentReport
from .segments import Segment, TorchCall
from .settings import BackendSettings

_log = logging.getLogger("superkernel")
_NOT_STRICT = (Cause.COLLECTIVE, Cause.LIBRARY_FASTER)  # not the user's mistake: the strict check ignores them
_dumps: Counter[Path] = Counter()  # folders written so far, by scope


@dataclass(frozen=True)
class ScopeCompiler:
    """Compiles the parts of one scope of one graph."""

    settings: BackendSettings
    report: ScopeReport
    options: Options
    unfusible: Mapping[Node, Unfusible]  # ops of the scope that the graph alone shows to be unfusible
    warn_once: Callable[[str], None]
    compile_stock: Callable[[GraphPart, str], PartFunction]  # by Inductor; takes the reason, for profiles

    @property
    def _prefix(self) -> str:
        return f"super_kernel_scope {self.report.name!r}: "

    def refuses_data_dependence(self, named: bool) -> bool:
        """Sizes that depend on data are an error in a named scope; an unnamed scope is left to Inductor."""
        causes = {Cause.DATA_DEPENDENT_SIZE} if named else {Cause.DATA_DEPENDENT_SIZE, Cause.DATA_DEPENDENT_NUMBER}
        found = next((unfusible for unfusible in self.unfusible.values() if unfusible.cause in causes), None)
        if found is None:
            return False
        if named:
            raise UnsupportedError(
                f"{self._prefix}{found}; a super kernel is compiled for one shape: give it a fixed size "
                "(torch._dynamo.mark_static for an input), or leave it out of the scope"
            )
        self._fall_back(UnsupportedError(str(found)), found)
        return True

    def lies_inside(self, operator: str) -> None:
        """The scope is in the body of a higher-order operator."""
        reason = f"it lies inside of {operator}, a higher-order operator, which is left to Inductor"
        self._fall_back(UnsupportedError(reason), Unfusible(operator, reason, cause=Cause.HIGHER_ORDER))

    def compile(self, all_parts: Sequence[GraphPart]) -> dict[GraphPart, PartFunction]:
        """A function for each part of the scope that becomes super kernels."""
        parts = [part for part in all_parts if part.scope == self.report.name]
        lowered: dict[GraphPart, LoweredPart] = {}
        for part in parts:
            try:
                lowered[part] = lower_part(part, self.options, self.settings)
            except (OptionError, LaunchError):  # LaunchError: other ranks do not answer
                raise
            except Exception as reason:  # the first of three fallback points: Inductor compiles what we cannot lower
                self._fall_back(reason)
        if not self._passes_strict_check(lowered.values(), all_parts, len(lowered) == len(parts)):
            return {}
        functions: dict[GraphPart, PartFunction] = {}
        for part, lowered_part in lowered.items():
            try:
                compiled = build_part(lowered_part, self.report.name, self.options, self.settings)
            except OptionError:
                raise
            except Exception as reason:  # the second fallback point: what we lowered does not build
                self._fall_back(reason)
                continue
            reports = self._report(compiled, all_parts)
            functions[part] = self._gated(compiled, lowered_part, reports, all_parts)
        return functions

    def _gated(
        self,
        compiled: CompiledPart,
        lowered_part: LoweredPart,
        reports: Sequence[SegmentReport],
        all_parts: Sequence[GraphPart],
    ) -> PartFunction:
        """The function of a part: as its verdict says, or one that measures before its first call."""
        part, program, matched = compiled.part, compiled.program, lowered_part.matched
        if lowered_part.gate_key is None or program is None or matched is None:
            return compiled.function
        if (verdict := lowered_part.verdict) is not None:
            for report in reports:
                report.apply(verdict)
            if verdict.choice is not PartChoice.INDUCTOR:
                return program
            return PartGate(None, program, self.compile_stock(part, verdict.reason))
        rebuilt: list[CompiledPart] = []

        def with_library_calls(calls: Sequence[LibraryCallTimes]) -> Program:
            with compile_context(example_inputs(part)):
                lowered = lower_with_library_calls(part, calls, self.settings)
                rebuilt.append(build_part(lowered, self.report.name, self.options, self.settings))
            assert rebuilt[-1].program is not None
            return rebuilt[-1].program

        def report_verdict(verdict: PartVerdict) -> None:
            shown = reports
            if verdict.choice is PartChoice.LIBRARY_CALLS:
                self.report.segments = [
                    segment for segment in self.report.segments if not any(segment is replaced for replaced in reports)
                ]
                torch_calls = [step.why for step in rebuilt[-1].steps if isinstance(step, TorchCall)]
                self.report.unfusible += [why for why in torch_calls if why.cause is Cause.LIBRARY_FASTER]
                shown = self._report(rebuilt[-1], all_parts)
            for report in shown:
                report.apply(verdict)
            decided = verdict.reason or verdict.note or verdict.choice.value
            _log.info("%s%s; %s", self._prefix, decided, verdict.conditions)

        return PartGate(
            MeasuredPart(
                part,
                matched,
                [step for step in compiled.steps if isinstance(step, Segment)],
                program,
                lowered_part.gate_key,
                self.settings.cache,
                self.settings.model_support.clock,
                partial(self._stock_later, part),
                with_library_calls,
                report_verdict,
            ),
            program,
        )

    def _stock_later(self, part: GraphPart, reason: str) -> PartFunction:
        """Inductor's code for a part, compiled when the graph is no longer being traced."""
        with compile_context(example_inputs(part)):
            return self.compile_stock(replace(part, module=copied_module(part.module)), reason)

    def _passes_strict_check(
        self, lowered: Iterable[LoweredPart], all_parts: Sequence[GraphPart], is_complete: bool
    ) -> bool:
        """Whether the scope may be fused as far as possible; an error under strict-scope-check=abort."""
        found = [*self.unfusible.values(), *(unfusible for part in lowered for unfusible in part.unfusible)]
        foreign = self._foreign_ops(all_parts)
        self.report.unfusible += found
        strict = [*(unfusible for unfusible in found if unfusible.cause not in _NOT_STRICT), *foreign]
        check = self.options.strict_scope_check
        reasons = "; ".join(map(str, strict))
        if strict and check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._prefix}strict-scope-check=abort: {reasons}")
        if check is not StrictScopeCheck.BYPASS or (is_complete and not strict):
            return True
        self.report.unfusible += foreign
        if strict:
            self.warn_once(f"{self._prefix}strict-scope-check=bypass: the scope is not fused: {reasons}")
            reason = f"strict-scope-check=bypass: {strict[0]}"
            self.report.segments.append(SegmentReport((), False, reason, obstacle=strict[0]))
        return False

    def _foreign_ops(self, all_parts: Sequence[GraphPart]) -> list[Unfusible]:
        """The first op of each part outside of the scope that lies between its first and its last op."""
        places = [at for at, part in enumerate(all_parts) if part.scope == self.report.name]
        found = []
        for part in all_parts[places[0] : places[-1]] if places else []:
            node = next((node for node in part.nodes if not is_free(node) and node not in self.unfusible), None)
            if part.scope != self.report.name and node is not None:
                owner = f"of scope {part.scope!r}" if part.scope else "outside of the scope"
                found.append(unfusible_node(node, f"an op {owner} lies between its ops", Cause.OUTSIDE_SCOPE))
        return found

    def _fall_back(self, reason: Exception, obstacle: Unfusible | None = None) -> None:
        """Inductor runs what cannot be lowered or built, with one warning; strict-scope-check=abort refuses it."""
        kind = "" if isinstance(reason, SuperKernelError) else f"{type(reason).__name__}: "
        notes = "".join(f" ({note})" for note in getattr(reason, "__notes__", ()))
        text = f"{kind}{reason}{notes}".removeprefix(self._prefix)
        if self.options.strict_scope_check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._prefix}strict-scope-check=abort: {text}") from reason
        self.warn_once(f"{self._prefix}runs unfused through Inductor: {text}")
        _log.debug("%srefused", self._prefix, exc_info=reason)
        self.report.segments.append(SegmentReport((), False, text, obstacle=obstacle))

    def _report(self, compiled: CompiledPart, all_parts: Sequence[GraphPart]) -> list[SegmentReport]:
        segments = segment_reports(compiled, self.settings)
        unfusible = tuple(map(str, self.report.unfusible))
        for segment in segments:
            if not segment.reason:
                segment.reason, segment.obstacle = self._why_part_ends(compiled.part, all_parts)
            provenance: Provenance = segment.kernel.provenance
            provenance.scope, provenance.reason, provenance.unfusible = self.report.name, segment.reason, unfusible
            provenance.origins = {op.name: op.origins for op in segment.ops}
        self.report.segments += segments
        if self.settings.dump is not None:
            _dump(compiled, self.report, Path(self.settings.dump))
        return segments

    def _why_part_ends(self, part: GraphPart, all_parts: Sequence[GraphPart]) -> tuple[str, Unfusible | None]:
        """The reason, and the op that keeps the next part of the scope apart, if there is such a part."""
        following = all_parts[all_parts.index(part) + 1 :]
        if not following:
            return "ended with the graph", None
        nodes = following[0].nodes
        node = next((node for node in nodes if not is_free(node)), nodes[0])
        if node in self.unfusible:
            return f"ended by {node.target}: {self.unfusible[node].reason}", self.unfusible[node]
        if all(other.scope != part.scope for other in following):
            return "ended with the scope", None
        foreign = unfusible_node(node, "it lies outside of the scope, between its ops", Cause.OUTSIDE_SCOPE)
        return f"ended by {node.target}, which lies outside of the scope", foreign


def _dump(compiled: CompiledPart, report: ScopeReport, directory: Path) -> None:
    """A folder for each part of each graph: scope/1_inference, scope/2_backward, ..."""
    scope_folder = directory / re.sub(r"[^\w-]", "_", report.name)
    _dumps[scope_folder] += 1
    folder = scope_folder / f"{_dumps[scope_folder]}_{report.kind}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        compiled.dump(folder)
    except OSError as reason:
        raise BuildError(f"super_kernel_scope {report.name!r}: cannot be dumped in {folder}: {reason}") from reason
