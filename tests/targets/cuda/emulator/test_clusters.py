"""Clusters of SMs on the emulator: the bits of the ops alone under every order; planted faults are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.cluster_kernels import random_spreads, spread_chain
from targets.cuda.emulator.graph_kernels import buffers
from targets.cuda.emulator.planted_faults import (
    Words,
    drop_wait,
    replaced,
    shorten_target,
    with_tasks,
)
from targets.cuda.emulator.test_super_kernels import CompiledGraph, found

import superkernel as sk
from superkernel.targets.cuda import plan as planning
from superkernel.targets.cuda.device import DeviceDescription
from superkernel.targets.cuda.emit_entry import CLUSTER_ARRIVE, CLUSTER_WAIT
from superkernel.targets.cuda.emit_waits import PATIENCE_NS, SPINS
from superkernel.targets.cuda.emulator.execution import execute
from superkernel.targets.cuda.emulator.launch import SuperKernelEmulator
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.numbering import SlotGrid
from superkernel.targets.cuda.task_layout import StateOffset, TaskFlag, TaskWord
from superkernel.targets.protocol import LaunchInputs

UINT32 = 0xFFFFFFFF
CHIP: dict[str, Any] = {
    "name": "clustered",
    "architecture": "sm_90a",
    "sms": 32,
    "shared_bytes": 6000,  # room for one slot on each SM
    "largest_cluster": 16,
}


def compiled(folder: Path, blocks: list[int], options: str = "", **chip: Any) -> CompiledGraph:
    return CompiledGraph.of(spread_chain(folder, blocks), "clusters", options, CHIP | chip)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompiledGraph]:
    """Ops of 8, 4, 1 and 3 blocks in one cluster of 8."""
    made = compiled(tmp_path_factory.mktemp("ptx"), [8, 4, 8, 1, 8, 3])
    assert made.executable.shape.cluster == 8 and not made.executable.numbers.counters
    yield made
    made.kernel.close()


@pytest.mark.parametrize(
    ("blocks", "size", "sms"), [([2, 2], 2, 2), ([3, 2], 4, 4), ([4, 4], 4, 4), ([8, 5], 8, 8), ([16, 2, 9], 16, 16)]
)
def test_ops_of_few_blocks_run_in_one_cluster(tmp_path: Path, blocks: list[int], size: int, sms: int) -> None:
    made = compiled(tmp_path, blocks)
    shape = made.executable.shape
    with made.kernel:
        assert (shape.cluster, shape.sms, shape.slots) == (size, sms, 1), str(made.kernel.plan)
        assert f"in clusters of {size}" in str(made.kernel.plan)
        assert not any(made.differing(seed, launches=2) for seed in range(6))


@pytest.mark.parametrize("options", ["early-start=0", "stream-fusion=1", "profiling=1", "debug-sync-all=1"])
def test_options_give_the_bits_of_the_ops_alone(tmp_path: Path, options: str) -> None:
    made = compiled(tmp_path, [4, 4, 2, 4, 1, 4], options)
    with made.kernel:
        assert made.executable.shape.cluster == 4
        assert not any(made.differing(seed, launches=1 + seed % 2) for seed in range(6))


def test_one_cluster_of_several_runs_the_small_ops(tmp_path: Path) -> None:
    """Wide ops wait by counters in device memory, small ones by words of their cluster."""
    made = compiled(tmp_path, [16, 4, 4, 3, 4, 16, 4, 4, 4, 4], largest_cluster=4)
    numbers = made.executable.numbers
    with made.kernel:
        assert (made.executable.shape.cluster, made.executable.sms) == (4, 16), str(made.kernel.plan)
        assert numbers.counters and numbers.cluster_ranks
        assert set(numbers.cluster_ranks.values()) <= set(range(1, 16))
        assert made.kernel.plan.sync_counts["near"] >= 6
        assert not any(made.differing(seed, launches=1 + seed % 2) for seed in range(12))


def test_slots_of_the_sms_of_a_cluster(tmp_path: Path) -> None:
    """4 SMs of 2 slots in clusters of 2 SMs: an SM has words of its own, of its cluster, and counters."""
    made = compiled(tmp_path, [8, 4, 4, 3, 2, 4, 4, 4, 8], sms=4, shared_bytes=9000, largest_cluster=2)
    with made.kernel:
        shape = made.executable.shape
        assert (shape.cluster, shape.sms, shape.slots) == (2, 4, 2), str(made.kernel.plan)
        assert made.executable.numbers.cluster_ranks and made.executable.numbers.counters
        assert not any(made.differing(seed, launches=1 + seed % 2) for seed in range(12))


def test_without_room_for_words_counters_serve(tmp_path: Path) -> None:
    made = compiled(tmp_path, [4, 4, 4, 4, 4, 4], shared_bytes=2048 + 4 * 48 + 12)
    with made.kernel:
        numbers = made.executable.numbers
        assert made.executable.shape.cluster == 4 and numbers.counters
        assert any(map(numbers.in_cluster, numbers.waiters))
        assert not any(made.differing(seed, launches=2) for seed in range(4))


def test_no_cluster_where_it_gains_nothing(tmp_path: Path) -> None:
    """A chain on one core, a single op, a GPU without clusters, and one with too few SMs for clusters of 4."""
    few: tuple[tuple[list[int], dict[str, Any]], ...] = (
        ([1, 1, 1], {}),
        ([16], {}),
        ([16, 16], {"largest_cluster": 8}),
        ([4, 4], {"largest_cluster": 1}),
        ([4, 4], {"sms": 4}),
    )
    for blocks, chip in few:
        made = compiled(tmp_path, blocks, **chip)
        with made.kernel:
            assert made.executable.shape.cluster == 1, str(made.kernel.plan)
            assert "mapa" not in made.executable.ptx and "barrier.cluster" not in made.executable.ptx


def test_a_launch_uses_no_more_sms_than_it_is_given_cores(tmp_path: Path) -> None:
    ops, chip = spread_chain(tmp_path, [8, 8]), dict(CHIP)
    for cores, size in ((8, 8), (3, 2), (4, 4)):
        with sk.compile(ops, name="few", target="cuda", chip=chip, cores=cores) as kernel:
            shape = kernel.plan.shape
            assert shape.sms <= cores and shape.cluster in (1, size), str(kernel.plan)


def test_a_saved_kernel_keeps_its_clusters(graph: CompiledGraph, tmp_path: Path) -> None:
    graph.kernel.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as loaded:
        executable = loaded.executable
        assert isinstance(executable, CudaExecutable)
        assert executable.shape == graph.executable.shape and executable.ptx == graph.executable.ptx
        assert executable.slot_shape == graph.executable.slot_shape


def test_every_order_gives_the_bits_of_the_ops_alone(graph: CompiledGraph) -> None:
    assert not any(graph.differing(seed, launches=1 + seed % 2) for seed in range(25))


FUZZ_OPTIONS = (
    "",
    "stream-fusion=1",
    "early-start=0",
    "profiling=1",
    "stream-fusion=1:early-start=2",
    "debug-sync-all=1",
)


@pytest.mark.parametrize(
    "number", [*range(6), *(pytest.param(number, marks=pytest.mark.conformance) for number in range(6, 80))]
)
def test_random_graphs_in_clusters_give_the_bits_of_their_ops_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Clusters of every size, also where they gain nothing, with one to four slots on an SM."""
    size = (2, 4, 8, 16)[number % 4]
    fewer = count()  # every plan is estimated to be faster than the one before
    monkeypatch.setattr(planning, "estimate_near", lambda *_: -next(fewer))
    planned: list[SlotGrid] = []
    shapes = planning.cluster_shapes

    def of_size(shape: SlotGrid, device: DeviceDescription) -> Iterator[SlotGrid]:
        for clustered in shapes(shape, device):
            if clustered.cluster == size:
                planned.append(clustered)
                yield clustered

    monkeypatch.setattr(planning, "cluster_shapes", of_size)
    chip = CHIP | {"sms": (24, 32, 8)[number % 3], "shared_bytes": (6000, 9000, 13_000)[number // 3 % 3]}
    ops = random_spreads(tmp_path, number, 8 + number % 12)
    chip |= {"cluster_sync_ns": 0}
    made = CompiledGraph.of(ops, f"fuzz{number}", FUZZ_OPTIONS[number % 6], chip)
    with made.kernel:
        for seed in range(8):
            assert made.differing(seed, launches=1 + seed % 2) == [], f"seed {seed}"
    if planned and "stream-fusion" not in FUZZ_OPTIONS[number % 6]:
        assert made.executable.shape.cluster == size, str(made.kernel.plan)


@pytest.mark.parametrize("seed", range(4))
def test_a_launch_that_is_aborted_leaves_together(tmp_path: Path, seed: int) -> None:
    """Cores wait for an event that never comes, or for cores that wait; the host aborts, and all SMs end."""
    ops = spread_chain(tmp_path, [8, 8, 8])
    ops[1] = replace(ops[1], recv=("go",))
    event = sk.Event()
    with sk.compile(ops, name="aborted", target="cuda", chip=dict(CHIP)) as kernel:
        executable = kernel.executable
        assert isinstance(executable, CudaExecutable) and executable.shape.cluster == 8
        executable = replaced(executable, f"%sk_polls, {SPINS};", "%sk_polls, 32;")  # waits are long soon
        executable = replaced(executable, f"%sk_elapsed, {PATIENCE_NS};", "%sk_elapsed, 8;")
        emulator = SuperKernelEmulator(executable, seed, None, True, 1)
        emulator.start(buffers(ops), LaunchInputs({"go": event}, {}))
        told = emulator.memory.add("the abort word", np.ones(4, np.uint8))
        state = emulator.memory.ranges["the sync state"]
        state.content[StateOffset.CONTROL : StateOffset.CONTROL + 8].view(np.uint64)[0] = told.address
        execute(emulator.library, emulator.program, emulator.memory, emulator.prepare(0))
        words = state.content.view(np.uint32)
        assert words[StateOffset.FAILURE // 4] and not words[StateOffset.PROGRESS // 4 :][:8].any()


# planted faults


def lose_signal(words: Words) -> bool:
    """A core never says that it has finished."""
    signals = bool(words[TaskWord.KIND] & TaskFlag.CLUSTER_SIGNAL)
    words[TaskWord.KIND] &= ~(TaskFlag.SIGNALS | TaskFlag.CLUSTER_SIGNAL).value if signals else UINT32
    return signals


def clear_rank(words: Words) -> bool:
    """One of the SMs that wait is not told."""
    signals = bool(words[TaskWord.KIND] & TaskFlag.CLUSTER_SIGNAL)
    if signals:
        words[TaskWord.SIGNAL_SHARE] &= words[TaskWord.SIGNAL_SHARE] - 1
    return signals


def move_rank(words: Words) -> bool:
    """An SM outside of the cluster is told."""
    signals = bool(words[TaskWord.KIND] & TaskFlag.CLUSTER_SIGNAL)
    if signals:
        words[TaskWord.SIGNAL_SHARE] |= 1 << 9
    return signals


def without(executable: CudaExecutable, which: int) -> CudaExecutable:
    """Without the barrier of the cluster at the beginning (0), or at the end (1)."""
    parts = executable.ptx
    for line in (CLUSTER_ARRIVE, CLUSTER_WAIT):
        assert parts.count(line) == 2
        before, between, behind = parts.split(line)
        parts = f"{before}{between}{line}{behind}" if which == 0 else f"{before}{line}{between}{behind}"
    return replaced(executable, executable.ptx, parts)


def test_a_cluster_signal_that_is_lost_is_a_deadlock(graph: CompiledGraph) -> None:
    reports = found(graph, with_tasks(graph.executable, lose_signal))
    assert all("deadlock" in report and "of shared memory and sees" in report for report in reports), reports


def test_an_sm_that_is_not_told_is_a_deadlock(graph: CompiledGraph) -> None:
    reports = found(graph, with_tasks(graph.executable, clear_rank))
    assert all("deadlock" in report for report in reports), reports


def test_an_sm_outside_of_the_cluster_is_refused(graph: CompiledGraph) -> None:
    reports = found(graph, with_tasks(graph.executable, move_rank))
    assert all("block 9 of a cluster of 8" in report for report in reports), reports


def test_a_dropped_wait_is_a_race(graph: CompiledGraph) -> None:
    reports = found(graph, with_tasks(graph.executable, drop_wait))
    assert all("data race" in report for report in reports), reports


def test_a_target_that_is_one_short_is_found(graph: CompiledGraph) -> None:
    reports = found(graph, with_tasks(graph.executable, shorten_target), seeds=20)
    assert sum("data race" in report or report == "wrong" for report in reports) >= 5, reports


def test_a_missing_barrier_at_the_beginning_is_found(graph: CompiledGraph) -> None:
    reports = found(graph, without(graph.executable, 0))
    assert all("no barrier.cluster lies before" in report or "data race" in report for report in reports), reports


def test_a_missing_barrier_at_the_end_is_found(graph: CompiledGraph) -> None:
    reports = found(graph, without(graph.executable, 1))
    assert all("no barrier.cluster lies behind" in report for report in reports), reports


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("red.release.cluster.shared::cluster", "red.relaxed.cluster.shared::cluster"),
        ("red.release.cluster.shared::cluster", "red.release.cta.shared::cluster"),
        ("ld.acquire.cluster.shared.u32", "ld.relaxed.cluster.shared.u32"),
        ("ld.acquire.cluster.shared.u32", "ld.acquire.cta.shared.u32"),
        ("ld.relaxed.cluster.shared.u32", "ld.relaxed.cta.shared.u32"),
        ("ld.relaxed.cluster.shared.u32", "ld.shared.u32"),
    ],
)
def test_a_weaker_order_of_memory_is_a_race(graph: CompiledGraph, old: str, new: str) -> None:
    reports = found(graph, replaced(graph.executable, old, new))
    assert all("data race" in report for report in reports), reports


def test_waiting_before_arriving_is_found(graph: CompiledGraph) -> None:
    reports = found(graph, replaced(graph.executable, CLUSTER_ARRIVE, "// nothing", 1), seeds=2)
    assert all("has not arrived there" in report for report in reports), reports
