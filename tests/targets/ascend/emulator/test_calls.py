"""Sub-kernels on emulated cores: who is called with what, what they may ask, and what goes wrong there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from targets.ascend.emulator.hand import HandOp, emitted_by_hand, mixed_launch, numbers, run, turned, vector_launch

from superkernel.errors import BuildError, LaunchError
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.emulator.trace import TracePoint

AIV, AIC = KernelType.AIV_ONLY, KernelType.AIC_ONLY
MIX_1_1, MIX_1_2 = KernelType.MIX_AIC_1_1, KernelType.MIX_AIC_1_2
SEEDS = range(8)


def arrays(ops: list[HandOp], seed: int = 0) -> dict[str, np.ndarray]:
    a = numbers(ops[0].blocks, seed)
    names = dict.fromkeys(n for op in ops for n in op.args if isinstance(n, str))
    return {name: a if name == "a" else np.zeros_like(a) for name in names}


@pytest.mark.parametrize("seed", SEEDS)
def test_all_core_barriers_inside_a_sub_kernel(seed: int) -> None:
    ops = [HandOp("meeting", ("a", "b", "c"), AIV, 8)]
    emitted, graph = emitted_by_hand(
        "    sk_call_context(0, -1, 0, 0);\n    meeting(1);\n    pipe_barrier(PIPE_ALL);\n", ops, vector_launch(8)
    )
    buffers = arrays(ops, seed)
    outcome = run(emitted, graph, buffers, seed)
    assert np.array_equal(buffers["b"], turned(turned(buffers["a"])))
    assert {step.value for step in outcome.steps if step.what is TracePoint.OP_END} == {2}


def test_a_barrier_that_idle_cores_do_not_join_is_a_deadlock_inside_the_op() -> None:
    ops = [HandOp("meeting", ("a", "b", "c"), AIV, 6)]
    body = "    sk_call_context(0, -1, 0, 0);\n    if (vector_index() < 6) meeting(1);\n    pipe_barrier(PIPE_ALL);\n"
    emitted, graph = emitted_by_hand(body, ops, vector_launch(8))
    with pytest.raises(LaunchError, match=r"deadlock.*\n *6 wait for flag 14, in op 'op0'"):
        run(emitted, graph, arrays(ops))


def test_pipes_are_drained_between_ops() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8), HandOp("bulk", ("c", "d"), AIV, 8)]
    emitted, graph = emitted_by_hand("    bulk(1);\n    bulk(3);\n", ops, vector_launch(8))
    with pytest.raises(
        LaunchError, match=r"runs op 'op1' before its pipes are drained: 'op0' may still use its buffers"
    ):
        run(emitted, graph, arrays(ops))


@pytest.mark.parametrize("seed", SEEDS)
def test_early_start_waits_and_signals_inside(seed: int) -> None:
    ops = [HandOp("early", ("a", "b"), AIV, 8), HandOp("early", ("b", "c"), AIV, 8)]
    body = """
    sk_call_context(0, -1, 1, 0);
    early(1);
    pipe_barrier(PIPE_ALL);
    sk_call_context(0, 5, 0, 0);
    early(3);
    pipe_barrier(PIPE_ALL);
