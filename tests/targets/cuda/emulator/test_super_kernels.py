"""Emitted super kernels on the emulator: the bits of their ops alone under every order; planted faults are found."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.graph_kernels import TEXTS, buffers, chain, kernels, random_graph
from targets.cuda.emulator.planted_faults import (
    arrive_early,
    drop_near_wait,
    drop_wait,
    lose_arrival,
    replaced,
    shorten_target,
    with_tasks,
)

import superkernel as sk
from superkernel.errors import LaunchError, UnsupportedError
from superkernel.plan import placement
from superkernel.plan.steps import Wait
from superkernel.targets.cuda.emulator import CudaEmulator
from superkernel.targets.cuda.emulator.unfused import emulate_unfused
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.protocol import LaunchInputs

SEEDS = range(25)
GRAPHS = 6  # random ones; with two chains, 8 graphs
SMALL = {"name": "small", "architecture": "sm_80", "sms": 4}
ONE_SLOT = SMALL | {"shared_bytes": 6000}  # there is room for one slot of our kernels on each SM
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass
class CompiledGraph:
    kernel: sk.SuperKernel
    given: Arrays
    alone: Arrays  # what the ops give one by one

    @classmethod
    def of(cls, ops: list[sk.Op], name: str, options: str = "", chip: Mapping[str, Any] = SMALL) -> CompiledGraph:
        kernel = sk.compile(ops, name=name, target="cuda", chip=dict(chip), options=options)
        given = buffers(ops, len(ops))
        alone = copies(given)
        emulate_unfused(kernel.plan, alone)
        return cls(kernel, given, alone)

    def differing(self, seed: int, **more: Any) -> list[str]:
        """Names whose bits differ from those of the ops alone."""
        live = copies(self.given)
        self.kernel.emulate(live, seed=seed, **more)
        return [name for name, array in live.items() if not np.array_equal(array, self.alone[name])]

    @property
    def executable(self) -> CudaExecutable:
        executable = self.kernel.executable
        assert isinstance(executable, CudaExecutable)
        return executable

    def run(self, executable: CudaExecutable, seed: int, launches: int = 1) -> str:
        """What a changed executable is reported for; "wrong" if its results differ; "" if nothing is found."""
        live = copies(self.given)
        try:
            CudaEmulator().emulate(executable, live, LaunchInputs({}, {}), seed=seed, launches=launches)
        except LaunchError as reported:
            return str(reported)
        return "" if all(np.array_equal(live[name], self.alone[name]) for name in live) else "wrong"


def copies(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def sub_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, sk.SubKernel]:
    return kernels(tmp_path_factory.mktemp("ptx"))


@pytest.fixture(scope="module")
def far_chain(sub_kernels: dict[str, sk.SubKernel]) -> Iterator[CompiledGraph]:
    """Four ops of 4 blocks on 4 SMs with one slot each: every sync is a counter in device memory."""
    graph = CompiledGraph.of(chain(sub_kernels, ["mix", "turn", "mix", "turn"]), "far", chip=ONE_SLOT)
    assert graph.executable.sms == 4 and graph.executable.slots == 1
    yield graph
    graph.kernel.close()


@pytest.fixture(scope="module")
def near_chain(sub_kernels: dict[str, sk.SubKernel]) -> Iterator[CompiledGraph]:
    """The same on one SM with 4 slots: every sync is a word in shared memory."""
    graph = CompiledGraph.of(chain(sub_kernels, ["mix", "turn", "mix", "turn"]), "near", chip=SMALL)
    assert graph.executable.sms == 1 and graph.executable.slots == 4
    yield graph
    graph.kernel.close()


@pytest.mark.parametrize("number", range(GRAPHS))
def test_random_graphs_give_the_bits_of_their_ops_alone(number: int, sub_kernels: dict[str, sk.SubKernel]) -> None:
    options = ("", "stream-fusion=1", "early-start=0", "prefetch-weights=1")[number % 4]
    graph = CompiledGraph.of(random_graph(sub_kernels, number), f"random_{number}", options)
    with graph.kernel:
        for seed in SEEDS:
            assert graph.differing(seed) == [], f"seed {seed}"


def test_chains_give_the_bits_of_their_ops_alone(far_chain: CompiledGraph, near_chain: CompiledGraph) -> None:
    for seed in SEEDS:
        assert far_chain.differing(seed) == near_chain.differing(seed) == [], f"seed {seed}"


def test_launches_in_a_row_find_the_sync_state_that_they_need(
    far_chain: CompiledGraph, near_chain: CompiledGraph
) -> None:
    for seed in range(4):
        assert far_chain.differing(seed, launches=3) == near_chain.differing(seed, launches=3) == []


@pytest.mark.conformance
@pytest.mark.parametrize("number", range(GRAPHS, GRAPHS + 40))
def test_many_random_graphs_give_the_bits_of_their_ops_alone(number: int, sub_kernels: dict[str, sk.SubKernel]) -> None:
    chip = SMALL | {"sms": 1 + number % 8, "shared_bytes": (6000, 9000, 100_000)[number % 3]}
    graph = CompiledGraph.of(random_graph(sub_kernels, number, 6 + number % 20), f"random_{number}", chip=chip)
    with graph.kernel:
        for seed in range(40):
            assert graph.differing(seed, launches=1 + seed % 2) == [], f"seed {seed}"


def pure(sub_kernels: dict[str, sk.SubKernel]) -> dict[str, sk.SubKernel]:
    """Kernels that may be replicated."""
    return {name: replace(kernel, pure=name != "count") for name, kernel in sub_kernels.items()}


def test_replicated_ops_give_the_bits_of_single_ones(sub_kernels: dict[str, sk.SubKernel]) -> None:
    graph = CompiledGraph.of(chain(pure(sub_kernels), ["mix", "total", "turn"]), "replicated", chip=ONE_SLOT)
    with graph.kernel:
        assert list(graph.kernel.plan.copies) == [1] and graph.executable.copies_bytes
        for seed in range(8):
            assert graph.differing(seed, launches=1 + seed % 2) == [], f"seed {seed}"


@pytest.mark.conformance
@pytest.mark.parametrize("number", range(24))
def test_streams_and_options_give_the_bits_of_the_ops_alone(number: int, sub_kernels: dict[str, sk.SubKernel]) -> None:
    choose = random.Random(number)
    ops = random_graph(pure(sub_kernels), 100 + number, 12)
    if number % 2:
        ops = [replace(op, stream=choose.randrange(3)) for op in ops]
    options = (
        "",
        "stream-fusion=1",
        "early-start=0",
        "stream-fusion=1:early-start=2",
        "debug-sync-all=1",
        "profiling=1",
    )
    chip = SMALL | {"sms": 1 + number % 8, "shared_bytes": (6000, 9000, 100_000)[number % 3]}
    graph = CompiledGraph.of(ops, f"streams_{number}", options[number % 6], chip)
    with graph.kernel:
        for seed in range(20):
            assert graph.differing(seed, launches=1 + seed % 2) == [], f"seed {seed}"


# planted faults


def found(graph: CompiledGraph, executable: CudaExecutable, launches: int = 1, seeds: int = 10) -> list[str]:
    """What is reported under each seed; every report must name something."""
    return [graph.run(executable, seed, launches) for seed in range(seeds)]


def test_without_a_fault_nothing_is_found(far_chain: CompiledGraph, near_chain: CompiledGraph) -> None:
    assert set(found(far_chain, far_chain.executable, 2)) == {""}
    assert set(found(near_chain, near_chain.executable, 2)) == {""}


LATE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry late(.param .u64 w, .param .u64 x, .param .u64 z)
.reqntid 64, 1, 1
{
.reg .b32 %r<20>; .reg .b64 %d<20>;
ld.param.u64 %d1, [w]; ld.param.u64 %d2, [x]; ld.param.u64 %d3, [z];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r1;
and.b32 %r10, %r3, 127; mad.wide.u32 %d4, %r10, 16, %d1;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d4];
mad.lo.u32 %r8, %r3, 7, 1; and.b32 %r8, %r8, 511; mad.wide.u32 %d5, %r8, 4, %d2; ld.global.u32 %r9, [%d5];
mad.lo.u32 %r9, %r9, 3, %r4; add.u32 %r9, %r9, %r5; xor.b32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7;
mad.wide.u32 %d6, %r3, 4, %d3; st.global.u32 [%d6], %r9;
ret;
}
"""


