"""frontend.compile_part: one part of a scope -> lowered, matched with sub-kernels, linked, callable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..cache import Cache
from ..errors import UnsupportedError
from ..model.options import Options
from .capture.fusibility import Unfusible
from .capture.partition import GraphPart, example_inputs
from .collective_report import report_collective
from .comparable_parts import is_comparable
from .emulated_launch import emulate_segments
from .left_out_collectives import group_names
from .listed_ops import op_list
from .lowering import find_lowering
from .lowering.program_trace import KernelCall
from .lowering.protocol import LoweredProgram
from .machine_collectives import divide_collectives
from .part_verdict import VERDICTS, LibraryCallTimes, PartChoice, PartVerdict, part_key
from .process_groups import meet_groups
from .program import Program
from .report import is_explaining
from .run_parts import PartFunction, op_by_op
from .scope_report import OpReport, SegmentReport
from .segments import (
    MatchedProgram,
    ProgramStep,
    Segment,
    cut_segments,
    is_left_inside_machine,
    link_segments,
    list_ops,
    match_calls,
)
from .settings import BackendSettings, Fuse


@dataclass(frozen=True)
class LoweredPart:
    """A part for which Inductor has generated code. None: there is nothing to run."""

    part: GraphPart
    lowered: LoweredProgram | None
    matched: MatchedProgram | None
    gate_key: str | None = None  # of its verdict; None: it is not compared with stock Inductor
    verdict: PartVerdict | None = None  # None: not measured yet

    @property
    def unfusible(self) -> list[Unfusible]:
        return self.matched.unfusible if self.matched is not None else []


@dataclass(frozen=True)
class CompiledPart:
    """A part that can be called."""

    function: PartFunction
    part: GraphPart
    steps: Sequence[ProgramStep] = ()
    program: Program | None = None
    generated_text: str | None = None

    def dump(self, folder: Path) -> None:
        (folder / "graph.py").write_text(self.part.module.print_readable(print_output=False))
        if self.generated_text is not None:
            (folder / "inductor.py").write_text(self.generated_text)
        for number, step in enumerate((step for step in self.steps if isinstance(step, Segment)), 1):
            if step.kernel is not None:
                step.kernel.dump(folder / f"segment{number}")
            if step.listed and step.kernel is not None:
                names = [node.name for node in step.kernel.graph.nodes]
                content = op_list(
                    step.kernel.name, str(step.kernel.options), list(zip(names, step.listed, strict=True))
                )
                (folder / f"segment{number}" / "op_list.json").write_text(json.dumps(content, indent=1) + "\n")


def lower_part(part: GraphPart, options: Options, settings: BackendSettings) -> LoweredPart:
    """Everything up to the point where kernels are compiled. A verdict of the profit gate is applied."""
    lowered = _lower(part, settings)
    if lowered.matched is None or not _is_compared(part, lowered.matched, options, settings):
        return lowered
    key = part_key(part, lowered.matched.library_kernels, _cores(settings), settings)
    verdict = VERDICTS.find(key, Cache())
    if verdict is not None and verdict.choice is PartChoice.LIBRARY_CALLS:
        lowered = _lower(part, settings, verdict.library_calls)  # matching changes a trace: again from the text
    return replace(lowered, gate_key=key, verdict=verdict)


def lower_with_library_calls(
    part: GraphPart, calls: Sequence[LibraryCallTimes], settings: BackendSettings
) -> LoweredPart:
    """The part with these calls left to torch."""
    return _lower(part, settings, calls)


def _is_compared(part: GraphPart, matched: MatchedProgram, options: Options, settings: BackendSettings) -> bool:
    """Whether stock Inductor may take the place of the part; it would use as many threads as torch has."""
    debugged = options.debug_replay or options.debug_check
    has_torch_threads = settings.cores in (None, torch.get_num_threads())
    target = settings.chosen_target
    is_launched_here = target.launcher is not None and settings.model_support.operators is None
    is_gated = settings.profit_gate and not debugged and has_torch_threads and is_launched_here
    return is_gated and is_comparable(part, matched)


def _cores(settings: BackendSettings) -> int:
    return settings.cores or settings.chosen_target.planner.core_count()


def _lower(part: GraphPart, settings: BackendSettings, left_to_library: Sequence[LibraryCallTimes] = ()) -> LoweredPart:
    support = settings.model_support
    fakes = example_inputs(part)
    collectives = support.collectives
    if collectives is not None:  # before anything that may fail on this rank alone
        meet_groups(group_names(part), collectives)
    for node, value in zip(part.inputs, fakes, strict=True):
        check_input(node.name, value, settings.target, support.device)
    divided = None if collectives is None else divide_collectives(part.module, collectives)
    for module in (divided, part.module):
        if module is None:
            continue
        lowered = find_lowering(support.kernel_language).lower(module, fakes, _cores(settings), Cache(), support)
        if lowered is None:
            return LoweredPart(part, None, None)
        reasons = {call.call: call.reason for call in left_to_library}
        matched = match_calls(lowered.trace, settings.chosen_target, _cores(settings), reasons, collectives)
        if module is part.module or not is_left_inside_machine(matched):
            break
    return LoweredPart(part, lowered, matched)


def check_input(name: str, value: Any, target: str, device: str) -> None:
    if not isinstance(value, torch.Tensor):
        return
    if value.device.type != device:
        raise UnsupportedError(f"input {name!r} is on device {value.device}, the {target} target needs {device}")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        kind = f"{value.layout} tensor of {value.dtype}"
        raise UnsupportedError(f"input {name!r} is a {kind}; only plain tensors are fused")
    if value.is_conj() or value.is_neg():
        lazy = "conjugated" if value.is_conj() else "negated"
        raise UnsupportedError(f"input {name!r} is {lazy} lazily; pass it with resolve_conj() or resolve_neg()")


def build_part(lowered_part: LoweredPart, name: str, options: Options, settings: BackendSettings) -> CompiledPart:
    """Compile the kernels, link the segments, and make the part callable."""
    part, lowered, matched = lowered_part.part, lowered_part.lowered, lowered_part.matched
    if lowered is None or matched is None:
        return CompiledPart(op_by_op(part.module), part)
    support, cache = settings.model_support, Cache()
    steps = cut_segments(matched, lowered.kernels.compile(support, matched.scratch, cache))
    if support.operators is not None:
        list_ops(steps, support.operators, settings.kernel_meta, matched.scratch)
    is_left_out = lowered_part.verdict is not None and lowered_part.verdict.choice is PartChoice.INDUCTOR
    link_segments(steps, name, options, settings, support, cache, is_left_out)
    described = is_explaining() and any(isinstance(step, Segment) and step.emulated for step in steps)
    if support.operators is not None and not described:
        emulate_segments(steps, options, settings)
    program = Program(lowered.trace, steps, matched.scratch.sizes, support, name)
    function = op_by_op(part.module) if described else program
    return CompiledPart(function, part, steps, program, lowered.generated.text)


def segment_reports(compiled: CompiledPart, settings: BackendSettings) -> list[SegmentReport]:
    """A report of each segment. The reason is empty where the segment ends with its part."""
    reports = []
    for step in compiled.steps:
        if not isinstance(step, Segment) or step.kernel is None:
            continue
        ops = tuple(
            OpReport(
                node.name,
                node.kernel.name,
                node.blocks,
                call.origins,
                step.listed[index] if step.listed else None,
                isinstance(call, KernelCall),
            )
            for index, (node, call) in enumerate(zip(step.kernel.graph.nodes, step.calls, strict=True))
        )
        fused = settings.fuse is not Fuse.OFF
        ended = f"ended by {step.ended_by.op}: {step.ended_by.reason}" if step.ended_by else ""
        reason = ended if fused else "fuse=off: every op is a launch of its own"
        sizes = compiled.program.sizes(step.kernel) if compiled.program else {}
        counts = step.kernel.plan.sync_counts, len(sizes), sum(sizes.values())
        costs = settings.chosen_target.planner.machine(step.kernel.plan.cores).costs if step.collectives else None
        collectives = tuple(report_collective(each, costs) for each in step.collectives) if costs else ()
        report = SegmentReport(ops, fused, reason, *counts, step.gate, step.kernel, step.emulated, step.ended_by)
        report.collectives = collectives
        reports.append(report)
    return reports
