"""Results of the driver become errors with name, text and what to do; afterwards nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from targets.cuda.runtime.conftest import with_fake
from targets.cuda.runtime.fake_driver import FakeDriver, chain_image
from targets.cuda.runtime.test_launch import NO_INPUTS, add_twice, floats

from superkernel.errors import LaunchError
from superkernel.targets.cuda.runtime import driver as driver_module
from superkernel.targets.cuda.runtime.device import found_devices, open_device
from superkernel.targets.cuda.runtime.driver import find_driver, why_no_driver
from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel


def buffers() -> dict[str, object]:
    return {"x": floats(), "y": floats()}


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "LIBRARY", "libcuda_that_is_not_there.so.1")
    assert "cannot be loaded" in why_no_driver() and "Install the NVIDIA driver" in why_no_driver()
    assert found_devices() == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (100, "sees no GPU"),
        (803, "is not the library of the running driver: cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (999, "starting the CUDA driver .*cuInit returned 999 unknown to this driver"),
    ],
)
def test_a_driver_that_does_not_start(fake: FakeDriver, code: int, words: str) -> None:
    fake.plant("cuInit", code)
    with pytest.raises(LaunchError, match=words):
        find_driver()


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with_fake(monkeypatch, FakeDriver(devices=0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert "sees no GPU (CUDA_VISIBLE_DEVICES=7)" in why_no_driver()


def test_a_driver_that_is_too_old(fake: FakeDriver) -> None:
    fake.set("version", 11080)
    assert "too old" in why_no_driver() and "CUDA 11.8; target cuda needs CUDA 12.0" in why_no_driver()


def test_properties_of_the_device(fake: FakeDriver) -> None:
    (found,) = found_devices()
    assert (found.name, found.sms, found.capability) == ("Fake GPU 0", 8, (9, 0))
    assert (found.registers_per_sm, found.shared_per_block, found.threads_per_sm) == (65536, 232448, 2048)
    assert str(found) == "Fake GPU 0, sm_90, 8 SMs"
    assert fake.get("cuDevicePrimaryCtxRetain") == 0  # nothing was opened
    with pytest.raises(LaunchError, match="there is no GPU 3: this process sees 1"):
        open_device(3)


PLANTED = [
    (
        "cuModuleLoadData",
        209,
        r"cannot be loaded on cuda:0 \(Fake GPU 0, sm_90\) by a driver for CUDA 13.0: 209 CUDA_ERR",
    ),
    ("cuModuleLoadData", 222, "newer than the driver"),
    ("cuModuleLoadData", 2, "loading .*chain.cubin: cuModuleLoadData returned 2 CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuModuleGetFunction", 500, "looking for sk_chain in the module: cuModuleGetFunction returned 500"),
    ("cuModuleGetGlobal_v2", 500, "looking for sk_tasks in the module"),
    ("cuFuncSetAttribute", 1, "asking for 65536 bytes of shared memory"),
    ("cuMemAlloc_v2", 2, "allocating the sync state .* has no memory left for 192 bytes: 2 CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuMemHostAlloc", 2, "allocating the sync state"),
    ("cuLaunchKernelEx", 720, "720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: its blocks wait for each other"),
    ("cuLaunchKernelEx", 1, "launching sk_chain on 4 blocks of 128 threads: cuLaunchKernelEx returned 1"),
    ("cuDevicePrimaryCtxRetain", 46, r"opening the context of GPU 0 \(Fake GPU 0\)"),
]


@pytest.mark.parametrize(("function", "code", "words"), PLANTED)
def test_a_failure_of_the_driver_is_told_and_the_next_launch_works(
    fake: FakeDriver, tmp_path: Path, function: str, code: int, words: str
) -> None:
    image = chain_image(tmp_path)
    fake.cores, fake.compute = image.cores, add_twice
    kernel = CudaLoadedKernel(image)
    fake.plant(function, code)
    with pytest.raises(LaunchError, match=words) as raised:
        kernel.launch(buffers(), NO_INPUTS)
    assert str(raised.value).startswith("super_kernel_scope 'chain': ")
    kernel.launch(buffers(), NO_INPUTS)
    assert len(fake.launches) == 1
    kernel.close()
    assert fake.get("modules") == 0


def test_shared_memory_over_the_limit(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = CudaLoadedKernel(chain_image(tmp_path, shared_bytes=300_000))
    with pytest.raises(LaunchError, match="needs 300000 bytes of shared memory in a block; Fake GPU 0 has 232448"):
        kernel.launch(buffers(), NO_INPUTS)


def test_a_table_that_does_not_fit(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = CudaLoadedKernel(chain_image(tmp_path, symbols={"sk_tasks": bytes(5000)}))
    with pytest.raises(LaunchError, match="sk_tasks has 4096 bytes in the module, its content 5000"):
        kernel.launch(buffers(), NO_INPUTS)
    assert fake.get("modules") == 0


def test_a_device_without_cooperative_launches(fake: FakeDriver, tmp_path: Path) -> None:
    fake.set("cooperative", 0)
    with pytest.raises(LaunchError, match="cannot launch kernels whose blocks wait for each other"):
        CudaLoadedKernel(chain_image(tmp_path)).launch(buffers(), NO_INPUTS)


def test_a_cubin_that_is_gone(fake: FakeDriver, tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    image.cubin.unlink()
    with pytest.raises(LaunchError, match=r"chain.cubin cannot be read"):
        CudaLoadedKernel(image).launch(buffers(), NO_INPUTS)


def test_out_of_memory_for_an_output(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = CudaLoadedKernel(chain_image(tmp_path))
    fake.set("memory", 64)
    with pytest.raises(LaunchError, match=r"allocating 'y': cuda:0 \(Fake GPU 0\) has no memory left for 256 bytes"):
        kernel.launch({"x": floats()}, NO_INPUTS)


def test_a_lost_context_names_the_launch(fake: FakeDriver, tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    fake.cores = image.cores
    kernel = CudaLoadedKernel(image)
    kernel.launch(buffers(), NO_INPUTS)
    fake.set("sticky", 700)
    words = (
        "scope 'chain': .*sk_chain.* 700 CUDA_ERROR_ILLEGAL_ADDRESS .an illegal memory access.*The CUDA context is lost"
    )
    with pytest.raises(LaunchError, match=words):
        kernel.synchronize()
    with pytest.raises(LaunchError, match="The CUDA context is lost"):
        kernel.launch(buffers(), NO_INPUTS)
    with pytest.raises(LaunchError, match="The CUDA context is lost"):
        kernel.close()
    fake.set("sticky", 0)


def test_a_thread_without_a_context_and_a_forked_process(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = chain_image(tmp_path)
    fake.cores = image.cores
    kernel = CudaLoadedKernel(image)
    bound = kernel.bind(buffers(), NO_INPUTS)
    kernel.launch_bound(bound, NO_INPUTS)
    fake.library.fake_leave_context()  # as a thread that has not used CUDA yet
    kernel.launch_bound(bound, NO_INPUTS)
    assert len(fake.launches) == 2
    kernel.close()
    other = os.getpid() + 1
    kernel = CudaLoadedKernel(image)
    kernel.launch(buffers(), NO_INPUTS)
    with monkeypatch.context() as forked, pytest.raises(LaunchError, match="launch in a forked process"):
        forked.setattr(os, "getpid", lambda: other)
        kernel.launch(buffers(), NO_INPUTS)
    kernel.close()  # by the watchdog that watches its states
