"""The run time through a fake driver whose kernels are emulated: state, table and values as a launch passes them."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.gpu_kernels import write_kernel
from targets.cuda.runtime.fake_driver import FakeDeviceArray, FakeDriver
from targets.cuda.runtime.test_launch import on_stream

import superkernel as sk
from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.emulator.alone import decoded
from superkernel.targets.cuda.emulator.emulated_memory import EmulatedMemory, MemoryRange
from superkernel.targets.cuda.emulator.execution import GpuLaunch, execute
from superkernel.targets.cuda.emulator.library import load_emulator
from superkernel.targets.cuda.emulator.schedule import WarpSchedule
from superkernel.targets.cuda.executable import CudaExecutable

pytestmark = pytest.mark.skipif(not find_assemblers(), reason="no assembler for PTX is installed")
N, SMS = 512, 2


class EmulatedDevice:
    """Plays the kernel of an executable on the memory of the fake driver, and on `arrays`."""

    def __init__(self, fake: FakeDriver, executable: Any, arrays: list[FakeDeviceArray]) -> None:
        assert isinstance(executable, CudaExecutable)
        self._fake, self._executable, self._arrays = fake, executable, arrays
        self._program = decoded(executable.ptx, "kernel.ptx", executable.entry)
        self.launches = 0
        fake.compute = self.run

    def run(self, values: int, state: int) -> None:
        executable, fake = self._executable, self._fake
        pieces = fake.memory() | {array.array.ctypes.data: array.array.nbytes for array in self._arrays}
        memory = EmulatedMemory()
        memory.add_variables(self._program.variables)
        table = fake.table(len(executable.table.data))
        memory.ranges["variable sk_tasks"].content[: len(table)] = np.frombuffer(table, np.uint8)
        for address, size in sorted(pieces.items()):
            content = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
            memory.ranges[f"memory at {address:x}"] = MemoryRange(f"memory at {address:x}", address, content)
        self.launches += 1
        launch = GpuLaunch(
            (fake.get("blocks"), 1, 1),
            (fake.get("threads"), 1, 1),
            fake.get("shared"),
            fake.get("blocks"),
            state.to_bytes(8, "little") + ctypes.string_at(values, 8 * executable.value_room),
            {},
            self.launches,
            WarpSchedule.of_seed(self.launches),
            True,
            "emulated: ",
            cluster=fake.get("cluster"),
        )
        epoch = ctypes.c_uint32.from_address(state)
        before = epoch.value
        execute(load_emulator(Cache()), self._program, memory, launch)
        assert epoch.value == before + 1, "the kernel counts its launches"
        epoch.value = before  # the fake counts as well


def compiled(
    fake: FakeDriver, folder: Path, arrays: list[FakeDeviceArray], **more: int
) -> tuple[sk.SuperKernel, EmulatedDevice]:
    """x -> t -> y: the second op reads all that the first wrote."""
    chip = folder / "chip.json"
    chip.write_text(json.dumps({"name": "fake", "architecture": "sm_90a", "sms": SMS, **more}))
    scale, center = write_kernel(folder, "scale", N), write_kernel(folder, "center", N)
    ops = [
        sk.Op(scale, ["x", "t", 2.0, 1.0, N], name="scale"),
        sk.Op(center, ["t", "y", 1.0 / N, N], name="center"),
    ]
    kernel = sk.compile(ops, name="emulated", target="cuda", chip=chip)
    return kernel, EmulatedDevice(fake, kernel.executable, arrays)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    scaled = x.astype(np.float64) * 2 + 1
    return scaled + scaled.mean()


def test_launches_calls_and_prepared_launches_compute_what_the_ops_do(fake: FakeDriver, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, y = (FakeDeviceArray(random.random(N, np.float32)) for _ in range(2))
    kernel, device = compiled(fake, tmp_path, [x, y])
    for turn in range(2):  # the second launch finds the counters of the first
        y.array[:] = 0
        kernel({"x": x, "y": y})
        kernel.synchronize()
        np.testing.assert_allclose(y.array, expected(x.array), rtol=1e-5, err_msg=f"launch {turn}")
    go = kernel.bind({"x": x, "y": y})
    x.array[:] = 3.0
    go()
    np.testing.assert_allclose(y.array, np.full(N, 14.0), rtol=1e-6)
    outputs = kernel({"x": x})
    np.testing.assert_allclose(outputs["y"].to_numpy(), np.full(N, 14.0), rtol=1e-6)
    assert device.launches == 4
    kernel.close()


def test_launches_in_a_cluster_compute_what_the_ops_do(fake: FakeDriver, tmp_path: Path) -> None:
    """One slot on each of 4 SMs, which the launch makes a cluster."""
    x, y = (FakeDeviceArray(np.random.default_rng(2).random(N, np.float32)) for _ in range(2))
    kernel, device = compiled(fake, tmp_path, [x, y], sms=8, threads=128, largest_cluster=8)
    for _ in range(3):
        y.array[:] = 0
        kernel({"x": x, "y": y})
        kernel.synchronize()
        np.testing.assert_allclose(y.array, expected(x.array), rtol=1e-5)
    assert device.launches == 3 and fake.get("cluster") == fake.get("blocks") == 4
    kernel.close()
    assert fake.violations == ""


def test_two_streams_have_counters_of_their_own(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (FakeDeviceArray(np.ones(N, np.float32)) for _ in range(2))
    kernel, device = compiled(fake, tmp_path, [x, y])
    for stream in (fake.stream(), fake.stream()) * 2:
        y.array[:] = 0
        on_stream(monkeypatch, stream)
        kernel({"x": x, "y": y})
        np.testing.assert_allclose(y.array, np.full(N, 6.0), rtol=1e-6)
    kernel.synchronize()
    assert device.launches == 4
    kernel.close()


def test_the_emulated_kernel_sees_what_it_may_not_touch(fake: FakeDriver, tmp_path: Path) -> None:
    x, y = (FakeDeviceArray(np.ones(N, np.float32)) for _ in range(2))
    kernel, _ = compiled(fake, tmp_path, [x])  # y is no memory of the device
    kernel({"x": x, "y": y})
    (error,) = fake.errors
    assert isinstance(error, LaunchError) and "emulated: " in str(error)
    fake.errors.clear()
    kernel.loaded._kernels[0]._states.clear()  # type: ignore[attr-defined]  # its launch has not ended, and never will
    kernel.close()