@pytest.mark.parametrize(("sms", "threads"), [(2, 320), (3, 256), (2, 256)], ids=["teams", "uneven", "few slots"])
def test_wide_ops_that_start_early_beside_replicated_ones(
    sub_kernels: dict[str, sk.SubKernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sms: int, threads: int
) -> None:
    """Copies of a small op on one slot per SM, for which the other slots wait behind the loads of their weights."""
    monkeypatch.setattr(placement, "WORTH_TEAMS", 1.0)
    path = tmp_path / "late.ptx"
    path.write_text(LATE)
    params = ("in:w:uint32[512]", "in:x:uint32[512]", "out:z:uint32[512]")
    late = sk.SubKernel.from_ptx(path, "late", threads=(64, 1, 1), grid=(8, 1, 1), params=params)
    total, ops = pure(sub_kernels)["total"], []
    for layer in range(3):
        ops.append(sk.Op(total, [f"y{layer % 2}" if layer else "a", f"h{layer}"]))
        ops.append(sk.Op(late, [f"w{layer}", f"h{layer}", f"y{(layer + 1) % 2}"]))
    chip = {"name": "few", "architecture": "sm_80", "sms": sms, "threads": threads, "costs": {"bytes_per_ns": 0.3}}
    graph = CompiledGraph.of(ops, "teams", chip=chip)
    plan = graph.kernel.plan
    assert len(plan.copies) == 3 and ("each in its group" in str(plan))
    assert bool(plan.teams) == ((sms, threads) != (2, 256)), str(plan)
    assert not any(graph.differing(seed) for seed in SEEDS)
    near = [step for step in plan.steps if isinstance(step, Wait) and any(need.near for need in step.needs)]
    assert near and all(step.inside for step in near)
    reports = [graph.run(with_tasks(graph.executable, drop_near_wait), seed) for seed in range(5)]
    assert any("data race" in report for report in reports), reports


@pytest.mark.parametrize("chip", [ONE_SLOT, SMALL], ids=["far", "near"])
def test_faults_are_found_beside_a_warp_that_asks_ahead(
    sub_kernels: dict[str, sk.SubKernel], chip: Mapping[str, Any]
) -> None:
    """Its polls of shared memory are no progress, and it ends with the launch."""
    ops = chain(sub_kernels, ["mix", "turn", "mix", "turn"])
    graph = CompiledGraph.of(ops, "ahead", "prefetch-weights=1", chip)
    executable = graph.executable
    assert executable.slot_shape.block_threads == executable.slot_shape.slot_threads + 32
    with graph.kernel:
        assert not any(graph.differing(seed, launches=2) for seed in range(4))
        assert "deadlock" in graph.run(with_tasks(executable, lose_arrival), 1)
        assert any("data race" in graph.run(with_tasks(executable, drop_wait), seed) for seed in range(4))


def test_a_dropped_wait_is_a_race(far_chain: CompiledGraph, near_chain: CompiledGraph) -> None:
    for graph in (far_chain, near_chain):
        reports = found(graph, with_tasks(graph.executable, drop_wait))
        assert all(reports)
        assert any("data race" in report and "op 'turn_1'" in report and "op 'mix_0'" in report for report in reports)


def test_a_target_that_is_one_short_is_found(far_chain: CompiledGraph) -> None:
    reports = found(far_chain, with_tasks(far_chain.executable, shorten_target), seeds=20)
    assert sum("data race" in report or report == "wrong" for report in reports) >= 5


def test_a_lost_arrival_is_a_deadlock_that_names_the_counter(far_chain: CompiledGraph) -> None:
    reports = found(far_chain, with_tasks(far_chain.executable, lose_arrival))
    assert all("deadlock" in report for report in reports)
    assert all(
        "polls the counter of 'mix_0 done' on cores 0-3 (4 arrivals a launch) and sees" in report for report in reports
    )
    assert all("SM " in report and "slot 0" in report and "op 'turn_1'" in report for report in reports)


def test_an_arrival_before_the_stores_is_found(far_chain: CompiledGraph) -> None:
    """As if griddepcontrol.launch_dependents were the arrival."""
    reports = found(far_chain, arrive_early(far_chain.executable), seeds=20)
    assert sum("data race" in report for report in reports) == len(reports)


def test_a_wrong_shared_base_is_found(near_chain: CompiledGraph) -> None:
    line = next(line for line in near_chain.executable.ptx.splitlines() if "mad.lo.u32 %sk_shared, %sk_slot" in line)
    reports = found(near_chain, replaced(near_chain.executable, line, "mov.u32 %sk_shared, %sk_control;"))
    assert all("belongs to slot 0: its slot has bytes" in report for report in reports)


def test_a_missing_epoch_is_found(far_chain: CompiledGraph) -> None:
    line = "st.release.gpu.global.u32 [%sk_state+0], %sk_launches;"
    reports = found(far_chain, replaced(far_chain.executable, line, "// no epoch"), launches=2)
    assert all("the epoch is 0, not 1" in report for report in reports)


def test_a_wait_without_acquire_is_a_race(far_chain: CompiledGraph) -> None:
    weak = replaced(far_chain.executable, "ld.acquire.gpu.global.u32 %sk_seen", "ld.relaxed.gpu.global.u32 %sk_seen")
    assert all("data race" in report for report in found(far_chain, weak))
    narrow = replaced(far_chain.executable, "red.release.gpu.global.add.u32", "red.release.cta.global.add.u32")
    assert all("data race" in report for report in found(far_chain, narrow))


# what a user sees


def test_spans_name_the_ops_and_the_machine_its_slots(far_chain: CompiledGraph) -> None:
    far_chain.differing(1)
    spans = far_chain.kernel.emulated.spans
    assert {span.op for span in spans} == {"mix_0", "turn_1", "mix_2", "turn_3"}
    assert all(span.begin_ns < span.end_ns for span in spans) and {span.core for span in spans} == set(range(4))
    machine = CudaEmulator().machine(far_chain.executable)
    assert machine.core_names == ("SM 0 slot 0", "SM 1 slot 0", "SM 2 slot 0", "SM 3 slot 0")


def test_bad_arguments_are_refused(far_chain: CompiledGraph) -> None:
    kernel, given = far_chain.kernel, far_chain.given
    for more, words in (
        ({"seed": -1}, "seed is -1"),
        ({"launches": 0}, "launches is 0"),
        ({"launches": True}, "launches"),
    ):
        with pytest.raises(LaunchError, match=words):
            kernel.emulate(copies(given), **more)
    with pytest.raises(LaunchError, match="no op uses the name 'zz'"):
        kernel.emulate(copies(given) | {"zz": given["a"]})
    with pytest.raises(UnsupportedError, match="runs the sub-kernels themselves"):
        kernel.emulate(copies(given), stand_ins=True)


def test_profiling_gives_the_spans_that_the_kernel_records(sub_kernels: dict[str, sk.SubKernel]) -> None:
    graph = CompiledGraph.of(chain(sub_kernels, ["mix", "turn", "total"]), "profiled", "profiling=1")
    with graph.kernel:
        assert graph.differing(3, launches=2) == []
        spans = graph.kernel.emulated.spans
    assert {"kernel", "op", "wait"} <= {span.what.value for span in spans}
    assert {span.op for span in spans if span.what.value == "op"} == {"mix_0", "turn_1", "total_2"}


def test_events_of_the_host_are_awaited_and_notified(sub_kernels: dict[str, sk.SubKernel]) -> None:
    first, second, third = chain(sub_kernels, ["mix", "turn", "mix"])
    ops = [first, replace(second, recv=["go"]), replace(third, send=["done"])]
    given, go, done = buffers(ops), sk.Event(), sk.Event()
    with sk.compile(ops, name="events", target="cuda", chip=dict(SMALL), options="debug-watchdog=1") as kernel:
        go.set()
        kernel.emulate(copies(given), seed=2, events={"go": go, "done": done})
        assert done.is_set() and not go.is_set()
        with pytest.raises(LaunchError, match="an event that the host has not set"):
            kernel.emulate(copies(given), seed=2, events={"go": go, "done": done})


def test_debug_check_names_op_parameter_and_block(sub_kernels: dict[str, sk.SubKernel], tmp_path: Path) -> None:
    liar = tmp_path / "liar.ptx"
    liar.write_text(TEXTS["count"].replace("count(", "liar("))
    writes = sk.SubKernel.from_ptx(
        liar, "liar", threads=(64, 1, 1), grid=(8, 1, 1), params=("in:x:uint32[512]", "inout:z:uint32[512]@block")
    )
    ops = [*chain(sub_kernels, ["mix"]), sk.Op(writes, ["t0", "n"], name="lies")]
    given = buffers(ops)
    with (
        sk.compile(ops, name="checked", target="cuda", chip=dict(SMALL), options="debug-check=1") as kernel,
        pytest.raises(LaunchError) as caught,
    ):
        kernel.emulate(given)
    text = str(caught.value)
    assert "op 'lies' on block (" in text and "parameter inout:z" in text and "@block promises that block" in text


def test_debug_check_finds_reads_before_the_wait(tmp_path: Path) -> None:
    text = TEXTS["turn"].replace("turn(", "early(").replace("sm_80", "sm_90")
    path = tmp_path / "early.ptx"
    path.write_text(text.replace("st.shared.u32 [%r6]", "griddepcontrol.wait; st.shared.u32 [%r6]"))
    params = ("in:x:uint32[512]", "out:z:uint32[512]")
    early = sk.SubKernel.from_ptx(path, "early", threads=(128, 1, 1), grid=(4, 1, 1), params=params)
    ops = [sk.Op(early, ["a", "t"], name="early")]
    chip = SMALL | {"architecture": "sm_90a"}
    with sk.compile(ops, name="early", target="cuda", chip=chip, options="debug-check=1") as kernel:
        given = buffers(ops)
        kernel.emulate(copies(given))  # the PTX itself says what is read early
        node = kernel.plan.graph.nodes[0]
        silent = kernel.plan.graph.with_kernels({node.kernel: replace(node.kernel, early_start=())})
        with pytest.raises(LaunchError, match=r"reads byte \d+ of buffer 'a' \(parameter in:x\) before its wait"):
            emulate_unfused(replace(kernel.plan, graph=silent), copies(given), check=True)


def test_debug_replay_compares_with_every_op_alone(sub_kernels: dict[str, sk.SubKernel]) -> None:
    ops = chain(sub_kernels, ["mix", "total"])
    given = buffers(ops)
    with sk.compile(ops, name="replayed", target="cuda", chip=dict(SMALL), options="debug-replay=1") as kernel:
        kernel.emulate(copies(given), seed=4)


def test_a_saved_kernel_is_emulated_too(far_chain: CompiledGraph, tmp_path: Path) -> None:
    far_chain.kernel.save(tmp_path / "saved")
    live = copies(far_chain.given)
    with sk.load(tmp_path / "saved") as loaded:
        loaded.emulate(live, seed=5)
    assert all(np.array_equal(live[name], far_chain.alone[name]) for name in live)
