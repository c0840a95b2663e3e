"""Time stamps, timed launches, ops launched alone, launches in order, calibration: through a fake driver."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.runtime.fake_driver import (
    ELEMENTS,
    TIMER_AHEAD_NS,
    FakeDriver,
    chain_image,
    pointed_values,
)
from targets.cuda.runtime.test_launch import NO_INPUTS, add_twice, at, floats

from superkernel import Op
from superkernel.errors import LaunchError
from superkernel.model.graph import build_graph
from superkernel.plan import make_plan
from superkernel.plan.steps import SpanKind
from superkernel.targets.cuda.runtime import time_stamps
from superkernel.targets.cuda.runtime.calibrate import cached_costs, measured_costs, try_calibration
from superkernel.targets.cuda.runtime.device import open_device
from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel
from superkernel.targets.cuda.runtime.launch_timing import TIMING
from superkernel.targets.cuda.runtime.launcher import CudaLaunchSequence
from superkernel.targets.cuda.runtime.original_entry import OriginalEntry, OriginalKernel
from superkernel.targets.cuda.task_layout import StateOffset
from superkernel.targets.protocol import OpLabel, SequencedLaunch, ValueSource


@pytest.fixture
def timed() -> Iterator[None]:
    TIMING.switch(True)
    yield
    TIMING.switch(False)


def recorded_kernel(fake: FakeDriver, folder: Path) -> CudaLoadedKernel:
    """Its k-th stamp comes k microseconds after the launch began, by the device's timer."""
    image = chain_image(folder, "profiling=1")
    fake.cores = image.cores

    def compute(values: Any, state: int) -> None:
        add_twice(values, state)
        stamps = ctypes.c_uint64.from_address(state + StateOffset.STAMPS).value
        words = (ctypes.c_uint64 * (image.cores * image.stamp_room)).from_address(stamps)
        begin = time.monotonic_ns() + TIMER_AHEAD_NS
        for place in range(len(words)):
            words[place] = begin + 1000 * (place % image.stamp_room)

    fake.compute = compute
    return CudaLoadedKernel(image)


def test_time_stamps_become_spans_on_the_clock_of_the_host(fake: FakeDriver, tmp_path: Path, timed: None) -> None:
    kernel = recorded_kernel(fake, tmp_path)
    before = time.monotonic_ns()
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    begin, end = kernel.last_launch()
    assert before <= begin <= end <= time.monotonic_ns()
    stamps = kernel.time_stamps()
    assert stamps is not None
    slack = 50_000_000  # the two clocks are compared by a launch, which may take long on a loaded machine
    assert all(before - slack < when.ns < time.monotonic_ns() + slack for when in stamps.step_times())
    spans = kernel.spans()
    ops = {(span.op, span.core) for span in spans if span.what is SpanKind.OP}
    assert ops == {(op, core) for op in ("first", "second") for core in range(4)}
    assert all(span.end_ns > span.begin_ns for span in spans)
    kernel.close()


