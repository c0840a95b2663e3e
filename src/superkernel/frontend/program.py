"""frontend.program: segments and torch calls -> a callable: tensors in, fresh tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..runtime.launch_events import TorchKernel, register, torch_launch
from ..runtime.super_kernel import SuperKernel
from ..targets.protocol import AddressWriter, ModelSupport
from .collective_calls import communicates
from .left_out_collectives import left_out_of
from .lowering.program_trace import ProgramTrace, StorageOrigin, TracedTensor
from .program_memory import CallFrame, CallTensors, ProgramMemory, SegmentLaunch, as_traced
from .program_rounds import ProgramRounds
from .segments import ProgramStep, Segment, TorchCall

# the address of the C function of torch that takes a tensor and returns the address of its memory
ADDRESS_FUNCTION = getattr(torch._C._dynamo.guards, "_torchinductor_pyobject_tensor_data_ptr", None)


TrialLaunch = Callable[[SegmentLaunch, Any, Any], None]  # a segment, the values and the sizes of its arguments


class Program:
    """A part of a scope that can be called. Several threads may call at once."""

    def __init__(
        self,
        trace: ProgramTrace,
        steps: Sequence[ProgramStep],
        scratch: Mapping[str, int],
        support: ModelSupport,
        scope: str = "",
    ) -> None:
        self.trace, self.scope, self._support = trace, scope, support
        self._memory = ProgramMemory(trace, scratch, steps)
        self._steps: list[SegmentLaunch | TorchCall] = []
        for step in steps:
            if isinstance(step, Segment):
                assert step.kernel is not None and step.launch is not None
                self._steps.append(self._memory.segment_launch(step.kernel, step.launch, step.rounds))
            else:
                self._steps.append(step)
        self._launches = [step for step in self._steps if isinstance(step, SegmentLaunch)]
        self._outputs = [self._memory.output(value) for value in trace.outputs]
        self._allocate = support.allocator()
        self._frames: list[CallFrame] = []  # of calls that have returned
        self._settled = False
        self._rounds: ProgramRounds | None = None
        if support.collectives is not None:
            segments = [launch.rounds for launch in self._launches if launch.rounds is not None]
            self._rounds = ProgramRounds(segments, left_out_of(steps), support.collectives)
        if len(self._launches) < len(self._steps):
            register(self)

    @property
    def launches_once(self) -> bool:
        """Whether it is one launch and nothing else, and no output is an input."""
        outputs = [value for value in self.trace.outputs if isinstance(value, TracedTensor)]
        is_single_launch = len(self._steps) == len(self._launches) == 1
        allowed = (StorageOrigin.ALLOCATED, StorageOrigin.CONSTANT)
        return is_single_launch and all(view.storage.origin in allowed for view in outputs)

    def sizes(self, kernel: SuperKernel) -> dict[str, int]:
        """The bytes of each buffer of a segment."""
        launch = next(launch for launch in self._launches if launch.kernel is kernel)
        return dict(zip(kernel.graph.buffers, launch.sizes, strict=True))

    def __call__(self, args: Sequence[Any], launch: TrialLaunch | None = None) -> list[Any]:
        """`launch` launches the segments instead, on trial."""
        frames, allocate = self._frames, self._allocate
        try:
            frame = frames.pop()
        except IndexError:
            frame = self._new_frame(args)
        fresh = [allocate(size, stride, dtype) for size, stride, dtype in self._memory.fresh_specs]
        tensors = CallTensors(args, fresh, {}, frame)
        arrays = iter(frame.arrays)
        for step in self._steps:
            if type(step) is SegmentLaunch:
                values, sizes = next(arrays)
                for place, index in step.inputs:
                    values[place] = args[index].data_ptr()
                for place, index in step.fresh:
                    values[place] = fresh[index].data_ptr()
                for place, storage in step.results:
                    values[place] = tensors.returned[storage].untyped_storage().data_ptr()
                if launch is None:
                    step.launch(values, sizes)
                else:
                    launch(step, values, sizes)
            else:
                assert isinstance(step, TorchCall)
                self._call_torch(step, tensors)
        outputs = [output(tensors) for output in self._outputs]
        frames.append(frame)
        return outputs

    def prepare(self, args: Sequence[Any]) -> None:
        """Before the first call: allocate the memory of a call, and settle what every call reads."""
        self._frames.append(self._new_frame(args))

    def tensor(self, view: TracedTensor, tensors: CallTensors) -> Any:
        """The tensor of a call that a view stands for."""
        return self._memory.tensor(view, tensors)

    def bound(self, order: Sequence[int]) -> Callable[[tuple[Any, ...]], list[Any]]:
        """The call of a program that launches once, with everything looked up: input i is args[order[i]]."""
        (launch,) = self._launches
        frames, start, allocate = self._frames, launch.launch, self._allocate
        specs, fresh_places, outputs = self._memory.fresh_specs, launch.fresh, self._outputs
        write_addresses = self._address_writer([(place, order[index]) for place, index in launch.inputs])
        returns_fresh = self._memory.outputs_are_fresh()

        def call(args: tuple[Any, ...]) -> list[Any]:
            try:
                frame = frames.pop()
            except IndexError:
                frame = self._new_frame([args[index] for index in order])
            values, sizes = frame.arrays[0]
            write_addresses(args, values)
            fresh = [allocate(size, stride, dtype) for size, stride, dtype in specs]
            for place, index in fresh_places:
                values[place] = fresh[index].data_ptr()
            start(values, sizes)
            frames.append(frame)
            if returns_fresh:
                return fresh
            tensors = CallTensors((), fresh, {})
            return [output(tensors) for output in outputs]

        return call

    def _address_writer(self, inputs: Sequence[tuple[int, int]]) -> AddressWriter:
        """A function that writes the addresses of inputs (place, index) into the values of a launch."""
        if ADDRESS_FUNCTION:
            return self._support.address_writer(inputs, ADDRESS_FUNCTION)

        def write_each(args: tuple[Any, ...], values: Any) -> None:
            for place, index in inputs:
                values[place] = args[index].data_ptr()

        return write_each

    def _new_frame(self, args: Sequence[Any]) -> CallFrame:
        """A new frame. Before the first one the target may settle the memory that every call reads."""
        is_first = not self._settled
        if is_first:
            self._settled = True
            for launch in self._launches:
                spans = {args[index].data_ptr(): launch.sizes[place] for place, index in launch.inputs}
                spans |= {address: launch.sizes[place] for place, address in launch.fixed}
                self._support.settle(list(spans.items()))
        if self._rounds is not None:
            self._rounds.make_areas()
        return CallFrame(self._memory.arena_bytes, self._launches, self._support.device)

    def start_reporting(self, detail: bool) -> None:
        """Publish what torch runs between segments."""

        def call(step: TorchCall, tensors: CallTensors) -> None:
            name = step.call.op._schema.name
            with torch_launch(TorchKernel(name.split("::")[-1], name, self.scope, step.why.reason)):
                Program._call_torch(self, step, tensors)

        self.__dict__["_call_torch"] = call  # hides the method of that name

    def stop_reporting(self) -> None:
        self.__dict__.pop("_call_torch", None)

    def _call_torch(self, step: TorchCall, tensors: CallTensors) -> None:
        call = step.call

        def tensor(value: Any) -> Any:
            return self._memory.tensor(value, tensors) if isinstance(value, TracedTensor) else value

        args, kwargs = tree_map(tensor, (call.args, call.kwargs), is_leaf=lambda value: isinstance(value, TracedTensor))
        returned = call.op(*args, **kwargs)
        values = returned if isinstance(returned, list | tuple) else [returned]
        for view, value in zip(call.results, values, strict=True):
            if view is None or view.storage in tensors.returned:
                continue
            if view.storage.origin is StorageOrigin.RETURNED:
                tensors.returned[view.storage] = as_traced(value, view, communicates(call.op._schema.name))
