"""frontend.program_memory: the storages of a traced program -> where each lies in a call, and the tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import Plan
from ..runtime.super_kernel import SuperKernel
from .lowering.program_trace import ProgramTrace, Storage, StorageOrigin, TracedTensor
from .program_lifetimes import plan_program, separate
from .rank_rounds import RankRounds
from .segments import ProgramStep, Segment

CACHE_LINE = 64
TensorSpec = tuple[Any, Any, Any]  # shape, strides, dtype


@dataclass
class SegmentLaunch:
    """A segment with everything that is the same in every call. A place is an index into the values of the launch."""

    launch: Callable[[Any, Any], None]
    kernel: SuperKernel
    inputs: list[tuple[int, int]] = field(default_factory=list)  # place, index of the input
    fresh: list[tuple[int, int]] = field(default_factory=list)  # place, index of the fresh tensor
    results: list[tuple[int, Storage]] = field(default_factory=list)  # place, what a torch call returned
    fixed: list[tuple[int, int]] = field(default_factory=list)  # place, address of a constant
    arena: list[tuple[int, int]] = field(default_factory=list)  # place, offset in the arena
    windows: list[tuple[int, str]] = field(default_factory=list)  # place, window of a collective
    rounds: RankRounds | None = None  # of its collectives
    sizes: list[int] = field(default_factory=list)  # bytes, by place


class CallFrame:
    """The memory of one call in progress: the arena of intermediates, and the argument arrays of every launch."""

    def __init__(self, arena_bytes: int, launches: Sequence[SegmentLaunch], device: str) -> None:
        self.arena = torch.empty(arena_bytes + CACHE_LINE, dtype=torch.uint8, device=device)
        self.base = -(-self.arena.data_ptr() // CACHE_LINE) * CACHE_LINE
        self.arrays = []
        for launch in launches:
            values, sizes = launch.kernel.argument_arrays()
            for place, offset in launch.arena:
                values[place] = self.base + offset
            for place, address in launch.fixed:
                values[place] = address
            if launch.rounds is not None:
                addresses = launch.rounds.addresses()
                for place, window in launch.windows:
                    values[place] = addresses[window]
            for place, size in enumerate(launch.sizes):
                sizes[place] = size
            self.arrays.append((values, sizes))


@dataclass(slots=True)
class CallTensors:
    """The tensors of one call: its inputs, what it allocated, what torch calls returned, and its frame."""

    args: Sequence[Any]
    fresh: Sequence[Any]
    returned: dict[Storage, Any]
    frame: CallFrame | None = None


OutputFunction = Callable[[CallTensors], Any]


class ProgramMemory:
    """Where each storage is in a call: in an input, a constant, a fresh tensor, the arena, or a torch call's result."""

    def __init__(self, trace: ProgramTrace, scratch: Mapping[str, int], steps: Sequence[ProgramStep]) -> None:
        self._trace, self._scratch = trace, scratch
        self._by_name = {storage.name: storage for storage in trace.storages}
        self._fresh: dict[str, int] = {}
        self.fresh_specs: list[TensorSpec] = []
        inner: dict[str, int] = {}  # name -> bytes
        for storage in trace.storages:
            if storage.origin is StorageOrigin.ALLOCATED:
                if storage.returned:
                    self._fresh[storage.name] = len(self.fresh_specs)
                    self.fresh_specs.append(_fresh_spec(storage, trace.outputs))
                else:
                    inner[storage.name] = storage.nbytes
        inner |= scratch
        self.plan = separate(inner) if _tells_buffers_apart(steps) else plan_program(inner, steps)
        self._offsets = self.plan.offsets  # in the arena
        self.arena_bytes = self.plan.arena

    def segment_launch(
        self, kernel: SuperKernel, function: Callable[[Any, Any], None], rounds: RankRounds | None = None
    ) -> SegmentLaunch:
        launch = SegmentLaunch(function, kernel, rounds=rounds)
        windows = {} if rounds is None else rounds.window_bytes
        for place, name in enumerate(kernel.graph.buffers):
            if name in windows:
                launch.sizes.append(windows[name])
                launch.windows.append((place, name))
                continue
            storage = self._by_name.get(name)
            launch.sizes.append(storage.nbytes if storage else self._scratch.get(name, 0))
            if name in self._offsets:
                launch.arena.append((place, self._offsets[name]))
            elif name in self._fresh:
                launch.fresh.append((place, self._fresh[name]))
            elif storage is None:
                raise UnsupportedError(f"a registered kernel uses the buffer {name!r}, which is none of its arguments")
            elif storage.origin is StorageOrigin.INPUT:
                launch.inputs.append((place, storage.index))
            elif storage.origin is StorageOrigin.CONSTANT:
                launch.fixed.append((place, self._trace.constants[storage.index].data_ptr()))
            else:
                launch.results.append((place, storage))
        return launch

    def output(self, value: Any) -> OutputFunction:
        """The function that returns an output of the program from the tensors of a call."""
        if not isinstance(value, TracedTensor):
            return lambda call: value
        storage = value.storage
        if storage.origin is StorageOrigin.INPUT and self._trace.inputs[storage.index] == value:
            index = storage.index
            return lambda call: call.args[index]
        if storage.origin is StorageOrigin.ALLOCATED and self._is_fresh_tensor(value, self._fresh[storage.name]):
            place = self._fresh[storage.name]
            return lambda call: call.fresh[place]
        return lambda call: self.tensor(value, call)

    def _is_fresh_tensor(self, view: TracedTensor, place: int) -> bool:
        return view.offset == 0 and self.fresh_specs[place] == (view.shape, view.strides, view.dtype)

    def outputs_are_fresh(self) -> bool:
        """Whether the outputs are the fresh tensors, all of them, in that order."""
        return len(self._trace.outputs) == len(self.fresh_specs) and all(
            isinstance(value, TracedTensor)
            and self._fresh.get(value.storage.name) == place
            and self._is_fresh_tensor(value, place)
            and not (value.conjugated or value.negated)
            for place, value in enumerate(self._trace.outputs)
        )

    def tensor(self, view: TracedTensor, call: CallTensors) -> Any:
        """The tensor of a call that a view stands for."""
        storage = view.storage
        if storage.origin is StorageOrigin.INPUT:
            return _view_of(call.args[storage.index], view)
        if storage.origin is StorageOrigin.CONSTANT:
            return _view_of(self._trace.constants[storage.index], view)
        if storage.name in self._fresh:
            return _view_of(call.fresh[self._fresh[storage.name]], view)
        if storage.name in self._offsets:
            assert call.frame is not None
            begin = call.frame.base - call.frame.arena.data_ptr() + self._offsets[storage.name]
            return _view_of(call.frame.arena[begin : begin + storage.nbytes], view)
        return _view_of_result(call.returned[storage], view)


