"""The size of clusters by measurement, through a fake driver: what is launched, chosen, cached, saved and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from targets.cuda.gpu_programs import cluster_chain
from targets.cuda.runtime.fake_driver import FakeDriver
from targets.cuda.runtime.test_launch import on_stream

import superkernel as sk
from superkernel.targets.cuda import assemble
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.device import device_fields, find_device
from superkernel.targets.cuda.runtime import time_syncs as timing

needs_assembler = pytest.mark.skipif(not find_assemblers(), reason="no assembler for PTX is installed")
pytestmark = needs_assembler
BLOCKS = [4, 4, 3, 4, 1, 4]
NS = {1: 9000, 2: 8000, 4: 5000, 8: 6000, 16: 7000}


@pytest.fixture
def timed(fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU on which launches take as long as NS says; there is nothing in the cache."""
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    find_device(None)  # calibrated
    for size, ns in NS.items():
        fake.set(f"launch_ns_{size}", ns)
    fake.launches.clear()
    return fake


def compiled(folder: Path, blocks: Sequence[int] = BLOCKS, options: str = "", **chip: Any) -> sk.SuperKernel:
    return sk.compile(cluster_chain(folder, blocks), name="timed", options=options, target="cuda", chip=fields(**chip))


def fields(**changes: Any) -> dict[str, Any]:
    """The fake GPU with the costs of an H200: those of its calibration mean nothing."""
    h200 = find_device("h200")
    present = replace(find_device(None), costs=h200.costs, cluster_sync_ns=h200.cluster_sync_ns)
    return {**device_fields(present), **changes}


def cluster_of(kernel: sk.SuperKernel) -> int:
    return int(kernel.plan.shape.cluster)  # type: ignore[attr-defined]


def notes(kernel: sk.SuperKernel) -> str:
    return "\n".join(kernel.plan.notes)  # type: ignore[attr-defined]


def test_the_fastest_size_is_kept_and_what_was_allocated_is_freed(timed: FakeDriver, tmp_path: Path) -> None:
    with compiled(tmp_path) as kernel:
        assert cluster_of(kernel) == 4, notes(kernel)
        assert "clusters of 4 SMs: syncs measured 5.00 us, 9.00 us without, 8.00 us in clusters of 2 SMs" in notes(
            kernel
        )
    assert {entry for entry, _, _ in timed.launches} == {"sk_main", "sk_gate"}
    assert timed.get("modules") == timed.get("allocations") == timed.get("host_allocations") == 0
    assert timed.violations == ""


def test_no_clusters_where_they_are_slower(timed: FakeDriver, tmp_path: Path) -> None:
    timed.set("launch_ns_1", 4000)
    with compiled(tmp_path) as kernel:
        assert cluster_of(kernel) == 1
        assert "no clusters: syncs measured 4.00 us, " in notes(kernel)


def test_a_second_compile_measures_nothing(timed: FakeDriver, tmp_path: Path) -> None:
    with compiled(tmp_path) as kernel:
        first = str(kernel.plan)
    launches = len(timed.launches)
    timed.set("launch_ns_1", 1)
    with compiled(tmp_path) as kernel:
        assert str(kernel.plan) == first
    assert len(timed.launches) == launches > 100
    with compiled(tmp_path, [4, 4, 4]) as kernel:  # another plan
        assert cluster_of(kernel) == 1
    assert len(timed.launches) > launches


