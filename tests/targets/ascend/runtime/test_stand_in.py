"""The stand-in for AscendCL finds what a real one would let pass, or answer with a crash."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_int32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.runtime.conftest import install
from targets.ascend.runtime.emulated_npu import EmulatedNpu

from superkernel.targets.ascend.runtime.acl_functions import (
    FUNCTIONS,
    LaunchAttribute,
    LaunchConfiguration,
    batch_schedule,
)
from superkernel.targets.ascend.runtime.acl_library import AclLibrary

Call = Callable[..., int]


@pytest.fixture
def npu(toolkit: Path, tmp_path: Path) -> EmulatedNpu:
    """As the fixture of launches, without its check at the end."""
    return EmulatedNpu(install(toolkit, tmp_path))


@pytest.fixture
def call(npu: EmulatedNpu) -> Iterator[Call]:
    acl = AclLibrary(npu.library)
    assert acl.code("aclInit", None) == acl.code("aclrtSetDevice", c_int32(0)) == 0
    yield acl.code


def made(call: Call, function: str, *arguments: Any) -> int:
    handle = c_void_p()
    assert call(function, byref(handle), *arguments) == 0
    return handle.value or 0


def test_structures_have_the_sizes_of_the_documents() -> None:
    assert ctypes.sizeof(LaunchAttribute) == 4 + 16
    assert ctypes.sizeof(LaunchConfiguration) == 8 + 8
    configuration = batch_schedule()
    assert (configuration.count, configuration.attributes[0].id) == (1, 1)
    assert configuration.attributes[0].value.schedule_mode == 1


def test_every_function_names_its_page_once() -> None:
    names = [function.name for function in FUNCTIONS]
    assert len(set(names)) == len(names)
    assert all(function.document.startswith("https://www.hiascend.com/") for function in FUNCTIONS)


def test_calls_before_initialisation(npu: EmulatedNpu) -> None:
    acl = AclLibrary(npu.library)
    assert acl.code("aclrtSetDevice", c_int32(0))
    assert npu.violations == ["aclrtSetDevice before aclInit"]


def test_a_thread_without_context(npu: EmulatedNpu, call: Call) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call("aclrtCreateStream", byref(c_void_p()))))
    thread.start()
    thread.join()
    assert codes[0] and npu.violations == ["aclrtCreateStream in a thread without context"]


def test_host_and_device_memory_are_not_taken_for_each_other(npu: EmulatedNpu, call: Call) -> None:
    host, device = np.zeros(64, np.uint8), made(call, "aclrtMalloc", 64, 0)
    assert call("aclrtMemcpy", device, 64, host.ctypes.data, 64, 1) == 0
    assert call("aclrtMemcpy", host.ctypes.data, 64, host.ctypes.data, 64, 1)
    assert call("aclrtMemcpy", device, 64, device, 64, 1)
    assert call("aclrtMemcpy", device + 32, 64, host.ctypes.data, 64, 1)
    assert call("aclrtMemcpy", host.ctypes.data, 128, device, 65, 2)
    texts = ["is no device address", "stands for host memory", "beyond an allocation", "beyond an allocation"]
    assert all(text in violation for text, violation in zip(texts, npu.violations, strict=True))


def test_a_launch_with_arguments_of_the_host(npu: EmulatedNpu, call: Call, tmp_path: Path) -> None:
    (tmp_path / "kernel.o").write_bytes(b"\x7fELF")
    npu._has = lambda path, kernel: 1  # type: ignore[method-assign]
    npu.__post_init__()
    binary, function, stream = c_void_p(), c_void_p(), made(call, "aclrtCreateStream")
    assert call("aclrtBinaryLoadFromFile", str(tmp_path / "kernel.o").encode(), None, byref(binary)) == 0
    assert call("aclrtBinaryGetFunction", binary, b"kernel", byref(function)) == 0
    host, device = np.zeros(8, np.uint64), made(call, "aclrtMalloc", 64, 0)
    assert call("aclrtLaunchKernelV2", function, 1, host.ctypes.data, 64, byref(batch_schedule()), stream)
    assert call("aclrtLaunchKernelV2", function, 1, device, 64, None, stream)
    assert call("aclrtLaunchKernelV2", stream, 1, device, 64, byref(batch_schedule()), stream)
    assert call("aclrtLaunchKernelV2", function, 1, device, 64, byref(batch_schedule()), device)
    texts = ["not in device memory", "needs the batch schedule", "launch of no function", "launch on no stream"]
    assert all(text in violation for text, violation in zip(texts, npu.violations, strict=True))


def test_what_is_left_at_the_end_is_reported(npu: EmulatedNpu, call: Call) -> None:
    made(call, "aclrtMalloc", 100, 0)
    made(call, "aclrtCreateStream")
    assert call("aclFinalize") == 0
    assert (
        "in use" in npu.violations[0] and "leaked: 100 bytes" in npu.violations[1] and "1 streams" in npu.violations[2]
    )


def test_memory_and_handles_are_given_back_once(npu: EmulatedNpu, call: Call) -> None:
    memory, stream = made(call, "aclrtMalloc", 64, 0), made(call, "aclrtCreateStream")
    assert call("aclrtFree", memory) == call("aclrtDestroyStream", stream) == 0
    assert call("aclrtFree", memory) and call("aclrtDestroyStream", stream)
    assert call("aclrtMalloc", byref(c_void_p()), 0, 0)
    assert len(npu.violations) == 3
