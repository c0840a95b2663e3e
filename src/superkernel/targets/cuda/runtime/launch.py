"""targets.cuda.runtime.launch: the image of a super kernel and buffers by name -> launches on a GPU.

A launch is asynchronous, as every launch of CUDA: it goes to torch's current stream, and the call returns. Wrong
arguments are refused by the call; the error of a launch that was stopped is raised by synchronize(), close(), or the
next launch.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int64
from time import monotonic_ns
from typing import Any

from ....errors import LaunchError, UnsupportedError
from ....model.events import Event
from ....plan.spans import Span, spans_of
from ...buffers import IN_ARENA, bind, check_names
from ...protocol import BoundArguments, LaunchInputs, OpLabel, RawValue
from ...ranks.store_exchange import Store
from .arguments import (
    CudaMemory,
    address_device,
    common_device,
    current_device,
    current_stream,
    pending_streams,
    stream_reader,
)
from .device import open_device
from .device_kernel import DeviceKernel, LaunchValues, close_forgotten, values_type
from .image import KernelImage
from .launch_timing import TIMING
from .rank_connection import RankConnection, needs_ranks
from .tensor_binder import TensorAddresses, TensorBinder
from .time_stamps import CudaTimeStamps, device_clock

MEMORY = CudaMemory()
_NO_INPUTS = LaunchInputs({}, {})
_ReuseKey = tuple[int, int, tuple[tuple[int, str], ...]]  # device, stream, inner buffers in the arena


class CudaLoadedKernel:
    """A super kernel whose cubin goes to a device at the first launch there. Threads and streams may launch at once."""

    def __init__(self, image: KernelImage) -> None:
        self.plan, self._image, self._graph = image.plan, image, image.plan.graph
        self._where = image.where
        self._lock = threading.Lock()
        self._kernels: dict[int, DeviceKernel] = {}  # by device
        self._closed = False
        self._ranks: RankConnection | None = None
        self._needs_ranks = needs_ranks(self._graph)
        self._arena = frozenset(image.plan.memory.offsets)
        self._binder = TensorBinder(self._graph, self._arena)
        self._reused: dict[_ReuseKey, LaunchValues] = {}
        self._events = [event.label for event in self._graph.events]
        self._values_type = values_type(image.values)
        self._of_thread = threading.local()
        self._last: DeviceKernel | None = None
        self._tensor_stream: Callable[[int], int] | None = None  # reads torch's current stream, once torch is here
        weakref.finalize(self, close_forgotten, self._kernels).atexit = False

    # other ranks

    def connect_ranks(self, store: Store, timeout_s: float) -> None:
        """On the device that is current now; waits for all ranks."""
        device = open_device(current_device())
        with self._lock:
            if self._closed:
                raise self._refusal()
            if self._kernels:
                raise LaunchError(f"{self._where}it is connected to other ranks already; compile it again")
            device.check_process(self._where)
            kernel = DeviceKernel(self._image, device.index)
            try:
                with device.current():
                    share = kernel.gpu_share()
                    kernel.ranks = self._ranks = RankConnection(self.plan, device, share, store, timeout_s)
            except BaseException:  # also Ctrl-C while it waits for the others
                kernel.close()
                raise
            self._kernels[device.index] = kernel

    def _with_windows(self, buffers: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._ranks is None:
            self._refuse_ranks()
            return buffers
        check_names(self._graph, buffers)
        return self._ranks.with_windows(buffers)

    def _refuse_ranks(self, index: int | None = None) -> None:
        if self._ranks is not None:
            raise LaunchError(
                f"{self._where}its ranks were connected on another GPU than cuda:{index}; pass buffers of that one"
            )
        if self._needs_ranks is not None:
            raise UnsupportedError(
                f"{self._where}it waits for other ranks of {self._needs_ranks.group}: call sk.connect_ranks(kernel, "
                "store) in the process of each rank first, all on one GPU, or run it with sk.emulate_ranks. For a "
                "profile with detail compile it with profiling=1: only the kernel that was connected can be launched"
            )

    # launching

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        fast = None if self._events or self._needs_ranks is not None else self._binder.bind(buffers)
        if fast is not None:
            self._launch_fast(fast)
            return fast.outputs
        buffers = self._with_windows(buffers)
        bound = bind(self._graph, buffers, self._arena, MEMORY)
        index = common_device(buffers, self._where)
        values = self._filled(bound.values, bound.sizes)
        self._run(values, index, self._event_list(launch_inputs), sorted(pending_streams(buffers)))
        return bound.outputs

    def _launch_fast(self, arguments: TensorAddresses) -> None:
        """With the values of the launch before, all exchanged: the driver has copied them."""
        index, count = arguments.device, len(arguments.addresses)
        if self._tensor_stream is None:
            self._tensor_stream = stream_reader()
        stream = self._tensor_stream(index)
        key = index, stream, arguments.in_arena
        with self._lock:
            values = self._reused.get(key)
            if values is not None and values.device is not None and self._may_repeat():
                values[:count] = arguments.addresses
                for place, address in values.arena:
                    values[place] = address
                if values.device.launch_again(values, stream):
                    self._last = values.device
                    return
        values = self._values_type()
        values[:count] = arguments.addresses
        values.in_arena = arguments.in_arena
        self._run(values, index, ())
        self._reused[key] = values

    def bind(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> BoundArguments:
        buffers = self._with_windows(buffers)
        bound = bind(self._graph, buffers, self._arena, MEMORY)
        index = common_device(buffers, self._where)
        kernel = self._on(index)
        stream = current_stream(index)
        with kernel.device.current():
            for earlier in pending_streams(buffers):
                if earlier != stream:
                    kernel.device.order_after(stream, earlier, f"{self._where}waiting for the arrays that were passed")
        values, sizes = self._filled(bound.values, bound.sizes), self.argument_sizes()
        sizes[: len(bound.sizes)] = bound.sizes
        values.device = kernel
        named = {name: value for name, value in zip(self._graph.buffers, bound.keep, strict=True) if value is not None}
        again = kernel.repeater(values, self._lock, self._may_repeat, stream_reader())
        self._last = kernel
        return BoundArguments(values, sizes, bound.outputs, named, CudaMemory(index), again)

    def _may_repeat(self) -> bool:
        """Whether a launch may take the short way."""
        return not (self._closed or TIMING.enabled or self._ranks is not None)

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        values = arguments.values
        kernel: DeviceKernel = values.device
        index = kernel.device.index
        with self._lock:
            self._last = kernel
            if self._may_repeat() and kernel.launch_again(values, current_stream(index)):
                return
        places = self._arena_places(arguments.sizes)
        if places != values.in_arena:
            values.in_arena = places
        self._run(values, index, self._event_list(launch_inputs))

    def argument_arrays(self) -> tuple[Any, Any]:
        """Arrays for launch_values, in the order of the graph's buffers: addresses of a GPU."""
        if self._events:
            raise LaunchError(f"{self._where}a kernel with an external event cannot be launched by values alone")
        return self._values_type(), self.argument_sizes()

    def argument_sizes(self) -> Any:
        return (c_int64 * len(self._graph.buffers))()

    def launch_values(self, values: Any, sizes: Any, op_label: OpLabel | None = None) -> None:
        self.launch_addresses(list(zip(values, sizes, strict=False)), _NO_INPUTS, {}, op_label)

    def launch_addresses(
        self,
        arguments: Sequence[RawValue],
        launch_inputs: LaunchInputs,
        named: Mapping[str, Any],
        op_label: OpLabel | None = None,
    ) -> None:
        values = self._filled([value for value, _ in arguments], [size for _, size in arguments])
        buffers = zip(self._graph.buffers.values(), arguments, strict=False)
        address = next((value for buffer, (value, size) in buffers if not buffer.scalar and size > 0), 0)
        try:
            self._run(values, address_device(address), self._event_list(launch_inputs))
        except LaunchError as error:
            if op_label is None:
                raise
            text = str(error).removeprefix(self._where)
            raise LaunchError(f"super_kernel_scope {op_label.scope!r}: op {op_label.op!r}: {text}") from error

    def _filled(self, addresses: Sequence[int], sizes: Sequence[int]) -> LaunchValues:
        values = self._values_type()
        count = len(self._graph.buffers)
        values[:count] = addresses[:count]
        values.in_arena = self._arena_places(sizes)
        return values

    def _arena_places(self, sizes: Sequence[int]) -> tuple[tuple[int, str], ...]:
        if not self._arena:
            return ()
        names = zip(self._graph.buffers, sizes, strict=False)
        return tuple((place, name) for place, (name, size) in enumerate(names) if size == IN_ARENA)

    def _event_list(self, launch_inputs: LaunchInputs) -> list[Event]:
        return [launch_inputs.events[label] for label in self._events]

    def _run(
        self, values: LaunchValues, index: int, events: Sequence[Event], earlier_streams: Sequence[int] = ()
    ) -> None:
        kernel, stream = self._on(index), current_stream(index)
        with self._lock:
            if self._closed:
                raise self._refusal()
            begin = monotonic_ns()
            kernel.launch(values, stream, events, earlier_streams)
            self._last = kernel
        if TIMING.enabled:
            self._finish_timed(kernel, begin)

    def _finish_timed(self, kernel: DeviceKernel, begin: int) -> None:
        """A captured launch runs later, in its graph: nothing is known of it."""
        state = kernel.last
        assert state is not None
        self._of_thread.stamps = None
        if not state.captured:
            kernel.wait()
        self._of_thread.times = begin, monotonic_ns()
        if self._image.stamp_room and not state.captured:
            self._of_thread.stamps = self._read_stamps(kernel, self._of_thread.times[1])

    def _on(self, index: int) -> DeviceKernel:
        """Loaded at the first launch on a device."""
        kernel = self._kernels.get(index)
        if kernel is None:
            with self._lock:
                if self._closed:
                    raise self._refusal()
                kernel = self._kernels.get(index)
                if kernel is None:
                    self._refuse_ranks(index)
                    kernel = self._kernels[index] = DeviceKernel(self._image, index)
        return kernel

    def _refusal(self) -> LaunchError:
        return LaunchError(f"{self._where}the kernel is closed")

    # completion

    def running(self) -> int:
        return 0  # launches go on after their call: close() waits for them

    def synchronize(self) -> None:
        for kernel in list(self._kernels.values()):
            kernel.wait()

    def close(self) -> None:
        """Waits for launches in progress; the error of one that was stopped is raised when all is freed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            kernels = list(self._kernels.values())
        failed: LaunchError | None = None
        for kernel in kernels:
            try:
                kernel.wait()
            except LaunchError as error:
                failed = failed or error
            kernel.close()
        self._kernels.clear()
        if self._ranks is not None:
            self._ranks.close()
        if failed is not None:
            raise failed

    # what was recorded

    def _read_stamps(self, kernel: DeviceKernel, completed_ns: int) -> CudaTimeStamps | None:
        state = kernel.last
        assert state is not None
        with kernel.device.current():
            stamps = state.read_stamps()
            offset = device_clock(kernel.device).offset_ns(stamps, completed_ns)
        return CudaTimeStamps(stamps, self._image.stamp_steps, offset)

    def spans(self) -> tuple[Span, ...]:
        """Of the last launch, which is waited for."""
        kernel = self._last
        if kernel is None or not self._image.stamp_room:
            return ()
        kernel.wait()
        stamps = self._read_stamps(kernel, monotonic_ns())
        return spans_of(self.plan, stamps.step_times()) if stamps is not None else ()

    def time_stamps(self) -> CudaTimeStamps | None:
        stamps: CudaTimeStamps | None = getattr(self._of_thread, "stamps", None)
        return stamps

    def last_launch(self) -> tuple[int, int]:
        times: tuple[int, int] = getattr(self._of_thread, "times", (0, 0))
        return times
