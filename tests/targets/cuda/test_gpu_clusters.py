"""On a GPU: launches in clusters of SMs have the bits of unfused ones, many times over, in graphs, with delays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from targets.cuda.gpu_programs import N, cluster_chain, compile_ops, floats

import superkernel as sk
from superkernel.targets.cuda.cluster_choice import SyncTime, SyncTimes
from superkernel.targets.cuda.device import DeviceDescription, device_fields, find_device
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.plan import CudaPlan
from superkernel.targets.cuda.runtime import time_syncs as timing

pytestmark = pytest.mark.gpu

CHAINS = {
    2: [2, 1, 2, 2] * 4,
    4: [4, 3, 4, 1, 2] * 4,
    8: [8, 8, 5, 2, 8, 1, 7] * 4,
    16: [16, 9, 16, 2, 16, 1, 12, 16] * 4,
}


def in_clusters(folder: Path, blocks: Sequence[int], options: str = "", **chip: Any) -> sk.SuperKernel:
    """A chain for this GPU, whose description is changed by `chip`."""
    fields = {**device_fields(find_device(None)), **chip}
    return compile_ops(cluster_chain(folder, blocks), options, chip=fields)


def forced(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Clusters of one size are found to be the fastest."""

    def time_syncs(device: DeviceDescription, plans: Sequence[CudaPlan]) -> SyncTimes:
        sizes = [plan.shape.cluster for plan in plans]
        return SyncTimes(tuple(SyncTime(cluster, 1.0 if cluster == size else 1e9) for cluster in sizes))

    monkeypatch.setattr("superkernel.targets.cuda.target.time_syncs", time_syncs)


def cluster_of(kernel: sk.SuperKernel) -> int:
    executable = kernel.executable
    assert isinstance(executable, CudaExecutable)
    return executable.shape.cluster