def test_spans_of_an_untimed_launch_wait_for_it(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = recorded_kernel(fake, tmp_path)
    assert kernel.spans() == () and kernel.time_stamps() is None and kernel.last_launch() == (0, 0)
    kernel.launch({"x": floats(), "y": floats()}, NO_INPUTS)
    assert {span.op for span in kernel.spans()} >= {"first", "second"}
    kernel.close()


def test_without_a_compiler_in_the_driver_the_last_stamp_is_the_end(fake: FakeDriver, tmp_path: Path) -> None:
    clock = time_stamps.DeviceClock(open_device(0))
    fake.plant("cuModuleLoadData", 221)
    stamps = np.array([[5, 9]], np.uint64)
    assert clock.offset_ns(stamps, 1000) == clock.offset_ns(stamps, 1000) == 991


def original(folder: Path, **changes: Any) -> OriginalEntry:
    """The op of the chain, by itself."""
    image = chain_image(folder)
    kernel = image.plan.graph.nodes[0].kernel
    graph = build_graph([Op(kernel, ["a", "b"], name="alone")], "add_alone0")
    cubin = folder / "add.cubin"
    cubin.write_bytes(b"FAKECUBIN add_kernel registers=32 static=0 \n")
    fields = {"plan": make_plan(graph, image.plan.options, 4), "cubin": cubin, "symbol": "add_kernel"}
    return OriginalEntry(**{**fields, "grid": (2, 2, 1), "threads": (64, 2, 1), "shared_bytes": 0, **changes})


def test_an_op_alone_is_its_original_entry_with_its_own_grid(fake: FakeDriver, tmp_path: Path) -> None:
    passed: list[list[int]] = []
    fake.entry_called = lambda entry, values: passed.append(pointed_values(values, 4))
    kernel = OriginalKernel(original(tmp_path, scratch=(256, 0)))
    x, y = floats(), floats()
    kernel.launch({"a": x, "b": y}, NO_INPUTS)
    ((first, second, scratch, null),) = passed
    assert (first, second, null) == (x.array.ctypes.data, y.array.ctypes.data, 0) and scratch
    assert (fake.get("blocks"), fake.get("threads"), fake.get("attributes")) == (4, 128, 0)
    kernel.synchronize()
    kernel.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        kernel.launch({"a": x, "b": y}, NO_INPUTS)


def test_an_op_whose_blocks_wait_for_each_other_is_launched_cooperatively(fake: FakeDriver, tmp_path: Path) -> None:
    kernel = OriginalKernel(original(tmp_path, cooperative=True))
    fake.set("blocks_per_sm", 0)
    with pytest.raises(LaunchError, match="4 blocks of 128 threads wait for each other, and 0 fit"):
        kernel.launch({"a": floats(), "b": floats()}, NO_INPUTS)


def test_a_sequence_launches_each_op_with_its_own_values(fake: FakeDriver, tmp_path: Path, timed: None) -> None:
    entry = original(tmp_path)

    def add_one(name: str, values: Any) -> None:
        a, b = pointed_values(values, 2)
        at(b)[:] = at(a) + 1

    fake.entry_called = add_one
    kernel = OriginalKernel(entry)
    launches = [
        SequencedLaunch(kernel, OpLabel("chain", "first"), (ValueSource(0), ValueSource(1))),
        SequencedLaunch(kernel, OpLabel("chain", "second"), (ValueSource(1), ValueSource(2))),
    ]
    x, t, y = floats(), floats(), floats()
    values = (ctypes.c_uint64 * 3)(*(memory.array.ctypes.data for memory in (x, t, y)))
    sizes = (ctypes.c_int64 * 3)(*[4 * ELEMENTS] * 3)
    times: list[Any] = []
    CudaLaunchSequence(launches).launch_timed(values, sizes, times)
    assert np.array_equal(y.array, np.arange(ELEMENTS) + 2)
    assert len(times) == 2 and all(begin <= end for begin, end, _ in times)
    fake.plant("cuLaunchKernelEx", 1)
    with pytest.raises(LaunchError, match="super_kernel_scope 'chain': op 'first': launching add_kernel on 4 blocks"):
        CudaLaunchSequence(launches).launch_values(values, sizes)
    kernel.close()


def test_a_super_kernel_in_a_sequence_names_the_op(fake: FakeDriver, tmp_path: Path) -> None:
    image = chain_image(tmp_path)
    fake.cores, fake.compute = image.cores, add_twice
    kernel = CudaLoadedKernel(image)
    x, y = floats(), floats()
    launch = SequencedLaunch(kernel, OpLabel("model", "op"), (ValueSource(0), ValueSource(1), ValueSource(2)))
    values = (ctypes.c_uint64 * 3)(x.array.ctypes.data, floats().array.ctypes.data, y.array.ctypes.data)
    sizes = (ctypes.c_int64 * 3)(*[4 * ELEMENTS] * 3)
    fake.plant("cuLaunchKernelEx", 1)
    with pytest.raises(LaunchError, match=r"^super_kernel_scope 'model': op 'op': launching sk_chain"):
        CudaLaunchSequence([launch]).launch_values(values, sizes)
    kernel.close()


def test_costs_are_measured_once_per_kind_of_device(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    device = open_device(0)
    assert cached_costs(device.properties) is None
    costs = measured_costs(device)
    launches = len(fake.launches)
    assert launches > 100 and costs.counter_ns >= 1 and costs.near_ns >= 1 and costs.launch_ns > 0
    assert costs.cluster_ns is not None and costs.cluster_ns >= 1
    assert measured_costs(device) == costs == cached_costs(device.properties)
    assert len(fake.launches) == launches
    assert cached_costs(replace(device.properties, name="another GPU")) is None
    assert fake.get("modules") == 0 and fake.get("allocations") == 0


@pytest.mark.parametrize(("what", "value"), [("cluster_launch", 0), ("cluster_sms", 4)])
def test_costs_without_clusters(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, value: int
) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    fake.set(what, value)
    costs = measured_costs(open_device(0))
    assert costs.cluster_ns is None and costs.counter_ns >= 1
    assert fake.get("modules") == 0 and fake.get("allocations") == 0


def test_a_driver_that_cannot_compile_leaves_the_costs_of_the_description(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    fake.plant("cuModuleLoadData", 221)
    assert try_calibration(open_device(0)) is None
