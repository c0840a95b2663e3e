"""Launches through a fake driver: what is loaded, checked, passed and freed; states per stream and per capture."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.runtime.conftest import with_fake
from targets.cuda.runtime.fake_driver import ELEMENTS, TABLE, FakeDeviceArray, FakeDriver, chain_image

from superkernel.errors import LaunchError
from superkernel.model.events import Event
from superkernel.runtime.prepared_launch import PreparedLaunch
from superkernel.targets.cuda.runtime import arguments
from superkernel.targets.cuda.runtime import launch as launch_module
from superkernel.targets.cuda.runtime.device import open_device
from superkernel.targets.cuda.runtime.device_arrays import CudaArray
from superkernel.targets.cuda.runtime.event_words import event_address
from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel
from superkernel.targets.protocol import LaunchInputs

NO_INPUTS = LaunchInputs({}, {})


def floats(values: Any = None) -> FakeDeviceArray:
    return FakeDeviceArray(np.arange(ELEMENTS, dtype=np.float32) if values is None else values)


def at(address: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ctypeslib.as_array((ctypes.c_float * ELEMENTS).from_address(address))


def add_twice(values: Any, state: int) -> None:
    """The chain, by the addresses that the kernel gets: x, t, y."""
    x, t, y = (at(address) for address in (ctypes.c_uint64 * 3).from_address(values))
    t[:] = x + 1
    y[:] = t + 1


@pytest.fixture
def kernel(fake: FakeDriver, tmp_path: Path) -> CudaLoadedKernel:
    image = chain_image(tmp_path)
    fake.cores, fake.compute = image.cores, add_twice
    return CudaLoadedKernel(image)


def on_stream(monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    """Launches go there, as to a current stream of torch."""
    monkeypatch.setattr(launch_module, "current_stream", lambda index: stream)
    monkeypatch.setattr(launch_module, "stream_reader", lambda: lambda index: stream)


def test_a_launch_loads_writes_the_table_and_passes_values(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    x, y = floats(), floats(np.zeros(ELEMENTS, np.float32))
    assert kernel.launch({"x": x, "y": y}, NO_INPUTS) == {}
    assert np.array_equal(y.array, x.array + 2)
    assert fake.table(len(TABLE)) == TABLE
    assert (fake.get("blocks"), fake.get("threads"), fake.get("shared"), fake.get("attributes")) == (4, 128, 65536, 1)
    kernel.launch({"x": y, "y": x}, NO_INPUTS)
    assert np.array_equal(x.array, np.arange(ELEMENTS) + 4)
    assert fake.get("cuModuleLoadData") == 1
    kernel.close()


def test_an_output_that_is_not_passed_is_allocated_and_inner_buffers_are_not(
    fake: FakeDriver, kernel: CudaLoadedKernel
) -> None:
    outputs = kernel.launch({"x": floats()}, NO_INPUTS)
    assert list(outputs) == ["y"]
    assert isinstance(outputs["y"], CudaArray)
    assert np.array_equal(outputs["y"].to_numpy(), np.arange(ELEMENTS) + 2)
    again = kernel.launch({"x": outputs["y"]}, NO_INPUTS)
    assert np.array_equal(again["y"].to_numpy(), np.arange(ELEMENTS) + 4)
    kernel.close()
    del outputs, again
    gc.collect()
    device = open_device(0)
    with device.current():
        assert device.release_cached() and not device.release_cached()
    assert fake.get("allocations") == fake.get("host_allocations") == fake.get("modules") == 0


def test_bind_launches_again_without_checks_and_update_exchanges_an_argument(
    fake: FakeDriver, kernel: CudaLoadedKernel
) -> None:
    x, y = floats(), floats()
    go = PreparedLaunch(kernel.plan.graph, kernel.bind({"x": x, "y": y}, NO_INPUTS), NO_INPUTS, kernel.launch_bound)
    go()
    launches, registered = len(fake.launches), fake.get("cuModuleGetFunction")
    go()
    assert len(fake.launches) == launches + 1 and fake.get("cuModuleGetFunction") == registered
    assert np.array_equal(y.array, np.arange(ELEMENTS) + 2)
    other = floats(np.full(ELEMENTS, 7, np.float32))
    go.update("x", other)
    go()
    assert np.array_equal(y.array, np.full(ELEMENTS, 9))
    inner = floats()
    go.update("t", inner)  # a name that had its place in the arena
    go()
    assert np.array_equal(inner.array, np.full(ELEMENTS, 8))
    with pytest.raises(LaunchError, match="numpy array in the host's memory"):
        go.update("x", np.zeros(ELEMENTS, np.float32))
    kernel.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        go()


def test_a_bound_launch_on_another_stream_uses_the_areas_of_that_stream(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []  # state, address of t
    fake.compute = lambda values, state: seen.append((state, (ctypes.c_uint64 * 3).from_address(values)[1]))
    arguments_of = kernel.bind({"x": floats(), "y": floats()}, NO_INPUTS)
    streams = [fake.stream(), fake.stream()]
    for stream in (*streams, *streams):
        on_stream(monkeypatch, stream)
        kernel.launch_bound(arguments_of, NO_INPUTS)
    assert seen[0] == seen[2] and seen[1] == seen[3]
    assert seen[0][0] != seen[1][0] and seen[0][1] != seen[1][1]
    kernel.close()


def test_a_captured_launch_has_a_state_of_its_own(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fake.stream()
    on_stream(monkeypatch, stream)
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    fake.capture(stream, 1)
    fake.set("legacy_capture", 1)  # memory may be allocated only by a thread that relaxes its capture mode
    bound = kernel.bind({"x": floats(), "y": floats()}, NO_INPUTS)
    for _ in range(2):
        kernel.launch_bound(bound, NO_INPUTS)
    fake.capture(stream, 0)
    fake.set("legacy_capture", 0)
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert [captured for _, _, captured in fake.launches] == [False, True, True, False]
    (device_kernel,) = kernel._kernels.values()
    addresses = [state.address for state in device_kernel.states()]
    assert len(set(addresses)) == 3
    kernel.close()


def test_a_launch_on_the_default_stream_during_a_capture_is_refused(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    fake.set("legacy_capture", 1)
    with pytest.raises(LaunchError, match="another stream is capturing a CUDA graph"):
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    fake.set("legacy_capture", 0)
    kernel.close()


def test_a_capture_that_has_failed_is_refused(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fake.stream()
    on_stream(monkeypatch, stream)
    fake.capture(stream, 2)
    with pytest.raises(LaunchError, match="has failed already"):
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    kernel.close()


REFUSED: dict[str, tuple[Any, str]] = {
    "numpy": (np.zeros(ELEMENTS, np.float32), "numpy array in the host's memory"),
    "list": ([1.0], "is a list; pass a torch tensor on the GPU"),
    "dtype": (FakeDeviceArray(np.zeros(ELEMENTS, np.float64)), "has dtype float64, the ops take float32"),
    "size": (FakeDeviceArray(np.zeros(3, np.float32)), r"has shape \[3\]"),
    "misaligned": (FakeDeviceArray(np.zeros(ELEMENTS, np.float32), offset=4), "no multiple of 16 bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_arguments_are_refused_before_anything_runs(fake: FakeDriver, kernel: CudaLoadedKernel, what: str) -> None:
    value, words = REFUSED[what]
    with pytest.raises(LaunchError, match=words) as raised:
        kernel.launch({"x": value, "y": floats()}, NO_INPUTS)
    assert str(raised.value).startswith("super_kernel_scope 'chain': 'x' ")
    assert not fake.launches


def test_odd_arrays_of_other_libraries_are_refused(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    strided, fixed, unknown = floats(), floats(), floats()
    strided.changed = {"strides": (8,)}
    fixed.changed = {"data": (fixed.array.ctypes.data, True)}
    unknown.changed = {"typestr": "<q9"}
    for name, value, words in [("x", strided, "not contiguous"), ("y", fixed, "read-only"), ("x", unknown, "<q9")]:
        with pytest.raises(LaunchError, match=words):
            kernel.launch({"x": floats(), "y": floats(), name: value}, NO_INPUTS)
    x = floats()
    with pytest.raises(LaunchError, match="overlap in memory"):
        kernel.launch({"x": x, "y": x}, NO_INPUTS)
    with pytest.raises(LaunchError, match="no op uses the name 'z'"):
        kernel.launch({"x": x, "z": x}, NO_INPUTS)
    with pytest.raises(LaunchError, match="'x' is read before any op writes it"):
        kernel.launch({}, NO_INPUTS)
    assert not fake.launches


class DlpackArray:
    """An array that speaks DLPack only."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (2, 0)) -> None:
        self.memory, self.device = FakeDeviceArray(array), device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int) -> Any:
        assert stream == 1
        return self.memory.array.__dlpack__()


