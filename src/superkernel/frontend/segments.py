"""frontend.segments: the traced calls of a part -> segments, each one super kernel, and torch calls between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch.utils._pytree import tree_map

from ..cache import Cache
from ..errors import UnsupportedError
from ..model.op import Op
from ..model.options import Options
from ..model.subkernel import SubKernel
from ..model.tensor_arg import ScratchBuffers
from ..runtime.compile import compile as link_ops
from ..runtime.super_kernel import SuperKernel
from ..targets import model_support_of
from ..targets.collectives import CollectiveSupport
from ..targets.operator_library import OperatorLibrary
from ..targets.protocol import ModelSupport, Target
from .capture.fusibility import Cause, Unfusible
from .capture.written_arguments import written_arguments
from .collective_calls import communicates
from .collective_match import CollectiveMatcher, FusedCollective, StartedCollectives, is_inside_machine
from .gate_conditions import measuring_policy
from .left_to_torch import why_left_to_torch
from .listed_ops import ListedOp, listed_op
from .lowering.program_trace import (
    KernelCall,
    LibraryCall,
    ProgramCall,
    ProgramTrace,
    TracedTensor,
    kernel_argument,
)
from .lowering.protocol import KernelOps
from .pending_collectives import PendingCollectives
from .profit_gate import FUSED, ON_ONE_CORE, LaunchFunction, ProfitGate
from .rank_rounds import RankRounds
from .registry import find_kernel, make_ops, named_arguments
from .settings import BackendSettings, Fuse


@dataclass
class Segment:
    """Ops that become one super kernel."""

    ops: list[Op] = field(default_factory=list)
    calls: list[ProgramCall] = field(default_factory=list)  # by op
    described: list[Op] = field(default_factory=list)  # its ops without compiled kernels, where these are known
    listed: list[ListedOp] = field(default_factory=list)  # by op, for a target whose operators come compiled
    emulated: bool = False  # it cannot be launched here
    ended_by: Unfusible | None = None
    kernel: SuperKernel | None = None
    launch: LaunchFunction | None = None
    gate: ProfitGate | None = None
    collectives: list[FusedCollective] = field(default_factory=list)
    rounds: RankRounds | None = None  # of its collectives
    pending: PendingCollectives = field(default_factory=PendingCollectives)  # while ops are added

    def finish(self, collectives: Sequence[FusedCollective]) -> None:
        for collective in collectives:
            self.ops += collective.ops.finish
            self.calls += [collective.call] * len(collective.ops.finish)


@dataclass(frozen=True)
class TorchCall:
    """A call that torch runs between segments."""

    call: LibraryCall
    why: Unfusible


ProgramStep = Segment | TorchCall
# the ops of a registered kernel, the collectives that it starts, why torch runs it, or None: a generated kernel
CallMatch = list[Op] | StartedCollectives | Unfusible | None


@dataclass(frozen=True)
class MatchedProgram:
    """The calls of a program, each with what runs it."""

    trace: ProgramTrace
    calls: list[tuple[ProgramCall, CallMatch]]
    scratch: ScratchBuffers

    @property
    def unfusible(self) -> list[Unfusible]:
        return [match for _, match in self.calls if isinstance(match, Unfusible)]

    @property
    def library_kernels(self) -> list[SubKernel]:
        """The sub-kernels of the library calls."""
        return [op.kernel for _, match in self.calls if isinstance(match, list) for op in match]

    @property
    def has_collectives(self) -> bool:
        """Whether some are fused."""
        return any(isinstance(match, tuple) and match for _, match in self.calls)


def match_calls(
    trace: ProgramTrace,
    target: Target,
    cores: int,
    left_to_library: Mapping[int, str] = MappingProxyType({}),
    collectives: CollectiveSupport | None = None,
) -> MatchedProgram:
    """Look up every library call in the registry; nothing is compiled.

    `left_to_library`: calls, by index, that torch runs although they have a sub-kernel, and why. `collectives` None:
    torch runs them.
    """
    scratch = ScratchBuffers("scratch")
    calls: list[tuple[ProgramCall, CallMatch]] = []
    matcher = CollectiveMatcher(collectives, cores)
    for index, call in enumerate(trace.calls):
        if isinstance(call, KernelCall):
            calls.append((call, None))
        elif communicates(call.op._schema.name):
            calls.append((call, matcher.match(call)))
        elif index in left_to_library:
            reason = left_to_library[index]
            calls.append((call, Unfusible(call.op._schema.name, reason, call.origins, Cause.LIBRARY_FASTER)))
        else:
            calls.append((call, match_library_call(call, target, cores, scratch)))
    return MatchedProgram(trace, calls, scratch)


def is_left_inside_machine(program: MatchedProgram) -> bool:
    """Whether torch would run a collective of some ranks of a group, for which it knows no group."""
    left = [call for call, match in program.calls if isinstance(match, Unfusible) and isinstance(call, LibraryCall)]
    return any(communicates(call.op._schema.name) and is_inside_machine(call) for call in left)


def match_library_call(call: LibraryCall, target: Target, cores: int, scratch: ScratchBuffers) -> list[Op] | Unfusible:
    """The ops of the kernel that is registered for the operator."""
    name = call.op._schema.name
    if communicates(name):  # without the rest of the program, nothing is known of its results
        return Unfusible(name, "collective", call.origins, Cause.COLLECTIVE)
    registered = find_kernel(call.op, target)
    if registered is None:
        return Unfusible(name, why_left_to_torch(call, model_support_of(target)), call.origins)
    try:
        named, outs = named_arguments(call.op, call.args, call.kwargs)
        results = outs or [result for result in call.results if result is not None]
        arguments = tree_map(kernel_argument, named, is_leaf=lambda value: isinstance(value, TracedTensor))
        written = [kernel_argument(view) for view in results]
        ops = make_ops(registered, arguments, written, cores, scratch, written_arguments(call.op))
    except UnsupportedError as reason:
        return Unfusible(name, str(reason), call.origins)
    call.allocate_results()
    return [op if op.name else replace(op, name=name.split("::")[1]) for op in ops]


def cut_segments(program: MatchedProgram, kernel_ops: KernelOps) -> list[ProgramStep]:
    """Segments end where a call has no sub-kernel."""
    steps: list[ProgramStep] = []
    for call, match in program.calls:
        last = steps[-1] if steps and isinstance(steps[-1], Segment) else None
        if isinstance(match, Unfusible):
            assert isinstance(call, LibraryCall)
            if last is not None:
                last.finish(last.pending.rest())
                last.ended_by = match
            steps.append(TorchCall(call, match))
            continue
        started = match if isinstance(match, tuple) else ()
        ops = [op for collective in started for op in collective.ops.start]
        if isinstance(match, list):
            ops = match
        elif isinstance(call, KernelCall):
            ops = kernel_ops(call)
        if not ops and not any(collective.ops.finish for collective in started):
            continue  # a wait for a collective: ops that need it come behind its finish
        if last is None:
            steps.append(last := Segment())
        last.finish(last.pending.needed_by(ops))
        last.ops += ops
        last.calls += [call] * len(ops)
        last.collectives += started
        for collective in started:
            last.pending.start(collective)
    segments = [step for step in steps if isinstance(step, Segment)]
    if segments and segments[-1] is steps[-1]:
        segments[-1].finish(segments[-1].pending.rest())
    _name_ops(segments)
    return steps


def _name_ops(segments: Sequence[Segment]) -> None:
    """Every op of a program has a name of its own."""
    uses: Counter[str] = Counter()
    for segment in segments:
        for index, op in enumerate(segment.ops):
            name = op.name or op.kernel.name
            uses[name] += 1
            segment.ops[index] = replace(op, name=name if uses[name] == 1 else f"{name}_{uses[name]}")


def list_ops(
    steps: Sequence[ProgramStep], library: OperatorLibrary, folder: str | None, scratch: ScratchBuffers
) -> None:
    """The compiled kernels of the ops, where they are known, and the op list of every segment."""
    for segment in (step for step in steps if isinstance(step, Segment)):
        known = library.find_kernels(segment.ops, None if folder is None else Path(folder), scratch)
        segment.described, segment.ops = segment.ops, [found.op for found in known]
        segment.listed = [listed_op(found, call) for found, call in zip(known, segment.calls, strict=True)]


def link_segments(
    steps: Sequence[ProgramStep],
    name: str,
    options: Options,
    settings: BackendSettings,
    support: ModelSupport,
    cache: Cache,
    left_out: bool = False,
) -> None:
    """A super kernel for every segment, and the function that launches it. `left_out`: none will be launched."""
    segments = [step for step in steps if isinstance(step, Segment)]
    for number, segment in enumerate(segments, 1):
        full_name = name if len(segments) == 1 else f"{name}_{number}"
        debugged = options.debug_replay or options.debug_check
        library = support.operators
        gated = settings.fuse is not Fuse.OFF and settings.profit_gate and not debugged and library is None
        gated = gated and not segment.collectives  # each rank would decide for itself, and trials need all of them
        kernel = segment.kernel = link_ops(
            segment.ops,
            full_name,
            options,
            settings.target,
            cores=settings.cores,
            chip=settings.chip,
            cores_by_work=not gated,  # the gate measures: it tries all cores and one
            title="segment",
        )
        has_code = library is None or all(map(library.has_code, segment.ops))
        segment.emulated = kernel.target.launcher is None or not has_code
        if segment.emulated:
            segment.launch = _refuse_launch  # until emulate_segments
        elif settings.fuse is Fuse.OFF:
            segment.launch = _unfused_launch(kernel)
        elif gated and (len(segment.ops) > 1 or kernel.runs_alone):
            key = f"{kernel.executable.binary.name} {kernel.plan.cores} {measuring_policy()}"
            fused = {ON_ONE_CORE: kernel.launch_values_alone} if kernel.runs_alone else {}
            fused[FUSED] = kernel.launch_values
            build_unfused = partial(_unfused_launch, kernel) if len(segment.ops) > 1 else None
            gate = ProfitGate(fused, build_unfused, support.clock, key, cache, kernel.crowded)
            segment.launch = segment.gate = gate
            if not left_out:
                gate.begin_build()
        else:
            segment.launch = kernel.launch_values
        if segment.collectives and support.collectives is not None:
            segment.rounds = RankRounds(kernel.graph, segment.collectives, support.collectives)
            segment.launch = segment.rounds.launching(segment.launch)


def _refuse_launch(values: Any, sizes: Any) -> None:
    raise UnsupportedError("nothing can be launched here")


def _unfused_launch(kernel: SuperKernel) -> Callable[[Any, Any], None]:
    kernel.unfused()

    def launch(values: Any, sizes: Any) -> None:
        kernel.unfused().launch_values(values, sizes)  # asked anew: with a profile they take time stamps

    return launch
