"""On a GPU: fused launches have the bits of unfused ones, on streams, in graphs, many times over; bad arguments."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from targets.cuda.gpu_kernels import write_kernel
from targets.cuda.gpu_programs import N, chain, compile_ops, floats, random_ops, scale

import superkernel as sk
from superkernel.errors import LaunchError

pytestmark = pytest.mark.gpu


def assert_fused_is_unfused(kernel: sk.SuperKernel, launches: int = 3) -> None:
    import torch

    buffers = {name: floats(place) for place, name in enumerate(("x", "w")) if name in kernel.graph.buffers}
    alone = kernel.unfused()(buffers)
    for _ in range(launches):
        fused = kernel(buffers)
        kernel.synchronize()
        assert set(fused) == set(alone)
        for name, value in fused.items():
            assert value.device.type == "cuda"
            assert torch.equal(value.view(torch.int32), alone[name].view(torch.int32)), name


@pytest.mark.parametrize(
    "options", ["", "early-start=0", "early-start=2", "debug-sync-all=1", "stream-fusion=1", "prefetch-weights=1"]
)
def test_a_chain_has_the_bits_of_its_ops_alone(tmp_path: Path, options: str) -> None:
    with compile_ops(chain(tmp_path), options) as kernel:
        assert_fused_is_unfused(kernel)


@pytest.mark.parametrize("cores", [1, 4, 33, 132, 264])
def test_a_chain_on_any_number_of_cores(tmp_path: Path, cores: int) -> None:
    with compile_ops(chain(tmp_path), cores=cores) as kernel:
        assert_fused_is_unfused(kernel, launches=2)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_have_the_bits_of_their_ops_alone(tmp_path: Path, seed: int) -> None:
    ops = random_ops(tmp_path, seed)
    options = "prefetch-weights=1" if seed % 2 else ""
    with compile_ops(ops, options, outputs=[f"b{number}" for number in range(len(ops))]) as kernel:
        assert_fused_is_unfused(kernel)


@pytest.mark.parametrize("seed", range(1, 6))
def test_seeded_delays_in_the_real_waits(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_TEST_DELAYS", str(seed))
    with compile_ops(random_ops(tmp_path, seed)) as kernel:
        assert_fused_is_unfused(kernel, launches=5)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_graphs_with_delays(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_TEST_DELAYS", str(seed))
    with compile_ops(random_ops(tmp_path, seed, 30), cores=(4, 33, 132, 264)[seed % 4]) as kernel:
        assert_fused_is_unfused(kernel, launches=10)


def test_replay_compares_each_launch(tmp_path: Path) -> None:
    with compile_ops(chain(tmp_path), "debug-replay=1") as kernel:
        kernel({"x": floats()})


def test_a_saved_kernel_runs_without_its_sources(tmp_path: Path) -> None:
    import torch

    x = floats()
    with compile_ops(chain(tmp_path)) as kernel:
        expected = kernel({"x": x})["y"]
        kernel.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as loaded:
        assert torch.equal(loaded({"x": x})["y"], expected)


def test_bind_update_and_submit(tmp_path: Path) -> None:
    import torch

    with compile_ops([scale(tmp_path, "x", "y", 1.0, 1.0)]) as kernel:
        x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
        go = kernel.bind({"x": x, "y": y})
        go()
        go.update("x", torch.full((N,), 5.0, device="cuda"))
        go()
        kernel.synchronize()
        assert float(y[N - 1]) == 6.0
        futures = [kernel.submit({"x": torch.full((N,), float(value), device="cuda")}) for value in range(5)]
        assert [float(future.result()["y"][0]) for future in futures] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_hundred_thousand_launches(tmp_path: Path) -> None:
    import torch

    counts = write_kernel(tmp_path, "scale", N)
    ops = [sk.Op(counts, ["x", "t", 1.0, 1.0, N]), sk.Op(counts, ["t", "x", 1.0, 0.0, N])]
    with compile_ops(ops) as kernel:
        x, t = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
        go = kernel.bind({"x": x, "t": t})
        for _ in range(100_000):
            go()
        kernel.synchronize()
        assert bool((x == 100_000).all())


def test_two_streams_at_once(tmp_path: Path) -> None:
    import torch

    with compile_ops(chain(tmp_path), cores=8) as kernel:
        alone = kernel.unfused()
        inputs = [floats(1), floats(2)]
        expected = [alone({"x": x})["y"] for x in inputs]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        results: list[list[Any]] = [[], []]
        for _ in range(100):
            for stream, x, found in zip(streams, inputs, results, strict=True):
                with torch.cuda.stream(stream):
                    found.append(kernel({"x": x})["y"])
        kernel.synchronize()
        for found, right in zip(results, expected, strict=True):
            assert all(torch.equal(value, right) for value in found)


def test_inside_a_cuda_graph(tmp_path: Path) -> None:
    import torch

    with compile_ops([scale(tmp_path, "x", "t"), scale(tmp_path, "t", "x")]) as kernel:
        x, t = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
        kernel({"x": x, "t": t})
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                kernel({"x": x, "t": t})
        assert float(x[0]) == 2.0  # nothing ran while it was captured
        for _ in range(50):
            graph.replay()
            kernel({"x": x, "t": t})  # an eager launch between two replays has another state
        kernel.synchronize()
        torch.cuda.synchronize()
        assert bool((x == 2 + 50 * 8).all())


def test_a_launch_on_the_default_stream_during_a_capture_is_refused(tmp_path: Path) -> None:
    import torch

    with compile_ops([scale(tmp_path, "x", "y")]) as kernel:
        x, y = floats(), torch.empty(N, device="cuda")
        kernel({"x": x, "y": y})
        graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            graph.capture_begin(capture_error_mode="thread_local")
            with torch.cuda.stream(torch.cuda.default_stream()):
                try:
                    kernel({"x": x, "y": y})
                except LaunchError as error:
                    assert "capturing a CUDA graph" in str(error)  # where torch's streams wait for the default stream
            kernel({"x": x, "y": y})
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, x + 1)


def test_bad_arguments_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    import torch

    with compile_ops([scale(tmp_path, "x", "y")]) as kernel:
        y = torch.zeros(N, device="cuda")
        wrong = {
            "is on device cpu; this kernel takes tensors of cuda": torch.zeros(N),
            "has dtype float64, the ops take float32": torch.zeros(N, device="cuda", dtype=torch.float64),
            r"has shape \[5\]": torch.zeros(5, device="cuda"),
            "no multiple of 16 bytes": torch.zeros(N + 1, device="cuda")[1:],
            "is not contiguous": torch.zeros(2 * N, device="cuda")[::2],
            "numpy array in the host's memory": torch.zeros(N).numpy(),
        }
        for words, value in wrong.items():
            with pytest.raises(LaunchError, match=words):
                kernel({"x": value, "y": y})
        with pytest.raises(LaunchError, match="overlap in memory"):
            kernel({"x": y, "y": y})
        kernel.synchronize()
        assert not bool(y.any())


def test_a_profile_has_every_op_on_the_clock_of_the_host(tmp_path: Path) -> None:
    import time

    with compile_ops(chain(tmp_path), "profiling=1") as kernel:
        begin = time.monotonic_ns()
        kernel({"x": floats()})
        kernel.synchronize()
        spans = kernel.records()
        assert {span.op for span in spans if span.op} == {node.name for node in kernel.graph.nodes}
        slack = 2_000_000
        assert all(begin - slack < span.begin_ns <= span.end_ns < time.monotonic_ns() + slack for span in spans)
        with sk.profile(tmp_path / "profile", detail=True):
            kernel({"x": floats()})
        assert (tmp_path / "profile" / "kernel_details.csv").is_file()


def test_arrays_of_other_libraries(tmp_path: Path) -> None:
    """CuPy and Numba by __cuda_array_interface__, JAX by DLPack; the outputs are tensors, since torch is here."""
    import torch

    expected = torch.arange(N, device="cuda", dtype=torch.float32) + 1
    arrays = dict(_foreign_arrays())
    if not arrays:
        pytest.skip("neither CuPy nor Numba nor JAX can use the GPU here")
    with compile_ops([scale(tmp_path, "x", "y")]) as kernel:
        for library, array in arrays.items():
            assert torch.equal(kernel({"x": array})["y"], expected), library


def _foreign_arrays() -> Iterator[tuple[str, Any]]:
    """0, 1, 2, ... as float32, of each library that is installed and finds the GPU."""
    if importlib.util.find_spec("cupy"):
        import cupy

        yield "cupy", cupy.arange(N, dtype=cupy.float32)
    if importlib.util.find_spec("numba_cuda") or importlib.util.find_spec("numba"):
        import numpy
        from numba import cuda

        yield "numba", cuda.to_device(numpy.arange(N, dtype=numpy.float32))
    if importlib.util.find_spec("jax"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        if jax.default_backend() == "gpu":
            yield "jax", jax.numpy.arange(N, dtype=jax.numpy.float32)


@pytest.mark.conformance
def test_a_prepared_launch_costs_the_host_at_most_10_us(tmp_path: Path) -> None:
    import statistics
    import time

    import torch

    with compile_ops(chain(tmp_path, 2), cores=1) as kernel:
        x = floats()
        go = kernel.bind({"x": x})
        times = []
        for _ in range(2000):
            begin = time.perf_counter_ns()
            go()
            times.append(time.perf_counter_ns() - begin)
            torch.cuda.synchronize()
        assert torch.equal(go.outputs["y"], kernel.unfused()({"x": x})["y"])
        assert statistics.median(times) <= 10_000, statistics.median(times)