def test_arrays_by_dlpack_are_taken(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    x, y = DlpackArray(np.ones(ELEMENTS, np.float32)), floats()
    kernel.launch({"x": x, "y": y}, NO_INPUTS)
    assert np.array_equal(y.array, np.full(ELEMENTS, 3))
    with pytest.raises(LaunchError, match="not on a GPU"):
        kernel.launch({"x": DlpackArray(np.ones(ELEMENTS, np.float32), (1, 0)), "y": y}, NO_INPUTS)
    with pytest.raises(LaunchError, match="has dtype int32"):
        kernel.launch({"x": DlpackArray(np.ones(ELEMENTS, np.int32)), "y": y}, NO_INPUTS)
    kernel.close()


def test_a_launch_waits_for_the_stream_of_an_array(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    other = fake.stream()
    x = FakeDeviceArray(np.zeros(ELEMENTS, np.float32), stream=other)
    kernel.launch({"x": x, "y": floats()}, NO_INPUTS)
    assert fake.get("cuStreamWaitEvent") == fake.get("cuEventDestroy_v2") == 1
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert fake.get("cuStreamWaitEvent") == 1
    kernel.close()


def test_buffers_on_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeDriver(devices=2)
    with_fake(monkeypatch, fake)
    kernel = CudaLoadedKernel(chain_image(tmp_path))
    x, y = DlpackArray(np.ones(ELEMENTS, np.float32)), DlpackArray(np.ones(ELEMENTS, np.float32), (2, 1))
    with pytest.raises(LaunchError, match="'x' is on cuda:0 and 'y' on cuda:1; the buffers of a launch lie on one"):
        kernel.launch({"x": x, "y": y}, NO_INPUTS)
    bound = kernel.bind({"x": x, "y": floats()}, NO_INPUTS)
    with pytest.raises(LaunchError, match="'y' is on cuda:1; the other buffers of this launch are on cuda:0"):
        PreparedLaunch(kernel.plan.graph, bound, NO_INPUTS, kernel.launch_bound).update("y", y)
    fake.cores = kernel.plan.cores
    stream = fake.stream(device=1)
    on_stream(monkeypatch, stream)
    x = DlpackArray(np.ones(ELEMENTS, np.float32), (2, 1))
    kernel.launch({"x": x, "y": y}, NO_INPUTS)  # a second device gets a module of its own
    assert fake.get("modules") == 2 and fake.launches == [("sk_chain", stream, False)]
    kernel.close()
    assert fake.violations == ""


def test_equal_kernels_share_a_module_and_it_goes_with_the_last(fake: FakeDriver, tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    fake.cores = image.cores
    kernels = [CudaLoadedKernel(image), CudaLoadedKernel(image)]
    for kernel in kernels:
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert fake.get("modules") == 1
    kernels[0].close()
    kernels[1].launch({"x": floats(), "y": floats()}, NO_INPUTS)
    kernels[1].close()
    assert fake.get("modules") == 0 and fake.get("allocations") == 0


def test_more_blocks_than_can_be_resident_are_refused_with_the_numbers(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = CudaLoadedKernel(chain_image(tmp_path))
    fake.set("blocks_per_sm", 0)
    with pytest.raises(LaunchError, match=r"4 blocks of 128 threads .* 0 fit .* 96 registers .* 65536 bytes"):
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert not fake.launches and fake.get("modules") == 0


def test_a_process_that_mps_limits_has_fewer_sms(fake: FakeDriver, tmp_path: Path) -> None:
    fake.set("affinity_sms", 3)
    with pytest.raises(LaunchError, match=r"1 on each of 3 usable SMs \(of 8\)"):
        CudaLoadedKernel(chain_image(tmp_path)).launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert not fake.launches and fake.get("modules") == 0


def test_a_stream_of_a_green_context_has_fewer_sms(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    on_stream(monkeypatch, fake.stream(green_sms=2))
    with pytest.raises(LaunchError, match=r"2 fit .* 1 on each of 2 usable SMs \(of 8\)"):
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    kernel.close()


@pytest.mark.parametrize("size", [2, 4, 16])
def test_a_launch_in_clusters(fake: FakeDriver, tmp_path: Path, size: int) -> None:
    fake.set("sms", 32)
    kernel = CudaLoadedKernel(replace(chain_image(tmp_path), sms=max(4, size), cluster=size))
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert fake.get("cluster") == size and fake.get("attributes") == 1
    assert fake.get("cuOccupancyMaxActiveClusters") >= 1
    kernel.close()
    assert fake.violations == ""


def test_a_launch_without_clusters_has_no_attribute_for_them(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert fake.get("cluster") == 1 and fake.get("cuOccupancyMaxActiveClusters") == 0


def test_clusters_that_do_not_fit_are_refused_with_the_numbers(fake: FakeDriver, tmp_path: Path) -> None:
    fake.set("cluster_sms", 3)
    with pytest.raises(LaunchError, match=r"1 clusters of 4 SMs wait for each other, and 0 fit on cuda:0"):
        CudaLoadedKernel(chain_image(tmp_path, cluster=4)).launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert not fake.launches and fake.get("modules") == 0


def test_clusters_on_a_gpu_without_them_are_refused(fake: FakeDriver, tmp_path: Path) -> None:
    fake.set("cluster_launch", 0)
    with pytest.raises(LaunchError, match=r"compiled for clusters of 2 SMs, which Fake GPU 0 or its driver"):
        CudaLoadedKernel(chain_image(tmp_path, cluster=2)).launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert not fake.launches and fake.violations == ""


def test_clusters_on_a_stream_with_fewer_sms_are_refused(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its SMs would be enough, but not side by side."""
    kernel = CudaLoadedKernel(chain_image(tmp_path, cluster=4))
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    fake.set("cluster_sms", 3)
    on_stream(monkeypatch, fake.stream())
    with pytest.raises(LaunchError, match="0 fit on cuda:0"):
        kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    kernel.close()


def test_an_event_is_mapped_once_per_page(fake: FakeDriver) -> None:
    device, event = open_device(0), Event("go")
    with device.current():
        addresses = {event_address(device, event, "here: ") for _ in range(2)}
        assert addresses == {event.address} and fake.get("cuMemHostRegister_v2") == 1
        fake.plant("cuMemHostRegister_v2", 801)
        others = [Event(str(number)) for number in range(200)]  # of several pages
        with pytest.raises(LaunchError, match=r"mapping the word of Event\('\d+', clear\) for the GPU"):
            for other in others:
                event_address(device, other, "here: ")


def test_two_threads_launch_at_once(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            x, y = floats(), floats()
            go = kernel.bind({"x": x, "y": y}, NO_INPUTS)
            for _ in range(50):
                kernel.launch_bound(go, NO_INPUTS)
            kernel.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(fake.launches) == 100
    kernel.close()


def test_the_current_device_decides_where_nothing_was_passed(fake: FakeDriver) -> None:
    assert arguments.common_device({}, "") == 0
    assert arguments.device_of(np.zeros(1)) is None


def test_a_kernel_that_is_not_closed_goes_with_its_last_reference(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = CudaLoadedKernel(chain_image(tmp_path))
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    del kernel
    gc.collect()
    assert fake.get("allocations") == fake.get("host_allocations") == fake.get("modules") == 0


def test_the_memory_of_arrays_is_used_again_and_freed_when_there_is_no_other(fake: FakeDriver) -> None:
    device = open_device(0)
    first = CudaArray(device, (16,), "float32", "here")
    address = first.address
    del first
    gc.collect()
    assert fake.get("cuMemFree_v2") == 0  # which would wait for every kernel that runs
    second = CudaArray(device, (16,), "float32", "here")
    assert second.address == address
    del second
    gc.collect()
    fake.set("memory", 100)
    CudaArray(device, (24,), "float32", "here")
    assert fake.get("cuMemFree_v2") == 1
    fake.set("memory", 8)
    with pytest.raises(LaunchError, match=r"here: cuda:0 \(Fake GPU 0\) has no memory left"):
        CudaArray(device, (64,), "float32", "here")


def test_a_kernel_that_is_forgotten_while_it_runs_is_left_alone(fake: FakeDriver, tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    kernel, fake.cores, fake.mode = CudaLoadedKernel(image), image.cores, "inside"
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    del kernel
    gc.collect()
    assert fake.get("modules") == 1 and fake.get("cuMemFree_v2") == 0