@pytest.mark.parametrize("size", CHAINS)
@pytest.mark.parametrize("options", ["", "early-start=0", "profiling=1"])
def test_a_thousand_launches_in_clusters_have_the_bits_of_the_ops_alone(
    tmp_path: Path, size: int, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    forced(monkeypatch, size)
    x, y = floats(size), torch.empty(N, device="cuda")
    with in_clusters(tmp_path, CHAINS[size], options) as kernel:
        assert cluster_of(kernel) == size, str(kernel.plan)
        alone = kernel.unfused()({"x": x})["y"].clone()
        go = kernel.bind({"x": x, "y": y})
        differing = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(1000):
            y.fill_(float("nan"))
            go()
            differing += (y.view(torch.int32) != alone.view(torch.int32)).sum()
        kernel.synchronize()
        assert int(differing) == 0


@pytest.mark.parametrize("size", CHAINS)
def test_clusters_inside_a_cuda_graph(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    forced(monkeypatch, size)
    x, y = floats(size), torch.empty(N, device="cuda")
    with in_clusters(tmp_path, CHAINS[size]) as kernel:
        alone = kernel.unfused()({"x": x})["y"].clone()
        kernel({"x": x, "y": y})
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y.fill_(float("nan"))
            kernel({"x": x, "y": y})
        for _ in range(1000):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y.view(torch.int32), alone.view(torch.int32))


@pytest.mark.parametrize("seed", range(1, 5))
def test_clusters_with_seeded_delays(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("SUPERKERNEL_TEST_DELAYS", str(seed))
    x = floats(seed)
    with in_clusters(tmp_path, CHAINS[(2, 4, 8, 16)[seed - 1]]) as kernel:
        alone = kernel.unfused()({"x": x})["y"].clone()
        for _ in range(50):
            assert torch.equal(kernel({"x": x})["y"].view(torch.int32), alone.view(torch.int32))


def test_small_ops_in_one_cluster_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops of 64 blocks wait by counters in device memory, those of 4 blocks by words of their cluster."""
    import torch

    forced(monkeypatch, 4)
    x = floats()
    with in_clusters(tmp_path, [64, 4, 4, 4, 3, 4, 64, 4, 4, 4] * 3) as kernel:
        assert cluster_of(kernel) > 1, str(kernel.plan)
        alone = kernel.unfused()({"x": x})["y"].clone()
        for _ in range(200):
            assert torch.equal(kernel({"x": x})["y"].view(torch.int32), alone.view(torch.int32))


def test_two_streams_of_clusters_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    forced(monkeypatch, 8)
    inputs = [floats(1), floats(2)]
    with in_clusters(tmp_path, CHAINS[8]) as kernel:
        expected = [kernel.unfused()({"x": x})["y"].clone() for x in inputs]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        results: list[list[Any]] = [[], []]
        for _ in range(100):
            for stream, x, made in zip(streams, inputs, results, strict=True):
                with torch.cuda.stream(stream):
                    made.append(kernel({"x": x})["y"])
        kernel.synchronize()
        for made, right in zip(results, expected, strict=True):
            assert all(torch.equal(value, right) for value in made)


def test_the_next_launch_works_behind_one_that_was_ended(tmp_path: Path) -> None:
    """A launch in a cluster waits for an event that never comes; the watchdog ends it, and its SMs leave together."""
    import torch

    ops = cluster_chain(tmp_path, [8, 8, 8])
    ops[1] = sk.Op(ops[1].kernel, list(ops[1].args), name=ops[1].name, recv=(7,))
    x = floats()
    with compile_ops(ops, "debug-watchdog=1") as kernel:  # ops that wait for events are only estimated
        assert cluster_of(kernel) == 8
        kernel({"x": x})
        with pytest.raises(sk.LaunchError):
            kernel.synchronize()
        kernel.events["7"].set()
        found = kernel({"x": x})["y"]
        kernel.synchronize()
    gather = [x]
    index = (5 * torch.arange(N, device="cuda") + 1) % N
    for _ in range(3):
        gather.append(torch.addcmul(gather[-1], gather[-1][index], torch.full((N,), 0.5, device="cuda")))
    assert torch.allclose(found, gather[-1])


# the choice by measurement


def needs_clusters() -> None:
    if find_device(None).largest_cluster == 1:
        pytest.skip("the SMs of this GPU form no clusters")


def test_the_calibration_measures_a_sync_in_a_cluster() -> None:
    needs_clusters()
    device = find_device(None)
    assert 0 < device.cluster_sync_ns < device.costs.sync_ns
    assert device.cluster_sync_ns != DeviceDescription("assumed", "sm_90a", 1).cluster_sync_ns


def test_the_size_is_measured_once_and_every_size_has_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    needs_clusters()
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    x, blocks = floats(), CHAINS[8]
    with in_clusters(tmp_path, blocks) as kernel:
        plan = kernel.plan
        assert isinstance(plan, CudaPlan) and plan.sync_times is not None
        sizes = [time.cluster for time in plan.sync_times.times]
        assert cluster_of(kernel) in sizes and sizes[0] == 1 and 8 in sizes, str(plan)
        assert all(time.ns > 0 for time in plan.sync_times.times)
        assert "syncs measured" in str(plan)
        alone = kernel.unfused()({"x": x})["y"].clone()
        assert torch.equal(kernel({"x": x})["y"].view(torch.int32), alone.view(torch.int32))

    def measured_again(*_: object) -> SyncTimes:
        raise AssertionError("the times are in the cache")

    with monkeypatch.context() as patch:
        patch.setattr(timing, "_measured", measured_again)
        with in_clusters(tmp_path, blocks) as kernel:
            assert str(kernel.plan) == str(plan)
    for size in sizes:
        forced(monkeypatch, size)
        with in_clusters(tmp_path, blocks) as kernel:
            assert cluster_of(kernel) == size
            assert torch.equal(kernel({"x": x})["y"].view(torch.int32), alone.view(torch.int32)), f"clusters of {size}"
