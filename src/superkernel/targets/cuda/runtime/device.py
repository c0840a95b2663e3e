"""targets.cuda.runtime.device: the driver -> the GPUs of this process: properties, context, memory, streams."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property

from ....errors import LaunchError
from ....plan.memory import spell_bytes
from .driver import CudaDriver, find_driver
from .driver_functions import (
    CAPTURE_MODE_RELAXED,
    DEV_RESOURCE_TYPE_SM,
    EVENT_DISABLE_TIMING,
    EXEC_AFFINITY_SM_COUNT,
    HOST_PORTABLE_MAPPED,
    STREAM_NON_BLOCKING,
    CaptureStatus,
    CuCode,
    DeviceAttribute,
    DeviceResource,
    ExecAffinity,
)

CAPTURED_ELSEWHERE = (
    "another stream is capturing a CUDA graph, and this launch is on the default stream, which waits for it: launch on "
    "the capturing stream, or on a stream of its own (with torch.cuda.stream(torch.cuda.Stream()))"
)


@dataclass(frozen=True)
class DeviceProperties:
    """What the driver says of a device."""

    name: str
    uuid: str
    capability: tuple[int, int]  # compute capability, such as (9, 0)
    sms: int
    registers_per_sm: int
    shared_per_sm: int  # bytes
    shared_per_block: int  # bytes; the most that a kernel may ask for (opt-in)
    threads_per_sm: int
    threads_per_block: int
    clock_khz: int
    l2_bytes: int
    cooperative: bool
    cluster_launch: bool

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, sm_{major}{minor}, {self.sms} SMs"


@dataclass(frozen=True)
class HostControl:
    """A word in mapped host memory: the host writes it, waits of a running kernel read it."""

    host_address: int
    device_address: int

    def write(self, value: int) -> None:
        ctypes.c_uint32.from_address(self.host_address).value = value

    def read(self) -> int:
        return ctypes.c_uint32.from_address(self.host_address).value


class CudaDevice:
    """One device with its primary context, which torch and other libraries of the process use as well."""

    def __init__(self, driver: CudaDriver, index: int) -> None:
        self.driver, self.index, self._process = driver, index, os.getpid()
        self.handle = driver.number(f"looking for GPU {index}", "cuDeviceGet", index)
        self.properties = read_properties(driver, self.handle)
        # retained for the life of the process: memory and modules of kernels belong to it
        self.context = driver.handle(
            f"opening the context of GPU {index} ({self.properties.name})", "cuDevicePrimaryCtxRetain", self.handle
        )
        self._get_current = driver.unconverted("cuCtxGetCurrent", blocks=False)
        self._cached: dict[int, list[int]] = {}  # size -> memory of arrays that are gone
        self._cache_lock = threading.RLock()  # a finalizer may run at any moment

    @property
    def name(self) -> str:
        return f"cuda:{self.index}"

    def check_process(self, where: str) -> None:
        if os.getpid() != self._process:
            raise LaunchError(
                f"{where}launch in a forked process: its parent opened the GPU. Start the process with the 'spawn' "
                "method, or fork before the first launch"
            )

    def enter(self) -> None:
        """The calling thread uses this device from now on, if it does not already."""
        current = c_void_p()
        code = self._get_current(byref(current))
        if code or current.value != self.context:
            self.driver.code("cuCtxSetCurrent", self.context)  # where it fails, so does what follows, and says what

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, the calling thread uses this device; afterwards the context that it had before.

        Inside, allocations and waits are allowed although another stream of this thread may be capturing a graph.
        """
        before, mode = c_void_p(), c_int(CAPTURE_MODE_RELAXED)
        self.driver.code("cuCtxGetCurrent", byref(before))
        if before.value != self.context:
            self.driver.code("cuCtxSetCurrent", self.context)  # where it fails, so does what follows, and says what
        relaxed = self.driver.code("cuThreadExchangeStreamCaptureMode", byref(mode)) == CuCode.SUCCESS
        try:
            yield
        finally:
            if relaxed:
                self.driver.code("cuThreadExchangeStreamCaptureMode", byref(mode))
            if before.value not in (None, self.context):
                self.driver.code("cuCtxSetCurrent", before)

    # how many SMs a launch may use

    @cached_property
    def usable_sms(self) -> int:
        """The SMs of the context: fewer than the device has under MPS with a limit; MIG shows its part as a device."""
        affinity, driver = ExecAffinity(), self.driver
        if not driver.has("cuCtxGetExecAffinity") or not driver.has("cuDeviceGetExecAffinitySupport"):
            return self.properties.sms
        supported = c_int()
        with self.current():
            code = driver.code("cuDeviceGetExecAffinitySupport", byref(supported), EXEC_AFFINITY_SM_COUNT, self.handle)
            if code or not supported.value:
                return self.properties.sms
            if driver.code("cuCtxGetExecAffinity", byref(affinity), EXEC_AFFINITY_SM_COUNT) or not affinity.sm_count:
                return self.properties.sms
        return min(self.properties.sms, int(affinity.sm_count))

    def uses_mps(self) -> bool:
        """Whether kernels of several processes run beside each other; without MPS processes take turns."""
        value = c_int()  # drivers before CUDA 12.3 do not know the attribute
        code = self.driver.code("cuDeviceGetAttribute", byref(value), DeviceAttribute.MPS_ENABLED, self.handle)
        return not code and bool(value.value)

    def stream_sms(self, stream: int) -> int:
        """The SMs of a stream: those of its green context, where it has one."""
        driver, green, resource = self.driver, c_void_p(), DeviceResource()
        if not stream or not driver.has("cuStreamGetGreenCtx") or not driver.has("cuGreenCtxGetDevResource"):
            return self.usable_sms
        if driver.code("cuStreamGetGreenCtx", stream, byref(green)) or not green.value:
            return self.usable_sms
        if driver.code("cuGreenCtxGetDevResource", green, byref(resource), DEV_RESOURCE_TYPE_SM):
            return self.usable_sms
        return min(self.usable_sms, int(resource.sm_count) or self.usable_sms)

    # memory

    def allocate(self, size: int, doing: str) -> int:
        found = c_uint64()
        code = self.driver.code("cuMemAlloc_v2", byref(found), max(1, size))
        if code == CuCode.OUT_OF_MEMORY:
            raise LaunchError(
                f"{doing}: {self.name} ({self.properties.name}) has no memory left for {spell_bytes(size)}: "
                f"{self.driver.code_text(code)}. Free tensors, or torch.cuda.empty_cache()"
            )
        if code:
            raise self.driver.error(doing, "cuMemAlloc", code)
        return found.value

    def free(self, address: int) -> None:
        """Waits for what runs; a lost context has freed it already."""
        self.driver.code("cuMemFree_v2", address)

    def take(self, size: int, doing: str) -> int:
        """Memory for an array. Work of the default stream that was started before may still use it."""
        with self._cache_lock:
            kept = self._cached.get(size)
            if kept:
                return kept.pop()
        try:
            return self.allocate(size, doing)
        except LaunchError:
            if not self.release_cached():
                raise
        return self.allocate(size, doing)

    def give(self, address: int, size: int) -> None:
        """For the next array of this size: to free memory waits for all that runs, and holds up the watchdog."""
        with self._cache_lock:
            self._cached.setdefault(size, []).append(address)

    def release_cached(self) -> bool:
        """Whether there was something to free. The device is current."""
        with self._cache_lock:
            kept, self._cached = self._cached, {}
        for addresses in kept.values():
            for address in addresses:
                self.free(address)
        return bool(kept)

    def allocate_control(self, doing: str) -> HostControl:
        host = self.driver.handle(doing, "cuMemHostAlloc", 64, HOST_PORTABLE_MAPPED)
        ctypes.memset(host, 0, 64)
        return HostControl(host, self.driver.address(doing, "cuMemHostGetDevicePointer_v2", host, 0))

    def allocate_host(self, size: int, doing: str) -> int:
        """Page-locked memory: copies to it do not wait for other streams."""
        return self.driver.handle(doing, "cuMemHostAlloc", size, HOST_PORTABLE_MAPPED)

    def free_host(self, address: int) -> None:
        self.driver.code("cuMemFreeHost", address)

    def zero(self, address: int, size: int, doing: str) -> None:
        """By the copy engine: a kernel that occupies all SMs does not hold it up. Returns when it is done."""
        zeros = (ctypes.c_ubyte * size)()
        self.upload(address, ctypes.addressof(zeros), size, doing)

    def upload(self, address: int, host: int, size: int, doing: str) -> None:
        self.driver.check(doing, "cuMemcpyHtoDAsync_v2", address, host, size, self.side_stream)
        self.finish(self.side_stream, doing)

    def download(self, host: int, address: int, size: int, doing: str) -> None:
        self.driver.check(doing, "cuMemcpyDtoHAsync_v2", host, address, size, self.side_stream)
        self.finish(self.side_stream, doing)

    def write_word(self, address: int, value: int, doing: str) -> None:
        word = c_uint64(value)
        self.upload(address, ctypes.addressof(word), 8, doing)

    # streams

    @cached_property
    def side_stream(self) -> int:
        """For copies while kernels run: it waits for no other stream, and no other stream waits for it."""
        return self.create_stream(f"creating a stream of {self.name}")

    def create_stream(self, doing: str) -> int:
        return self.driver.handle(doing, "cuStreamCreate", STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        self.driver.code("cuStreamDestroy_v2", stream)

    def finish(self, stream: int, doing: str) -> None:
        self.driver.check(doing, "cuStreamSynchronize", stream)

    def is_done(self, stream: int, doing: str) -> bool:
        code = self.driver.code("cuStreamQuery", stream)
        if code not in (CuCode.SUCCESS, CuCode.NOT_READY):
            raise self.driver.error(doing, "cuStreamQuery", code)
        return code == CuCode.SUCCESS

    def order_after(self, stream: int, earlier: int, doing: str) -> None:
        """What `stream` gets from now on waits for what `earlier` has got so far."""
        event = self.driver.handle(doing, "cuEventCreate", EVENT_DISABLE_TIMING)
        try:
            self.driver.check(doing, "cuEventRecord", event, earlier)
            self.driver.check(doing, "cuStreamWaitEvent", stream, event, 0)
        finally:
            self.driver.code("cuEventDestroy_v2", event)

    def capture_status(self, stream: int, doing: str) -> CaptureStatus:
        """Refuses what would break the capture of another stream."""
        status = c_int()
        code = self.driver.code("cuStreamIsCapturing", stream, byref(status))
        if code == CuCode.STREAM_CAPTURE_IMPLICIT:
            raise LaunchError(f"{doing}: {CAPTURED_ELSEWHERE}")
        if code:
            raise self.driver.error(doing, "cuStreamIsCapturing", code)
        return CaptureStatus(status.value)


def read_properties(driver: CudaDriver, handle: int) -> DeviceProperties:
    """By the handle of a device; no context is opened."""

    def attribute(which: DeviceAttribute) -> int:
        return driver.number(f"asking GPU {handle} for {which.name}", "cuDeviceGetAttribute", which, handle)

    name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    driver.check(f"asking GPU {handle} for its name", "cuDeviceGetName", name, len(name), handle)
    driver.check(f"asking GPU {handle} for its UUID", "cuDeviceGetUuid_v2", uuid, handle)
    return DeviceProperties(
        name.value.decode("utf-8", "replace"),
        bytes(uuid).hex(),
        (attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR), attribute(DeviceAttribute.COMPUTE_CAPABILITY_MINOR)),
        attribute(DeviceAttribute.MULTIPROCESSOR_COUNT),
        attribute(DeviceAttribute.MAX_REGISTERS_PER_MULTIPROCESSOR),
        attribute(DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        attribute(DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        attribute(DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR),
        attribute(DeviceAttribute.MAX_THREADS_PER_BLOCK),
        attribute(DeviceAttribute.CLOCK_RATE),
        attribute(DeviceAttribute.L2_CACHE_SIZE),
        bool(attribute(DeviceAttribute.COOPERATIVE_LAUNCH)),
        bool(attribute(DeviceAttribute.CLUSTER_LAUNCH)),
    )


def found_devices() -> tuple[DeviceProperties, ...]:
    """All that this process sees; none where there is no driver. No context is opened."""
    try:
        driver = find_driver()
        return tuple(
            read_properties(driver, driver.number(f"looking for GPU {index}", "cuDeviceGet", index))
            for index in range(driver.device_count())
        )
    except LaunchError:
        return ()


_opening = threading.Lock()


def open_device(index: int) -> CudaDevice:
    """By torch's number of the device; opened once per process."""
    with _opening:
        return _opened(find_driver(), index)


@cache
def _opened(driver: CudaDriver, index: int) -> CudaDevice:
    count = driver.device_count()
    if not 0 <= index < count:
        raise LaunchError(f"there is no GPU {index}: this process sees {count}")
    return CudaDevice(driver, index)
