"""frontend.program: segments and torch calls -> a callable: tensors in, fresh tensors out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..errors import UnsupportedError
from ..runtime.launch_events import TorchKernel, register, torch_launch
from ..runtime.super_kernel import SuperKernel
from ..targets import model_support_of
from ..targets.protocol import AddressWriter
from .lowering.trace_program import Origin, Recording, Storage, View
from .segments import Segment, Step, TorchCall

_LINE = 64
_allocate = torch._C._dynamo.guards._empty_strided_cpu
# the address of a function of torch's that takes a tensor and returns the address of its memory
_ADDRESS_OF = getattr(torch._C._dynamo.guards, "_torchinductor_pyobject_tensor_data_ptr", None)


@dataclass
class Launch:
    """A segment with everything that is the same in every call."""

    launch: Callable[[Any, Any], None]
    inputs: list[tuple[int, int]]  # place, input
    fresh: list[tuple[int, int]]  # place, fresh tensor
    results: list[tuple[int, Storage]]  # place, what a torch call returned
    fixed: list[tuple[int, int]]  # place, address of a constant
    arena: list[tuple[int, int]]  # place, offset in the arena
    sizes: list[int]
    kernel: SuperKernel


class Frame:
    """The memory of one call in progress: intermediates, and the argument arrays of every launch."""

    def __init__(self, nbytes: int, launches: Sequence[Launch]) -> None:
        self.arena = torch.empty(nbytes + _LINE, dtype=torch.uint8, device="cpu")
        self.base = -(-self.arena.data_ptr() // _LINE) * _LINE
        self.arrays = []
        for launch in launches:
            values, sizes = launch.kernel.argument_arrays()
            for place, offset in launch.arena:
                values[place] = self.base + offset
            for place, address in launch.fixed:
                values[place] = address
            for place, size in enumerate(launch.sizes):
                sizes[place] = size
            self.arrays.append((values, sizes))


class Program:
    """A scope that can be called: tensors in, fresh tensors out. Several threads may call at once."""

    def __init__(self, recording: Recording, steps: Sequence[Step], scratch: dict[str, int], scope: str = "") -> None:
        self.recording, self.steps, self.scope = recording, list(steps), scope
        self._homes = _Homes(recording, scratch)
        self._launches: list[Launch] = []
        self._plan: list[Launch | TorchCall] = []
        for step in self.steps:
            if isinstance(step, Segment):
                assert step.kernel is not None and step.launch is not None
                launch = self._homes.launch(step.kernel, step.launch)
                self._launches.append(launch)
                self._plan.append(launch)
            else:
                self._plan.append(step)
        self._outputs = [self._homes.output(value) for value in recording.outputs]
        self._specs = self._homes.fresh_specs()
        self._frames: list[Frame] = []
        self._settled = False
        if any(isinstance(step, TorchCall) for step in self._plan):
            register(self)

    @property
    def launches_once(self) -> bool:
        """One launch and nothing besides, whose outputs are all its own."""
        outputs = [value for value in self.recording.outputs if isinstance(value, View)]
        return (
            len(self._plan) == 1
            and len(self._launches) == 1
            and all(view.storage.origin in (Origin.MADE, Origin.CONSTANT) for view in outputs)
        )

    @property
    def arena_bytes(self) -> int:
        return self._homes.arena_bytes

    def sizes(self, kernel: SuperKernel) -> dict[str, int]:
        """Bytes behind each name of a segment."""
        launch = next(launch for launch in self._launches if launch.kernel is kernel)
        return dict(zip(kernel.graph.buffers, launch.sizes, strict=True))

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        frames = self._frames
        try:
            frame = frames.pop()
        except IndexError:
            frame = self._frame(args)
        fresh = [_allocate(size, stride, dtype) for size, stride, dtype in self._specs]
        returned: dict[Storage, Any] = {}
        number = 0
        for step in self._plan:
            if type(step) is Launch:
                values, sizes = frame.arrays[number]
                number += 1
                for place, index in step.inputs:
                    values[place] = args[index].data_ptr()
                for place, index in step.fresh:
                    values[place] = fresh[index].data_ptr()
                for place, storage in step.results:
                    values[place] = returned[storage].untyped_storage().data_ptr()
                step.launch(values, sizes)
            else:
                assert isinstance(step, TorchCall)
                self._call_torch(step, args, fresh, returned, frame)
        outputs = [output(args, fresh, returned) for output in self._outputs]
        frames.append(frame)
        return outputs

    def bound(self, order: Sequence[int]) -> Callable[[tuple[Any, ...]], list[Any]]:
        """The same for a program that launches once, with everything looked up: input i is args[order[i]]."""
        (launch,) = self._launches
        frames, start, specs, outputs = self._frames, launch.launch, self._specs, self._outputs
        inputs = [(place, order[index]) for place, index in launch.inputs]
        fill = _filler(launch.kernel, inputs)
        fresh_places = launch.fresh
        as_made = self._homes.made_as_returned(self.recording.outputs)

        def call(args: tuple[Any, ...]) -> list[Any]:
            try:
                frame = frames.pop()
            except IndexError:
                frame = self._frame([args[index] for index in order])
            values, sizes = frame.arrays[0]
            fill(args, values)
            fresh = [_allocate(size, stride, dtype) for size, stride, dtype in specs]
            for place, index in fresh_places:
                values[place] = fresh[index].data_ptr()
            start(values, sizes)
            frames.append(frame)
            return fresh if as_made else [output((), fresh, {}) for output in outputs]

        return call

    def _frame(self, args: Sequence[Any]) -> Frame:
        """A new frame. Before the first one the target may settle what every call will read: weights and caches."""
        if not self._settled:
            self._settled = True
            for launch in self._launches:
                given = {args[index].data_ptr(): launch.sizes[place] for place, index in launch.inputs}
                given |= {address: launch.sizes[place] for place, address in launch.fixed}
                model_support_of(launch.kernel.target).settle(list(given.items()))
        return Frame(self._homes.arena_bytes, self._launches)

    def start_reporting(self, detail: bool) -> None:
        """What torch runs between segments is published as well."""

        def call(step: TorchCall, *given: Any) -> None:
            name = step.call.op._schema.name
            with torch_launch(TorchKernel(name.split("::")[-1], name, self.scope, step.why.reason)):
                Program._call_torch(self, step, *given)

        self.__dict__["_call_torch"] = call  # before the method of that name

    def stop_reporting(self) -> None:
        self.__dict__.pop("_call_torch", None)

    def _call_torch(
        self, step: TorchCall, args: Sequence[Any], fresh: list[Any], returned: dict[Storage, Any], frame: Frame
    ) -> None:
        call = step.call

        def real(value: Any) -> Any:
            return self._homes.tensor(value, args, fresh, returned, frame) if isinstance(value, View) else value

        positional, keywords = tree_map(real, (call.args, call.kwargs), is_leaf=lambda value: isinstance(value, View))
        made = call.op(*positional, **keywords)
        values = made if isinstance(made, list | tuple) else [made]
        for view, value in zip(call.results, values, strict=True):
            if view is not None and view.storage.origin is Origin.RETURNED and view.storage not in returned:
                returned[view.storage] = _as_recorded(value, view)


def _filler(kernel: SuperKernel, inputs: Sequence[tuple[int, int]]) -> AddressWriter:
    """What writes the addresses of inputs (place, index) into the values of a launch."""
    if _ADDRESS_OF:
        return model_support_of(kernel.target).address_writer(inputs, _ADDRESS_OF)

    def one_by_one(args: tuple[Any, ...], values: Any) -> None:
        for place, index in inputs:
            values[place] = args[index].data_ptr()

    return one_by_one


def _as_recorded(value: Any, view: View) -> Any:
    """An operator may lay its result out otherwise than it said; kernels were compiled for what it said."""
    if tuple(value.stride()) == view.strides and value.storage_offset() * value.element_size() == view.offset:
        return value
    room = torch.empty(view.storage.nbytes, dtype=torch.uint8, device="cpu")
    laid_out = torch.empty(0, dtype=view.dtype, device="cpu").set_(room.untyped_storage(), 0, (0,))
    laid_out = torch.as_strided(laid_out, view.shape, view.strides, view.offset // value.element_size())
    return laid_out.copy_(value)


Output = Callable[[Sequence[Any], Sequence[Any], dict[Storage, Any]], Any]


class _Homes:
    """Where each storage lives in a call: an input, a constant, a fresh tensor, the arena, or a torch call's result."""

    def __init__(self, recording: Recording, scratch: dict[str, int]) -> None:
        self._recording = recording
        self._by_name = {storage.name: storage for storage in recording.storages}
        self._offsets: dict[str, int] = {}
        self._fresh: dict[str, int] = {}
        self._specs: list[tuple[Any, Any, Any]] = []
        self.arena_bytes = 0
        for storage in recording.storages:
            if storage.origin is Origin.MADE:
                if storage.returned:
                    self._fresh[storage.name] = len(self._specs)
                    self._specs.append(_fresh_spec(storage, recording.outputs))
                else:
                    self._in_arena(storage.name, storage.nbytes)
        for name, nbytes in scratch.items():
            self._in_arena(name, nbytes)
        self._scratch = scratch

    def _in_arena(self, name: str, nbytes: int) -> None:
        self._offsets[name] = self.arena_bytes
        self.arena_bytes += -(-nbytes // _LINE) * _LINE

    def fresh_specs(self) -> list[tuple[Any, Any, Any]]:
        return self._specs

    def launch(self, kernel: SuperKernel, way: Callable[[Any, Any], None]) -> Launch:
        launch = Launch(way, [], [], [], [], [], [], kernel)
        for place, name in enumerate(kernel.graph.buffers):
            storage = self._by_name.get(name)
            launch.sizes.append(storage.nbytes if storage else self._scratch.get(name, 0))
            if name in self._offsets:
                launch.arena.append((place, self._offsets[name]))
            elif name in self._fresh:
                launch.fresh.append((place, self._fresh[name]))
            elif storage is None:
                raise UnsupportedError(f"a registered kernel uses the buffer {name!r}, which is none of its arguments")
            elif storage.origin is Origin.INPUT:
                launch.inputs.append((place, storage.index))
            elif storage.origin is Origin.CONSTANT:
                launch.fixed.append((place, self._recording.constants[storage.index].data_ptr()))
            else:
                launch.results.append((place, storage))
        return launch

    def output(self, value: Any) -> Output:
        if not isinstance(value, View):
            return lambda args, fresh, returned: value
        storage = value.storage
        if storage.origin is Origin.INPUT:
            index, whole = storage.index, self._recording.inputs[storage.index]
            if whole == value:
                return lambda args, fresh, returned: args[index]
            return lambda args, fresh, returned: _view_of(args[index], value)
        if storage.origin is Origin.CONSTANT:
            constant = self._recording.constants[storage.index]
            return lambda args, fresh, returned: _view_of(constant, value)
        if storage.origin is Origin.RETURNED:
            return lambda args, fresh, returned: _seen_as(returned[storage], value)
        place = self._fresh[storage.name]
        size, stride, dtype = self._specs[place]
        if value.offset == 0 and (size, stride, dtype) == (value.shape, value.strides, value.dtype):
            return lambda args, fresh, returned: fresh[place]
        return lambda args, fresh, returned: _view_of(fresh[place], value)

    def made_as_returned(self, outputs: Sequence[Any]) -> bool:
        """Whether the outputs are the fresh tensors, all of them, in that order."""
        return len(outputs) == len(self._specs) and all(
            isinstance(value, View)
            and self._fresh.get(value.storage.name) == at
            and value.offset == 0
            and self._specs[at] == (value.shape, value.strides, value.dtype)
            and not (value.conjugated or value.negated)
            for at, value in enumerate(outputs)
        )

    def tensor(
        self, view: View, args: Sequence[Any], fresh: Sequence[Any], returned: dict[Storage, Any], frame: Frame
    ) -> Any:
        storage = view.storage
        if storage.origin is Origin.INPUT:
            return _view_of(args[storage.index], view)
        if storage.origin is Origin.CONSTANT:
            return _view_of(self._recording.constants[storage.index], view)
        if storage.name in self._fresh:
            return _view_of(fresh[self._fresh[storage.name]], view)
        if storage.name in self._offsets:
            start = frame.base - frame.arena.data_ptr() + self._offsets[storage.name]
            return _view_of(frame.arena[start : start + storage.nbytes], view)
        return _seen_as(returned[storage], view)


def _fresh_spec(storage: Storage, outputs: Sequence[Any]) -> tuple[Any, Any, Any]:
    """How to allocate it: as the output it is, where an output is all of it."""
    for view in outputs:
        if (
            isinstance(view, View)
            and view.storage is storage
            and view.offset == 0
            and _span_bytes(view) == storage.nbytes
        ):
            return view.shape, view.strides, view.dtype
    return (storage.nbytes,), (1,), torch.uint8


def _span_bytes(view: View) -> int:
    """From the first element to behind the last."""
    if 0 in view.shape:
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return elements * int(view.dtype.itemsize)


def _view_of(tensor: Any, view: View) -> Any:
    """The view, its offset counted from where the tensor begins."""
    nothing = torch.empty(0, dtype=view.dtype, device="cpu")
    begin = tensor.storage_offset() * tensor.element_size() + view.offset
    return _with_bits(
        nothing.set_(tensor.untyped_storage(), begin // nothing.element_size(), view.shape, view.strides), view
    )


def _with_bits(made: Any, view: View) -> Any:
    if view.conjugated:
        made = torch._conj(made)
    return torch._neg_view(made) if view.negated else made


def _seen_as(tensor: Any, view: View) -> Any:
    """The view of a storage that a torch call returned; its offset counts from the beginning of the storage."""
    item = tensor.element_size()
    form = (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.is_conj(), tensor.is_neg())
    same = form == (view.shape, view.strides, view.dtype, view.conjugated, view.negated)
    if same and tensor.storage_offset() * item == view.offset:
        return tensor
    nothing = torch.empty(0, dtype=view.dtype, device="cpu")
    offset = view.offset // nothing.element_size()
    return _with_bits(nothing.set_(tensor.untyped_storage(), offset, view.shape, view.strides), view)
