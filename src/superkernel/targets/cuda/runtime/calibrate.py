"""targets.cuda.runtime.calibrate: a device -> what syncs and launches cost, measured once and kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, c_uint64, c_void_p, pointer
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from ....cache import Cache, digest
from ....errors import BuildError, LaunchError
from .device import CudaDevice, DeviceProperties
from .driver_functions import MOST_PORTABLE_CLUSTER, cluster_attribute, cooperative_attribute, launch_config
from .modules import check_clusters, find_function, load_module, release_module

_NO_PATH = Path("a kernel of the run time")
_SUFFIX = ".costs.json"
_VERSION = 2  # of the measurement
_SLOTS, _THREADS = 4, 128
_FEW, _MANY, _REPEATS, _LAUNCHES = 64, 1088, 5, 100
_COUNTER_BYTES = 32
_CLUSTER = MOST_PORTABLE_CLUSTER
_FIRST_WITH_CLUSTERS = 9  # compute capability

# Round r: every block arrives at counter r and waits until all have; then four slots of a block do so at a word in
# shared memory.
_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry sk_counter_rounds(.param .u64 area, .param .u64 rounds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [area];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %nctaid.x;
    setp.ne.u32 %p1, %r2, 0;
    mov.u32 %r4, 0;
ROUND:
    bar.sync 0;
    @%p1 bra MEET;
    red.release.gpu.global.add.u32 [%rd1], 1;
POLL:
    ld.acquire.gpu.global.u32 %r5, [%rd1];
    setp.lt.u32 %p2, %r5, %r3;
    @%p2 bra POLL;
MEET:
    bar.sync 0;
    add.u64 %rd1, %rd1, 32;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p3, %r4, %r1;
    @%p3 bra ROUND;
    ret;
}
.visible .entry sk_near_rounds(.param .u64 area, .param .u64 rounds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .shared .align 4 .b32 met;
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    shr.u32 %r3, %r2, 7;
    add.u32 %r3, %r3, 1;
    and.b32 %r4, %r2, 127;
    setp.ne.u32 %p1, %r4, 0;
    mov.u32 %r5, met;
    setp.ne.u32 %p2, %r2, 0;
    mov.u32 %r6, 0;
    @!%p2 st.shared.u32 [%r5], %r6;
    bar.sync 0;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
ROUND:
    add.u32 %r8, %r8, 4;
    bar.sync %r3, 128;
    @%p1 bra MEET;
    red.release.cta.shared.add.u32 [%r5], 1;
POLL:
    ld.acquire.cta.shared.u32 %r9, [%r5];
    setp.lt.u32 %p2, %r9, %r8;
    @%p2 bra POLL;
MEET:
    bar.sync %r3, 128;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p3, %r7, %r1;
    @%p3 bra ROUND;
    ret;
}
\0"""
# The blocks of a cluster do so at a word in the shared memory of each, as super kernels do.
_CLUSTER_PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry sk_cluster_rounds(.param .u64 area, .param .u64 rounds)
{
    .reg .pred %p<5>;
    .reg .b32 %r<12>;
    .shared .align 4 .b32 met;
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %nctaid.x;
    setp.ne.u32 %p1, %r2, 0;
    setp.ge.u32 %p2, %r2, %r3;
    mov.u32 %r5, met;
    mov.u32 %r6, 0;
    @!%p1 st.shared.u32 [%r5], %r6;
    @!%p2 mapa.shared::cluster.u32 %r4, %r5, %r2;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
ROUND:
    add.u32 %r8, %r8, %r3;
    bar.sync 0;
    @%p2 bra MEET;
    red.release.cluster.shared::cluster.add.u32 [%r4], 1;
    @%p1 bra MEET;
POLL:
    ld.relaxed.cluster.shared.u32 %r9, [%r5];
    setp.lt.u32 %p3, %r9, %r8;
    @%p3 bra POLL;
    ld.acquire.cluster.shared.u32 %r9, [%r5];
MEET:
    bar.sync 0;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, %r1;
    @%p4 bra ROUND;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ret;
}
\0"""


@dataclass(frozen=True)
class MeasuredCosts:
    """Nanoseconds."""

    counter_ns: float  # all SMs wait for all by a counter in device memory
    near_ns: float  # the slots of an SM wait for each other by a word in shared memory
    launch_ns: float  # of the host, per launch
    cluster_ns: float | None = None  # the SMs of a cluster wait for each other; None: there are no clusters


def cached_costs(properties: DeviceProperties) -> MeasuredCosts | None:
    """Of an earlier calibration; no context is opened."""
    try:
        text = Cache().read_text(_key(properties), _SUFFIX)
        return None if text is None else MeasuredCosts(**json.loads(text))
    except (BuildError, ValueError, TypeError):
        return None


def measured_costs(device: CudaDevice) -> MeasuredCosts:
    """From the cache, or measured now: some milliseconds. A LaunchError where the driver cannot compile the kernels."""
    found = cached_costs(device.properties)
    if found is None:
        with device.current():
            found = _measure(device)
        with suppress(BuildError):  # then the next process measures again
            Cache().write_text(_key(device.properties), _SUFFIX, json.dumps(asdict(found)))
    return found


def _key(properties: DeviceProperties) -> str:
    return digest("cuda costs", str(_VERSION), device_key(properties))


def device_key(properties: DeviceProperties) -> str:
    """Equal of devices on which the same takes as long."""
    return digest(properties.name, str(properties.sms), str(properties.clock_khz))


def _measure(device: CudaDevice) -> MeasuredCosts:
    doing = f"measuring what syncs cost on {device.name}: "
    module = load_module(device, _PTX, {}, _NO_PATH, doing)
    area = device.allocate(_COUNTER_BYTES * _MANY, doing)
    try:
        counter = _Kernel(
            device, find_function(module, "sk_counter_rounds", 0, doing), device.usable_sms, _THREADS, area
        )
        near = _Kernel(device, find_function(module, "sk_near_rounds", 0, doing), 1, _SLOTS * _THREADS, area)
        cluster_ns = _cluster_round_ns(device, area, doing)
        return MeasuredCosts(counter.round_ns(doing), near.round_ns(doing), near.launch_ns(doing), cluster_ns)
    finally:
        device.free(area)
        release_module(module)


def _cluster_round_ns(device: CudaDevice, area: int, doing: str) -> float | None:
    """None where the SMs of this process form no clusters, or the driver cannot compile for them."""
    if not device.properties.cluster_launch or device.properties.capability[0] < _FIRST_WITH_CLUSTERS:
        return None
    try:
        module = load_module(device, _CLUSTER_PTX, {}, _NO_PATH, doing)
    except LaunchError:
        return None
    try:
        function = find_function(module, "sk_cluster_rounds", 0, doing)
        alone = launch_config(_CLUSTER, _THREADS, 0, 0, [cluster_attribute(_CLUSTER)])
        check_clusters(device, function, alone, _CLUSTER, doing)
        return _Kernel(device, function, _CLUSTER, _THREADS, area, _CLUSTER).round_ns(doing)
    except LaunchError:
        return None
    finally:
        release_module(module)


@dataclass(frozen=True)
class _Kernel:
    """One of the kernels with its launch."""

    device: CudaDevice
    function: int
    blocks: int
    threads: int
    area: int
    cluster: int = 1

    def round_ns(self, doing: str) -> float:
        """The slope between few and many rounds, so that the launch itself does not count."""
        few = self._fastest(_FEW, doing)
        return max(1.0, (self._fastest(_MANY, doing) - few) / (_MANY - _FEW))

    def _fastest(self, rounds: int, doing: str) -> int:
        times = []
        for _ in range(_REPEATS):
            self.device.zero(self.area, _COUNTER_BYTES * _MANY, doing)
            times.append(self._timed(rounds, doing))
        return min(times)

    def _timed(self, rounds: int, doing: str) -> int:
        launch = self._launcher(rounds, doing)
        begin = perf_counter_ns()
        launch()
        self.device.finish(self.device.side_stream, doing)
        return perf_counter_ns() - begin

    def launch_ns(self, doing: str) -> float:
        """Of the call, while the device keeps up."""
        launch, times = self._launcher(1, doing), []
        for _ in range(_LAUNCHES):
            begin = perf_counter_ns()
            launch()
            times.append(perf_counter_ns() - begin)
            self.device.finish(self.device.side_stream, doing)
        return float(median(times))

    def _launcher(self, rounds: int, doing: str) -> Callable[[], None]:
        values = (c_uint64 * 2)(self.area, rounds)
        parameters = (c_void_p * 2)(addressof(values), addressof(values) + 8)
        attributes = [cooperative_attribute(), *([cluster_attribute(self.cluster)] if self.cluster > 1 else [])]
        config = launch_config(self.blocks, self.threads, 0, self.device.side_stream, attributes)
        arguments: Sequence[object] = (pointer(config), self.function, parameters, None)

        def launch() -> None:
            assert values is not None  # kept: the parameters point to it
            self.device.driver.check(doing, "cuLaunchKernelEx", *arguments)

        return launch


def try_calibration(device: CudaDevice) -> MeasuredCosts | None:
    """None where it cannot be measured: the costs of a description serve then."""
    try:
        return measured_costs(device)
    except LaunchError:
        return None