"""
    emitted, graph = emitted_by_hand(body, ops, vector_launch(8))
    buffers = arrays(ops, seed)
    outcome = run(emitted, graph, buffers, seed)
    assert np.array_equal(buffers["c"], turned(turned(buffers["a"])))
    last_set = max(s.sequence for s in outcome.steps if s.what is TracePoint.OP_SET and s.op == "op0")
    waited = [s.sequence for s in outcome.steps if s.what is TracePoint.OP_WAITED and s.op == "op1"]
    assert min(waited) > last_set


def test_a_sub_kernel_that_keeps_no_promise_is_named() -> None:
    ops = [HandOp("late", ("a", "b"), AIV, 8)]
    for context, what in (("0, 5, 0, 0", "wait"), ("0, -1, 1, 0", "signal")):
        emitted, graph = emitted_by_hand(f"    sk_call_context({context});\n    late(1);\n", ops, vector_launch(8))
        with pytest.raises(LaunchError, match=f"op 'op0' never made the {what}"):
            run(emitted, graph, arrays(ops))


@pytest.mark.parametrize(
    ("kind", "guard", "problem"),
    [
        (AIV, "!is_cube", "as block 8 of 8|as block 9 of 8|as block 1. of 8"),
        (AIV, "is_cube", "which is of the other class"),
        (AIC, "!is_cube", "which is of the other class"),
        (MIX_1_1, "!is_cube", "on a second vector core"),
    ],
)
def test_an_op_runs_only_where_it_may(kind: KernelType, guard: str, problem: str) -> None:
    ops = [HandOp("bulk", ("a", "b"), kind, 8)]
    emitted, graph = emitted_by_hand(f"    if ({guard}) bulk(1);\n", ops, mixed_launch(8))
    emitted.ops[0].variants  # both classes call it here
    with pytest.raises((LaunchError, BuildError), match=f"{problem}|undefined: bulk"):
        run(emitted, graph, arrays(ops))


def test_an_op_runs_once_per_core() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8)]
    emitted, graph = emitted_by_hand("    bulk(1);\n    bulk(1);\n", ops, vector_launch(8))
    with pytest.raises(LaunchError, match="runs op 'op0' twice"):
        run(emitted, graph, arrays(ops))


def test_a_call_with_a_wrong_slot_is_refused() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8)]
    emitted, graph = emitted_by_hand("    bulk(2);\n", ops, vector_launch(8))
    with pytest.raises(LaunchError, match=r"calls bulk with first slot 2, which is the first of no op"):
        run(emitted, graph, arrays(ops))


def test_copies_of_one_function_are_told_apart() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8, ("bulk", "bulk_split1"))]
    body = "    if (get_coreid() % 2) bulk_split1(1); else bulk(1);\n    pipe_barrier(PIPE_ALL);\n"
    emitted, graph = emitted_by_hand(body, ops, vector_launch(8))
    outcome = run(emitted, graph, arrays(ops))
    assert {s.core: s.detail for s in outcome.steps if s.what is TracePoint.OP_BEGIN} == {c: c % 2 for c in range(8)}


def test_a_preload_names_its_function() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8)]
    body = "    preload((const void*)bulk, 2);\n    bulk(1);\n    pipe_barrier(PIPE_ALL);\n"
    emitted, graph = emitted_by_hand(body, ops, vector_launch(8))
    outcome = run(emitted, graph, arrays(ops))
    preloads = [s for s in outcome.steps if s.what is TracePoint.PRELOAD]
    assert {(outcome.preloads[s.detail], s.value) for s in preloads} == {("bulk", 2)}


def test_a_function_nobody_defines_is_a_build_error() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 8)]
    emitted, graph = emitted_by_hand("    extern void other(uint64_t);\n    other(1);\n", ops, vector_launch(8))
    with pytest.raises(BuildError, match="other"):
        run(emitted, graph, arrays(ops))


def test_an_exception_of_a_sub_kernel_arrives() -> None:
    ops = [HandOp("throws", ("a", "b"), AIV, 8)]
    emitted, graph = emitted_by_hand("    throws(1);\n", ops, vector_launch(8))
    with pytest.raises(LaunchError, match=r"in op 'op0'.*: a sub-kernel threw: no more"):
        run(emitted, graph, arrays(ops))


def test_a_loop_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.targets.ascend.emulator.launch.STALL_LIMIT", 100_000)
    ops = [HandOp("endless", ("a", "b"), AIV, 1)]
    emitted, graph = emitted_by_hand("    endless(1);\n", ops, vector_launch(1))
    with pytest.raises(LaunchError, match=r"in op 'op0'.*: no progress in the last \d+ steps"):
        run(emitted, graph, arrays(ops))


def test_ctrl_c_stops_a_loop_without_end() -> None:
    """In a process of its own: a signal that comes too late would end whoever runs the tests."""
    script = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
from superkernel.errors import LaunchError
from superkernel.targets.ascend.emulator import launch
from targets.ascend.emulator.hand import *
ops = [HandOp("endless", ("a", "b"), KernelType.AIV_ONLY, 1)]
emitted, graph = emitted_by_hand("    endless(1);\\n", ops, vector_launch(1))
def go():
    a = numbers(1)
    run(emitted, graph, {"a": a, "b": a.copy()})
launch.STALL_LIMIT = 1000
try:
    go()  # compiled and loaded from here on
except LaunchError:
    print("stalled")
launch.STALL_LIMIT = 2**60
try:
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    go()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = _in_process(script)
    assert (done.returncode, done.stdout.split()) == (0, ["stalled", "interrupted"]), done.stderr


def test_ctrl_c_stops_a_wait_for_the_host() -> None:
    script = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import superkernel as sk
from targets.ascend.emulator.hand import KERNELS, numbers
params = ["in:x:int32[128]", "out:y:int32[128]"]
kernel = sk.SubKernel.from_source(KERNELS, "bulk", block_dim=4, params=params, core="vector")
k = sk.compile([sk.Op(kernel, ["a", "b"]), sk.Op(kernel, ["b", "c"], recv=["go"])], target="ascend")
event = sk.Event("go")
event.set()
k.emulate({"a": numbers(4)}, events={"go": event})  # compiled and loaded from here on
print("ran")
try:
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    k.emulate({"a": numbers(4)}, events={"go": event})
except KeyboardInterrupt:
    print("interrupted")
"""
    done = _in_process(script)
    assert (done.returncode, done.stdout.split()) == (0, ["ran", "interrupted"]), done.stderr


