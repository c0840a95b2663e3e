"""frontend.segments: the recorded calls of a scope -> segments, each one super kernel, and torch calls between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch.utils._pytree import tree_map

from ..cache import Cache
from ..errors import UnsupportedError
from ..model.op import Op
from ..model.options import Options
from ..model.tensor_arg import ScratchBuffers, TensorArg
from ..runtime.compile import compile as link_ops
from ..runtime.super_kernel import SuperKernel
from ..targets import model_support_of
from ..targets.protocol import Target
from .lowering.cpp_kernels import KernelSource, describe, source_of
from .lowering.inductor import CompilerFlags
from .lowering.outline import Outlined, parameters_of
from .lowering.trace_program import Call, KernelCall, LibraryCall, Origin, Recording, View
from .profit_gate import Gate
from .registry import find_kernel, make_ops, named_arguments
from .settings import Fuse, Settings


@dataclass(frozen=True)
class Unfusible:
    """A call that no sub-kernel stands for."""

    operator: str
    reason: str
    collective: bool = False


@dataclass
class Segment:
    """Ops that become one super kernel."""

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ended_by: Unfusible | None = None
    kernel: SuperKernel | None = None
    launch: Callable[[Any, Any], None] | None = None
    gate: Gate | None = None


@dataclass
class TorchCall:
    """A call that torch runs between segments."""

    call: LibraryCall
    why: Unfusible


Step = Segment | TorchCall


@dataclass(frozen=True)
class Draft:
    """A scope's calls, each with what stands for it: the ops of a registered kernel, nothing yet, or a reason."""

    recording: Recording
    outlined: dict[str, Outlined]
    items: list[tuple[Call, list[Op] | Unfusible | None]]
    scratch: ScratchBuffers

    @property
    def unfusible(self) -> list[tuple[Call, Unfusible]]:
        return [(call, found) for call, found in self.items if isinstance(found, Unfusible)]


def draft(recording: Recording, outlined: dict[str, Outlined], target: Target, cores: int) -> Draft:
    """Look every library call up in the registry; nothing is compiled."""
    scratch = ScratchBuffers("scratch")
    items: list[tuple[Call, list[Op] | Unfusible | None]] = []
    for call in recording.calls:
        found = None if isinstance(call, KernelCall) else _registered(call, target, cores, scratch)
        items.append((call, found))
    return Draft(recording, outlined, items, scratch)


def cut_into_steps(drafted: Draft, target: Target, flags: CompilerFlags) -> list[Step]:
    """Compile the generated kernels; segments end where a call has no sub-kernel."""
    make = _GeneratedOps(drafted, target, flags)
    names = _Names()
    steps: list[Step] = []
    for call, found in drafted.items:
        if isinstance(found, Unfusible):
            assert isinstance(call, LibraryCall)
            if steps and isinstance(last := steps[-1], Segment):
                last.ended_by = found
            steps.append(TorchCall(call, found))
            continue
        if not steps or not isinstance(steps[-1], Segment):
            steps.append(Segment())
        segment = steps[-1]
        assert isinstance(segment, Segment)
        ops = make(call) if isinstance(call, KernelCall) else found or []
        for op in ops:
            segment.ops.append(replace(op, name=names.unused(op.name or op.kernel.name)))
            segment.calls.append(call)
    return steps


class _Names:
    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def unused(self, wanted: str) -> str:
        count = self._used[wanted] = self._used.get(wanted, 0) + 1
        return wanted if count == 1 else f"{wanted}_{count}"


