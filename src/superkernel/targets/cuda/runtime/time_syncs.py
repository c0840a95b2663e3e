"""targets.cuda.runtime.time_syncs: the same ops in clusters of several sizes -> what their syncs take on this GPU.

Launches whose ops do nothing are timed in turns. They queue behind a gate, so that the GPU does not wait for the host
between them, and touch no memory but their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import addressof, byref, c_float, c_uint64, c_void_p, pointer
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from time import monotonic, sleep

from ....cache import Cache, digest
from ....errors import BuildError, LaunchError, SuperKernelError
from ....plan.memory import MemoryPlan
from ..assemble import missing_assembler
from ..build import build
from ..cluster_choice import SyncTime, SyncTimes, sync_times_from_json, sync_times_to_json
from ..device import DeviceDescription
from ..executable import CudaExecutable
from ..plan import CudaPlan
from ..super_kernel_text import DELAYS
from .arguments import current_stream
from .calibrate import device_key
from .device import CudaDevice, HostControl, open_device
from .device_kernel import DeviceKernel, LaunchValues, values_type
from .driver_functions import CaptureStatus, CuLaunchConfig
from .image import image_of
from .modules import find_function, load_module, release_module
from .present_device import find_described

_DOING = "timing the syncs of a plan: "
_SUFFIX = ".syncs.json"
_VERSION = 1  # of the measurement
_WARM_UP, _ROUNDS = 2, 11
_LAUNCHES = 8  # of a round; fewer of a long launch
_LONGEST_ROUND_NS = 400_000
_NOISY = 0.25  # of a time: if the quartiles of the fastest lie further apart, something else runs on the GPU
_PATIENCE_S = 2.0
_NAP_S = 20e-6
_LONGEST_REASON = 200  # characters

# Ends when the host has set the word; or after 5 ms, so that no call of the driver waits for it in vain.
_GATE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry sk_gate(.param .u64 word)
{
    .reg .pred %p<3>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [word];
    mov.u64 %rd2, %globaltimer;
CLOSED:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OPEN;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p2, %rd3, 5000000;
    @%p2 bra CLOSED;
OPEN:
    ret;
}
\0"""
_NO_PATH = Path("a kernel of the run time")


def time_syncs(description: DeviceDescription, plans: Sequence[CudaPlan]) -> SyncTimes:
    """Of plans for this machine's GPU, the first without clusters: from the cache, or measured now.

    Never fails: where nothing can be measured, the result says why, and is empty where the GPU is not here.
    """
    found = find_described(description)
    if found is None:
        return SyncTimes()
    index, properties = found
    if reason := _why_not(plans[0]):
        return SyncTimes(why_not=reason)
    try:
        empty = [build(plan, description, empty=True) for plan in plans]
        key = digest("cuda syncs", str(_VERSION), device_key(properties), *_identity(empty))
        times = _cached(key)
        if times is None:
            times = _measured(open_device(index), empty)
            if len(times.times) == len(plans):  # a size that does not fit now may fit in another process
                with suppress(BuildError):  # then the next compile measures again
                    Cache().write_text(key, _SUFFIX, json.dumps(sync_times_to_json(times)))
        return times
    except SuperKernelError as reason:
        return SyncTimes(why_not=str(reason).splitlines()[0][:_LONGEST_REASON])


def _why_not(plan: CudaPlan) -> str:
    if plan.graph.events:
        return "ops wait for events"
    if os.environ.get(DELAYS):
        return f"{DELAYS} delays waits and signals"
    return missing_assembler()


def _identity(empty: Sequence[CudaExecutable]) -> Iterator[str | bytes]:
    """All that a launch of these kernels depends on."""
    for executable in empty:
        yield executable.ptx
        yield executable.table.data
        yield f"{executable.shape} {executable.shared_bytes} {' '.join(executable.plan.options.compile_options)}"


def _cached(key: str) -> SyncTimes | None:
    try:
        text = Cache().read_text(key, _SUFFIX)
        return None if text is None else sync_times_from_json(json.loads(text))
    except (BuildError, ValueError):
        return None


def _measured(device: CudaDevice, empty: Sequence[CudaExecutable]) -> SyncTimes:
    if device.capture_status(current_stream(device.index), _DOING.removesuffix(": ")) is not CaptureStatus.NONE:
        return SyncTimes(why_not="a CUDA graph is being captured")
    with ExitStack() as stack:
        stack.enter_context(device.current())
        stream = stack.enter_context(_new_stream(device))
        gate = stack.enter_context(_new_gate(device, stream))
        begin, end = (stack.enter_context(_new_event(device)) for _ in range(2))
        timer = _Timer(device, stream, gate, begin, end)
        contenders = list(_contenders(device, empty, stack))
        for contender in contenders:
            timer.run_once(contender)
        longest_ns = max(timer.round_ns(contender, 1) for contender in contenders)
        launches = max(1, min(_LAUNCHES, int(_LONGEST_ROUND_NS / max(1.0, longest_ns))))
        took: dict[int, list[float]] = {contender.cluster: [] for contender in contenders}
        for number in range(_WARM_UP + _ROUNDS):
            for contender in contenders[:: 1 if number % 2 else -1]:
                ns = timer.round_ns(contender, launches)
                if number >= _WARM_UP:
                    took[contender.cluster].append(ns)
    times = [SyncTime(cluster, *_median_and_spread(found)) for cluster, found in took.items()]
    best = min(times, key=lambda time: time.ns)
    if best.spread_ns > _NOISY * best.ns:
        return SyncTimes(why_not=f"times differ by {best.spread_ns / best.ns:.0%}: something else runs on the GPU")
    return SyncTimes(tuple(times))