def test_a_core_that_polls_in_vain_is_a_deadlock() -> None:
    ops = [HandOp("bulk", ("a", "b"), AIV, 2)]
    body = """
    uint64_t* word = (uint64_t*)slot(1);
    do {
        dcci(word, SINGLE_CACHE_LINE, CACHELINE_OUT);
    } while (sk_load(word) != 12345);
"""
    emitted, graph = emitted_by_hand(body, ops, vector_launch(2))
    with pytest.raises(LaunchError, match=r"deadlock.*\n *2 poll buffer 'a' and see \d+, before its first op"):
        run(emitted, graph, arrays(ops))


def test_a_hang_without_steps_ends_the_process_with_a_report() -> None:
    """Such a sub-kernel cannot be stopped: status 70 under debug-watchdog-action=exit, as on the other targets."""
    script = """
import dataclasses
from targets.ascend.emulator.hand import *
ops = [HandOp("hangs", ("a", "b"), KernelType.AIV_ONLY, 2)]
emitted, graph = emitted_by_hand("    hangs(1);\\n", ops, vector_launch(2))
emitted = dataclasses.replace(emitted, watchdog_exits=True)
a = numbers(2)
run(emitted, graph, {"a": a, "b": a.copy()})
"""
    done = _in_process(script)
    assert done.returncode == 70, done.stderr
    assert "makes no progress: vector core 0 of block 0, in op 'op0'" in done.stderr


def _in_process(script: str) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parents[3]
    paths = os.pathsep.join([str(tests), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_the_same_seed_gives_the_same_run() -> None:
    ops = [HandOp("early", ("a", "b"), AIV, 8), HandOp("meeting", ("b", "c", "d"), AIV, 8)]
    body = """
    sk_call_context(0, -1, 0, 0);
    early(1);
    pipe_barrier(PIPE_ALL);
    arrive(14);
    wait_flag_dev(14);
    sk_call_context(0, -1, 0, 0);
    meeting(3);
    pipe_barrier(PIPE_ALL);
"""
    emitted, graph = emitted_by_hand(body, ops, vector_launch(8))
    for seed in (0, 1, 2, 3, 4):
        first, second = (run(emitted, graph, arrays(ops), seed) for _ in range(2))
        assert [(s.core, s.what, s.time) for s in first.steps] == [(s.core, s.what, s.time) for s in second.steps]
    orders = {tuple((s.core, s.what) for s in run(emitted, graph, arrays(ops), seed).steps) for seed in range(1, 9)}
    assert len(orders) == 8
