"""sk.compile for the cuda target, launched through a fake driver whose kernels compute nothing."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.gpu_programs import N, chain, scale
from targets.cuda.runtime.fake_driver import FakeDeviceArray, FakeDriver, pointed_values

import superkernel as sk
from superkernel.errors import LaunchError, UnsupportedError
from superkernel.targets import find_target
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.runtime import driver
from superkernel.targets.cuda.runtime.present_device import find_present_device
from superkernel.tools.run_saved import run_saved

needs_assembler = pytest.mark.skipif(not find_assemblers(), reason="no assembler for PTX is installed")


@pytest.fixture
def chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake GPU, as a file."""
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    described = tmp_path / "chip.json"
    described.write_text(json.dumps({"name": "fake", "architecture": "sm_90a", "sms": 8}))
    return described


def floats(value: float = 0.0) -> FakeDeviceArray:
    return FakeDeviceArray(np.full(N, value, np.float32))


def compiled(ops: list[sk.Op], chip: Path, options: str = "") -> sk.SuperKernel:
    return sk.compile(ops, name="whole", options=options, target="cuda", chip=chip)


@needs_assembler
def test_a_compiled_kernel_is_launched_bound_and_submitted(fake: FakeDriver, chip: Path, tmp_path: Path) -> None:
    kernel = compiled(chain(tmp_path), chip)
    x, y = floats(1.0), floats()
    assert kernel({"x": x, "y": y}) == {}
    assert fake.get("blocks") == 8 and fake.get("attributes") == 1
    assert list(kernel({"x": x})) == ["y"]
    go = kernel.bind({"x": x, "y": y})
    assert go() == {} and kernel.submit({"x": x, "y": y}).result(timeout=300) == {}
    kernel.synchronize()
    assert [entry for entry, _, _ in fake.launches] == ["sk_main"] * 4
    table = kernel.executable.table.data  # type: ignore[attr-defined]
    assert fake.table(len(table)) == table
    kernel.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        kernel({"x": x})
    assert fake.get("modules") == 0


@needs_assembler
def test_unfused_launches_the_entries_as_they_were_compiled(fake: FakeDriver, chip: Path, tmp_path: Path) -> None:
    kernel = compiled([scale(tmp_path, "x", "t", 0.5, 2.0), scale(tmp_path, "t", "y", 4.0, 8.0)], chip)
    x, t, y = floats(1.0), floats(), floats()
    seen: list[tuple[str, list[int], int, int]] = []

    def note(entry: str, values: Any) -> None:
        seen.append((entry, pointed_values(values, 5), fake.get("blocks"), fake.get("threads")))

    fake.entry_called = note
    kernel.unfused()({"x": x, "t": t, "y": y})
    bits = [int(np.float32(value).view(np.uint32)) for value in (0.5, 2.0, 4.0, 8.0)]
    addresses = [memory.array.ctypes.data for memory in (x, t, y)]
    assert seen == [
        ("scale", [addresses[0], addresses[1], bits[0], bits[1], N], N // 128, 128),
        ("scale", [addresses[1], addresses[2], bits[2], bits[3], N], N // 128, 128),
    ]
    kernel.synchronize()
    kernel.close()


@needs_assembler
def test_replay_needs_tensors(fake: FakeDriver, chip: Path, tmp_path: Path) -> None:
    with compiled([scale(tmp_path, "x", "y")], chip, "debug-replay=1") as kernel:
        with pytest.raises(UnsupportedError, match="debug-replay copies and compares torch tensors; 'x' is a Fake"):
            kernel({"x": floats(), "y": floats()})
        with pytest.raises(UnsupportedError, match="debug-replay copies buffers by name"):
            kernel.launch_values(*kernel.argument_arrays())


@needs_assembler
def test_a_saved_kernel_is_launched_without_an_assembler(
    fake: FakeDriver, chip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled([scale(tmp_path, "x", "y")], chip) as kernel:
        kernel.save(tmp_path / "saved")
    monkeypatch.setattr("superkernel.targets.cuda.assemble.find_assemblers", tuple)
    with sk.load(tmp_path / "saved") as loaded:
        loaded({"x": floats(), "y": floats()})
        loaded.synchronize()
    assert [entry for entry, _, _ in fake.launches] == ["sk_main"]


def test_without_a_driver_the_kernel_is_compiled_and_says_why_it_is_not_launched(
    chip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_that_is_not_there.so.1")
    kernel = compiled([scale(tmp_path, "x", "y")], chip)
    with pytest.raises(LaunchError, match=r"the CUDA driver cannot be loaded: .*k\.emulate"):
        kernel({"x": floats(), "y": floats()})
    with pytest.raises(UnsupportedError, match="launches nothing from here"):
        kernel.unfused()
    assert find_target("cuda").launcher is None


def test_the_present_device_has_measured_costs(fake: FakeDriver, chip: Path) -> None:
    found = find_present_device()
    assert found is not None
    assert (found.name, found.architecture, found.sms) == ("Fake GPU 0", "sm_90a", 8)
    assert (found.registers, found.shared_bytes, found.threads) == (65536, 232448, 1024)
    assert 1 <= found.cluster_sync_ns < 1e9
    launches = len(fake.launches)
    assert launches and find_present_device() == found and len(fake.launches) == launches


@needs_assembler
def test_the_shell_runs_a_saved_kernel_on_files(fake: FakeDriver, chip: Path, tmp_path: Path) -> None:
    with compiled([scale(tmp_path, "x", "y")], chip) as kernel:
        kernel.save(tmp_path / "saved")
    x = np.arange(N, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)

    def copy(values: int, state: int) -> None:
        first, second = (ctypes.c_uint64 * 2).from_address(values)
        ctypes.memmove(second, first, x.nbytes)

    fake.compute = copy
    result = run_saved(tmp_path / "saved", [str(tmp_path / "x.npy")], tmp_path / "out", repeat=3)
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), x)
    assert result.target == "cuda" and len(fake.launches) == len(result.times_us) == 3
    with pytest.raises(LaunchError, match="has shape"):
        np.save(tmp_path / "x.npy", x[:5])
        run_saved(tmp_path / "saved", [str(tmp_path / "x.npy")], None, repeat=1)