def _tells_buffers_apart(steps: Sequence[ProgramStep]) -> bool:
    """Whether some segment is debugged in a way that needs memory of its own for every buffer, or only emulated."""
    kernels = [step.kernel for step in steps if isinstance(step, Segment) and step.kernel is not None]
    return any(
        kernel.options.debug_replay or kernel.options.debug_check or not isinstance(kernel.plan, Plan)
        for kernel in kernels
    )


def as_traced(value: Any, view: TracedTensor, arrives: bool = False) -> Any:
    """The result of an operator in the layout that it had in the trace, for which kernels were compiled.

    `arrives`: other ranks send it, until a wait for this very tensor.
    """
    if tuple(value.stride()) == view.strides and value.storage_offset() * value.element_size() == view.offset:
        return value
    if arrives:
        torch.ops._c10d_functional.wait_tensor.default(value)
    memory = torch.empty(view.storage.nbytes, dtype=torch.uint8, device=value.device)
    typed = torch.empty(0, dtype=view.dtype, device=value.device).set_(memory.untyped_storage(), 0, (0,))
    laid_out = torch.as_strided(typed, view.shape, view.strides, view.offset // value.element_size())
    return laid_out.copy_(value)


def _fresh_spec(storage: Storage, outputs: Sequence[Any]) -> TensorSpec:
    """How to allocate the storage: as the output that covers all of it, or as bytes."""
    for view in outputs:
        covers = isinstance(view, TracedTensor) and view.storage is storage and view.offset == 0
        if covers and _span_bytes(view) == storage.nbytes:
            return view.shape, view.strides, view.dtype
    return (storage.nbytes,), (1,), torch.uint8


def _span_bytes(view: TracedTensor) -> int:
    """From the first element to the end of the last."""
    if 0 in view.shape:
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return elements * int(view.dtype.itemsize)


def _view_of(tensor: Any, view: TracedTensor) -> Any:
    """The view; its offset counts from the first element of the tensor."""
    return _view_at(tensor, tensor.storage_offset() * tensor.element_size() + view.offset, view)


def _view_of_result(tensor: Any, view: TracedTensor) -> Any:
    """The view of a storage that a torch call returned; its offset counts from the beginning of the storage."""
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.is_conj(), tensor.is_neg())
    is_same = layout == (view.shape, view.strides, view.dtype, view.conjugated, view.negated)
    if is_same and tensor.storage_offset() * tensor.element_size() == view.offset:
        return tensor
    return _view_at(tensor, view.offset, view)


def _view_at(tensor: Any, offset: int, view: TracedTensor) -> Any:
    """The view at `offset` bytes in the storage of the tensor."""
    empty = torch.empty(0, dtype=view.dtype, device=tensor.device)
    seen = empty.set_(tensor.untyped_storage(), offset // empty.element_size(), view.shape, view.strides)
    if view.conjugated:
        seen = torch._conj(seen)
    return torch._neg_view(seen) if view.negated else seen
