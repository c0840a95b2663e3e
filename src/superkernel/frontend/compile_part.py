"""frontend.scopes: one part of a scope -> Inductor's program, recorded, matched with sub-kernels, then linked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..cache import Cache
from ..errors import UnsupportedError
from ..model.options import Options
from ..targets import find_target, model_support_of
from ..targets.protocol import Target
from .capture.partition import Part, example_inputs
from .lowering.inductor import Generated
from .lowering.lowering_cache import flags, generate
from .lowering.outline import Outlined, OutlineError, outline
from .lowering.trace_program import KernelText, Recording, record
from .program import Program
from .report import OpReport, SegmentReport, UnfusibleReport
from .run_parts import PartCallable, by_interpreter
from .segments import Draft, Segment, Step, cut_into_steps, draft, link_segments
from .settings import Fuse, Settings


@dataclass
class Drafted:
    """A part that Inductor has generated code for. None: there is nothing to run."""

    part: Part
    generated: Generated | None
    draft: Draft | None

    @property
    def unfusible(self) -> list[tuple[UnfusibleReport, bool]]:
        """Each with whether it is a collective."""
        if self.draft is None:
            return []
        return [(UnfusibleReport(u.operator, u.reason, c.origins), u.collective) for c, u in self.draft.unfusible]


@dataclass
class Compiled:
    call: PartCallable
    steps: Sequence[Step]
    generated: Generated | None
    part: Part
    program: Program | None

    def dump(self, folder: Path) -> None:
        (folder / "graph.py").write_text(self.part.module.print_readable(print_output=False))
        if self.generated is not None:
            (folder / "inductor.py").write_text(self.generated.text)
        for number, step in enumerate((step for step in self.steps if isinstance(step, Segment)), 1):
            if step.kernel is not None:
                step.kernel.dump(folder / f"segment{number}")


def drafted(part: Part, settings: Settings) -> Drafted:
    """Everything up to the point where something is compiled."""
    target = find_target(settings.target)
    fakes = example_inputs(part)
    for node, value in zip(part.inputs, fakes, strict=True):
        _check_input(node.name, value, target)
    cores = settings.cores or target.planner.core_count()
    cache = Cache()
    generated = generate(part.module, fakes, cores, cache)
    if generated is None:
        return Drafted(part, None, None)
    recording = record(generated, fakes)
    outlined, reasons = _outlined(recording.kernels, cores)
    if reasons:
        alone = generate(part.module, fakes, 1, cache)
        assert alone is not None
        recording, outlined = _with_serial(recording, record(alone, fakes), outlined, reasons)
    return Drafted(part, generated, draft(recording, outlined, target, cores))


def _check_input(name: str, value: Any, target: Target) -> None:
    if not isinstance(value, torch.Tensor):
        return
    device = model_support_of(target).device
    if value.device.type != device:
        raise UnsupportedError(f"input {name!r} is on device {value.device}, the {target.name} target needs {device}")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise UnsupportedError(
            f"input {name!r} is a {value.layout} tensor of {value.dtype}; only plain tensors are fused"
        )


def _outlined(kernels: dict[str, KernelText], cores: int) -> tuple[dict[str, Outlined], dict[str, str]]:
    """Outlined kernels, and the reasons why the others could not be."""
    done, reasons = {}, {}
    for name, text in kernels.items():
        try:
            done[name] = outline(text.source, cores)
        except OutlineError as reason:
            reasons[name] = str(reason)
    return done, reasons


def _with_serial(
    parallel: Recording, serial: Recording, outlined: dict[str, Outlined], reasons: dict[str, str]
) -> tuple[Recording, dict[str, Outlined]]:
    """The same program generated for one thread lends its kernels where those for several cannot be outlined."""
    if {n: k.types for n, k in parallel.kernels.items()} == {n: k.types for n, k in serial.kernels.items()}:
        texts = {**parallel.kernels, **{name: serial.kernels[name] for name in reasons}}
        lent = {name: outline(serial.kernels[name].source, 1) for name in reasons}
        parallel.kernels = texts
        return parallel, {**outlined, **lent}
    return serial, {name: outline(text.source, 1) for name, text in serial.kernels.items()}


def build(drafted: Drafted, name: str, options: Options, settings: Settings) -> Compiled:
    """Compile, link, and make it callable."""
    if drafted.draft is None:
        return Compiled(by_interpreter(drafted.part.module), [], None, drafted.part, None)
    target, cache = find_target(settings.target), Cache()
    steps = cut_into_steps(drafted.draft, target, flags(cache))
    link_segments(steps, name, options, settings, cache)
    program = Program(drafted.draft.recording, steps, drafted.draft.scratch.sizes, name)
    return Compiled(program, steps, drafted.generated, drafted.part, program)


def reported(compiled: Compiled, settings: Settings) -> list[SegmentReport]:
    """What a user wants to know of each segment. A reason that is empty is for the caller to give."""
    made = []
    for step in compiled.steps:
        if not isinstance(step, Segment) or step.kernel is None:
            continue
        plan = step.kernel.plan
        ops = tuple(
            OpReport(node.name, node.kernel.name, node.blocks, call.origins)
            for node, call in zip(step.kernel.graph.nodes, step.calls, strict=True)
        )
        fused = settings.fuse is not Fuse.OFF
        ended = f"ended by {step.ended_by.operator}: {step.ended_by.reason}" if step.ended_by else ""
        reason = ended if fused else "fuse=off: every op is a launch of its own"
        sizes = compiled.program.sizes(step.kernel) if compiled.program else {}
        made.append(
            SegmentReport(ops, fused, reason, plan.sync_counts, len(sizes), sum(sizes.values()), step.gate, step.kernel)
        )
    return made