def test_a_saved_kernel_is_planned_as_it_was_measured(
    timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled(tmp_path) as kernel:
        assert cluster_of(kernel) == 4
        kernel.save(tmp_path / "saved")
    launches = len(timed.launches)
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "another"))
    timed.set("launch_ns_1", 1)
    with sk.load(tmp_path / "saved") as loaded:
        assert cluster_of(loaded) == 4
    assert len(timed.launches) == launches


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("cuMemHostAlloc", 2, "not measured: timing the syncs of a plan: allocating a word: cuMemHostAlloc returned 2"),
        ("cuEventCreate", 1, "not measured: timing the syncs of a plan: creating an event"),
        ("cuModuleLoadData", 221, "not measured: timing the syncs of a plan: loading a kernel of the run time"),
        ("cuStreamQuery", 719, "not measured: timing the syncs of a plan: waiting for a launch"),
    ],
)
def test_a_driver_error_leaves_the_estimate(
    timed: FakeDriver, tmp_path: Path, function: str, code: int, words: str
) -> None:
    original = timing.time_syncs

    def failing(*given: Any) -> Any:
        timed.plant(function, code)
        return original(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("superkernel.targets.cuda.target.time_syncs", failing)
        with compiled(tmp_path) as kernel:
            assert "clusters of 4 SMs: estimated" in notes(kernel) and words in notes(kernel)
            kernel.save(tmp_path / "saved")
        assert timed.get("modules") == timed.get("allocations") == timed.get("host_allocations") == 0
    with sk.load(tmp_path / "saved") as loaded:
        assert words in notes(loaded)


def test_without_memory_the_estimate_decides(timed: FakeDriver, tmp_path: Path) -> None:
    timed.set("memory", timed.get("used"))
    with compiled(tmp_path) as kernel:
        assert cluster_of(kernel) == 4 and "estimated" in notes(kernel) and "no memory left" in notes(kernel)


def test_a_size_that_does_not_fit_is_left_out(timed: FakeDriver, tmp_path: Path) -> None:
    timed.set("cluster_sms", 3)  # of a part of the GPU
    with compiled(tmp_path) as kernel:
        assert cluster_of(kernel) == 2 and "clusters of 4" not in notes(kernel)


def test_noise_leaves_the_estimate_and_is_not_cached(
    timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_median_and_spread", lambda times: (100.0, 40.0))
    with compiled(tmp_path) as kernel:
        assert "not measured: times differ by 40%: something else runs on the GPU" in notes(kernel)
    monkeypatch.undo()


def test_during_a_capture_the_estimate_decides(
    timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = timed.stream()
    monkeypatch.setattr(timing, "current_stream", lambda index: stream)
    timed.capture(stream, 1)
    with compiled(tmp_path) as kernel:
        assert "clusters of 4 SMs: estimated" in notes(kernel)
        assert "not measured: a CUDA graph is being captured" in notes(kernel)
    timed.capture(stream, 0)
    timed.set("legacy_capture", 1)
    on_stream(monkeypatch, 0)
    monkeypatch.setattr(timing, "current_stream", lambda index: 0)
    with compiled(tmp_path) as kernel:
        assert "another stream is capturing a CUDA graph" in notes(kernel)
    timed.set("legacy_capture", 0)
    assert not timed.launches


def test_another_gpu_is_only_estimated(timed: FakeDriver, tmp_path: Path) -> None:
    for chip in ({"name": "h200"}, {"sms": 16}):
        with compiled(tmp_path, **chip) as kernel:
            assert "clusters of 4 SMs: estimated" in notes(kernel) and "not measured" not in notes(kernel)
    assert not timed.launches


def test_ops_that_wait_for_events_are_only_estimated(timed: FakeDriver, tmp_path: Path) -> None:
    ops = cluster_chain(tmp_path, BLOCKS)
    ops[1] = sk.Op(ops[1].kernel, list(ops[1].args), name=ops[1].name, recv=(7,))
    with sk.compile(ops, name="waits", target="cuda", chip=fields()) as kernel:
        assert "not measured: ops wait for events" in notes(kernel)
    assert not timed.launches


def test_delays_of_tests_are_not_measured(timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_TEST_DELAYS", "1")
    with compiled(tmp_path) as kernel:
        assert "not measured: SUPERKERNEL_TEST_DELAYS delays waits and signals" in notes(kernel)


def test_without_an_assembler_the_estimate_decides(
    timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "missing_assembler", lambda: "there is no assembler for PTX")
    with compiled(tmp_path) as kernel:
        assert "estimated" in notes(kernel) and "not measured: there is no assembler for PTX" in notes(kernel)
    assert assemble.find_assemblers() and not timed.launches


def test_a_launch_that_does_not_end_is_aborted(
    timed: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_PATIENCE_S", 0.01)
    done = timing.CudaDevice.is_done
    monkeypatch.setattr(timing.CudaDevice, "is_done", lambda *_: False)
    with compiled(tmp_path) as kernel:
        assert "not measured: timing the syncs of a plan: a launch has not ended within 0.01 s" in notes(kernel)
    monkeypatch.setattr(timing.CudaDevice, "is_done", done)