def _median_and_spread(times: Sequence[float]) -> tuple[float, float]:
    first, middle, third = quantiles(times, n=4)
    return round(middle, 1), round(third - first, 1)


@dataclass(frozen=True)
class _Contender:
    """A loaded kernel without work, and the values of its launches: no buffers."""

    cluster: int
    kernel: DeviceKernel
    values: LaunchValues


def _contenders(device: CudaDevice, empty: Sequence[CudaExecutable], stack: ExitStack) -> Iterator[_Contender]:
    """Those that fit on the GPU now; the first, without clusters, must."""
    for executable in empty:
        image = image_of(executable)
        options = replace(executable.plan.options, debug_watchdog=0)  # the timer ends launches itself
        plan = replace(executable.plan, memory=MemoryPlan(), options=options)
        try:
            kernel = DeviceKernel(replace(image, plan=plan, copies_bytes=0, scratch_bytes=0), device.index)
        except LaunchError:
            if executable.shape.cluster == 1:
                raise
            continue
        stack.callback(kernel.close)
        yield _Contender(executable.shape.cluster, kernel, values_type(image.values)())


@contextmanager
def _new_stream(device: CudaDevice) -> Iterator[int]:
    stream = device.create_stream(f"{_DOING}creating a stream")
    try:
        yield stream
    finally:
        device.destroy_stream(stream)


@contextmanager
def _new_event(device: CudaDevice) -> Iterator[int]:
    event = device.driver.handle(f"{_DOING}creating an event", "cuEventCreate", 0)
    try:
        yield event
    finally:
        device.driver.code("cuEventDestroy_v2", event)


@contextmanager
def _new_gate(device: CudaDevice, stream: int) -> Iterator[_Gate]:
    control = device.allocate_control(f"{_DOING}allocating a word")
    try:
        module = load_module(device, _GATE, {}, _NO_PATH, _DOING)
        try:
            yield _Gate(device, stream, control, find_function(module, "sk_gate", 0, _DOING))
        finally:
            release_module(module)
    finally:
        device.free_host(control.host_address)


@dataclass(frozen=True)
class _Gate:
    """A kernel that holds up its stream until the host lets it end."""

    device: CudaDevice
    stream: int
    word: HostControl
    function: int

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.word.write(0)
        value = c_uint64(self.word.device_address)
        parameters = (c_void_p * 1)(addressof(value))
        config = CuLaunchConfig((1, 1, 1), (1, 1, 1), 0, self.stream, None, 0)
        doing = f"{_DOING}launching a kernel that waits"
        try:
            self.device.driver.check(doing, "cuLaunchKernelEx", pointer(config), self.function, parameters, None)
            yield
        finally:
            self.word.write(1)


@dataclass(frozen=True)
class _Timer:
    device: CudaDevice
    stream: int
    gate: _Gate
    begin: int
    end: int

    def run_once(self, contender: _Contender) -> None:
        """The driver loads the code at its first launch."""
        contender.kernel.launch(contender.values, self.stream, ())
        self._finish(contender)

    def round_ns(self, contender: _Contender, launches: int) -> float:
        """Of one launch, as the GPU's clock has it."""
        with self.gate.closed():
            self._record(self.begin)
            for _ in range(launches):
                if not contender.kernel.launch_again(contender.values, self.stream):
                    contender.kernel.launch(contender.values, self.stream, ())
            self._record(self.end)
        self._finish(contender)
        took_ms = c_float()
        doing = f"{_DOING}reading the time"
        self.device.driver.check(doing, "cuEventElapsedTime", byref(took_ms), self.begin, self.end)
        return took_ms.value * 1e6 / launches

    def _record(self, event: int) -> None:
        self.device.driver.check(f"{_DOING}recording an event", "cuEventRecord", event, self.stream)

    def _finish(self, contender: _Contender) -> None:
        limit = monotonic() + _PATIENCE_S
        while not self.device.is_done(self.stream, f"{_DOING}waiting for a launch"):
            if monotonic() > limit:
                contender.kernel.abort()
                raise LaunchError(f"{_DOING}a launch has not ended within {_PATIENCE_S:g} s")
            sleep(_NAP_S)