class _GeneratedOps:
    """Calls of Inductor's kernels -> ops of their compiled parts."""

    def __init__(self, drafted: Draft, target: Target, flags: CompilerFlags) -> None:
        outlined = drafted.outlined
        self._scratch = drafted.scratch
        used = dict.fromkeys(call.kernel for call in drafted.recording.calls if isinstance(call, KernelCall))
        sources = {name: source_of(_readable(name), outlined[name]) for name in used}
        objects = model_support_of(target).compile_generated(
            [(s.includes, s.functions) for s in sources.values()], flags.flags
        )
        self._kernels = {
            name: (outlined[name], _described(name, outlined[name], source, path, flags.libraries))
            for (name, source), path in zip(sources.items(), objects, strict=True)
        }
        texts = drafted.recording.kernels
        self._parameters = {name: [p.name for p in parameters_of(texts[name].source)] for name in used}

    def __call__(self, call: KernelCall) -> list[Op]:
        outlined, kernels = self._kernels[call.kernel]
        arguments = dict(zip(self._parameters[call.kernel], call.args, strict=True))
        workspaces = {}
        for part in outlined.parts:
            if part.workspace and part.workspace not in workspaces:
                workspaces[part.workspace] = self._scratch(part.workspace_bytes)
        ops = []
        for part, kernel in zip(outlined.parts, kernels, strict=True):
            args: list[Any] = [_argument(arguments[parameter.name]) for parameter in part.parameters]
            if part.workspace:
                args.append(workspaces[part.workspace])
            ops.append(Op(kernel, args, name=_readable(call.kernel)))
        return ops


def _registered(call: LibraryCall, target: Target, cores: int, scratch: ScratchBuffers) -> list[Op] | Unfusible:
    name = call.op._schema.name
    if name.startswith(("_c10d_functional::", "c10d::", "c10d_functional::")):
        return Unfusible(name, "collective", collective=True)
    registered = find_kernel(call.op, target.name)
    if registered is None:
        return Unfusible(name, f"no {target.name} sub-kernel is registered for it")
    try:
        named, outs = named_arguments(call.op, call.args, call.kwargs)
        results = outs or [result for result in call.results if result is not None]
        given = tree_map(_argument, named, is_leaf=lambda value: isinstance(value, View))
        ops = make_ops(registered, given, [_tensor(view) for view in results], cores, scratch)
    except UnsupportedError as reason:
        return Unfusible(name, str(reason))
    if not outs:  # memory that the operator would have returned; `out` may lie in what another one did return
        for view in results:
            if view.storage.origin is Origin.RETURNED:
                view.storage.origin = Origin.MADE
    return [op if op.name else replace(op, name=name.split("::")[1]) for op in ops]


def _described(name: str, outlined: Outlined, source: KernelSource, path: Any, libraries: Sequence[str]) -> list[Any]:
    return [
        describe(part, symbol, path, _readable(name), libraries)
        for part, symbol in zip(outlined.parts, source.symbols, strict=True)
    ]


def _readable(kernel: str) -> str:
    """Inductor's name without its serial number, which says nothing and differs between equal scopes."""
    return re.sub(r"_\d+$", "", kernel.removeprefix("cpp_"))


def _argument(value: Any) -> Any:
    return _tensor(value) if isinstance(value, View) else value


def _tensor(view: View) -> TensorArg:
    if view.conjugated or view.negated:
        raise UnsupportedError("a tensor with a lazy conjugate or negative bit")
    dtype = str(view.dtype).removeprefix("torch.")
    return TensorArg(view.storage.name, view.offset, dtype, view.shape, view.strides)


def link_segments(steps: Sequence[Step], name: str, options: Options, settings: Settings, cache: Cache) -> None:
    """A super kernel for every segment, and the decision how it is launched."""
    segments = [step for step in steps if isinstance(step, Segment)]
    for number, segment in enumerate(segments, 1):
        full = name if len(segments) == 1 else f"{name}_{number}"
        kernel = segment.kernel = link_ops(
            segment.ops, full, options, settings.target, cores=settings.cores, title="segment"
        )
        if settings.fuse is Fuse.OFF:
            segment.launch = _unfused(kernel)
        elif settings.profit_gate and len(segment.ops) > 1 and not options.debug_replay:
            key = f"{kernel.executable.binary.name} {kernel.plan.cores}"
            segment.launch = segment.gate = Gate(kernel.launch_values, partial(_unfused, kernel), key, cache)
            segment.gate.begin_to_build()
        else:
            segment.launch = kernel.launch_values


def _unfused(kernel: SuperKernel) -> Callable[[Any, Any], None]:
    kernel.unfused()

    def launch(values: Any, sizes: Any) -> None:
        kernel.unfused().launch_values(values, sizes)  # asked anew: the number of threads may have changed

    return launch
