"""bench.torch_models: compiled models beside eager torch and Inductor: host cost, call times, time to compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..buffers import aligned_empty
from ..driver import compile
from ..errors import BuildError
from ..frontend.report import Report
from ..kernel import SuperKernel
from ..subkernel import Op, SubKernel
from ..targets.cpu.run import CpuExecutable
from . import first_call
from .boundary import KERNELS, load_clock
from .measure import Comparison, Figure, Result, burst, describe_machine, measure, summary
from .peers import EAGER, INDUCTOR, OURS, PEERS, TUNED, Runner, caches_in, fresh_caches, prepare, threads
from .workloads import Workload, eight_inputs, four_blocks, others

CORES = 2
ROWS = (1, 2, 4, 8)
BURST = 50  # calls, of about a millisecond: shorter than what a scheduler gives to others
FLOOR = "reading the weights alone"


def run(quick: bool = False) -> Result:
    rounds = 15 if quick else 61
    peers = tuple(peer for peer in PEERS if not (quick and peer is TUNED))
    result = Result("torch", describe_machine(CORES))
    result.notes += [f"{runner.name}: {runner.what}" for runner in (OURS, *peers)]
    if quick:
        result.notes.append("quick: without max-autotune, and fewer rows and rounds")
    if (load := os.getloadavg()[0]) > 0.5:
        result.notes.append(f"other processes were running (load {load:.1f}): times of two threads mean little")
    torch.manual_seed(0)
    with threads(CORES), torch.no_grad(), fresh_caches():
        host_cost(result, 4 * rounds)
        for rows in ROWS[::2] if quick else ROWS:
            compared = compare(result, four_blocks(rows), peers, rounds)
            result.figures.append(Figure(f"{compared.name}: the best peer's time to ours", compared.ratio, 2, True))
        for workload in others():
            compare(result, workload, peers, rounds)
    first_calls(result, 1 if quick else 3)
    return result


def host_cost(result: Result, rounds: int) -> None:
    """What a call costs beyond Dynamo's guards: one function compiled by us, by Inductor, and by next to nothing."""
    workload = eight_inputs()
    expected = workload.model(*workload.inputs)
    always_fused = Runner(OURS.name, OURS.what, OURS.backend, {"profit_gate": 0})
    guards_only = Runner("dynamo", "a back end whose function returns a tensor that is there", _returns_a_tensor)
    ours, report = prepare(always_fused, workload.model, workload.inputs)
    stock, _ = prepare(INDUCTOR, workload.model, workload.inputs)
    guards, _ = prepare(guards_only, workload.model, workload.inputs)
    result.checks[f"{workload.name}: superkernel"] = first_call.close(ours(), expected)
    result.checks[f"{workload.name}: inductor"] = first_call.close(stock(), expected)
    result.checks[f"{workload.name}: one super kernel"] = _fused_segments(report) == 1
    if _fused_segments(report) != 1:
        return
    kernel = _kernel_of(report)
    executable = kernel.executable
    assert isinstance(executable, CpuExecutable)
    buffers = {name: np.ones(64, np.float32) for name in kernel.graph.buffers}
    values, sizes = kernel.blank()
    for place, array in enumerate(buffers.values()):
        values[place], sizes[place] = array.ctypes.data, array.nbytes
    clock = load_clock()
    cases = {
        "a call with 8 inputs, guards only": lambda: burst(guards, BURST),
        "the same with one super kernel": lambda: burst(ours, BURST),
        "the same with Inductor": lambda: burst(stock, BURST),
        "the super kernel alone, from Python": lambda: burst(lambda: kernel.launch_values(values, sizes), BURST),
        "the super kernel alone, from C": lambda: executable.repeat(buffers, clock.time_launches, BURST),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for i in range(rounds):
        for name in order[i % len(order) :] + order[: i % len(order)]:
            taken[name].append(cases[name]())
    dynamo, called, stock_called, _, launched = taken.values()
    beyond = [a - b - c for a, b, c in zip(called, dynamo, launched, strict=True)]
    stock_beyond = [a - b for a, b in zip(stock_called, dynamo, strict=True)]
    result.timings += [summary(name, times) for name, times in taken.items()]
    result.timings.append(summary("beyond guards and launch, superkernel", beyond))
    result.timings.append(summary("beyond guards, Inductor (its kernel included)", stock_beyond))
    result.figures.append(Figure("host cost of a call beyond Dynamo", summary("", beyond).median, 15, False, "us"))


def _returns_a_tensor(module: Any, inputs: Sequence[Any]) -> Any:
    results = (torch.empty(64),)
    return lambda *args: results


def compare(result: Result, workload: Workload, peers: Sequence[Runner], rounds: int) -> Comparison:
    """All runners of one workload, checked, then timed in alternating order."""
    expected = workload.model(*workload.inputs)
    cases = {}
    for runner in (OURS, *peers):
        call, report = prepare(runner, workload.model, workload.inputs)
        if runner is not EAGER:
            result.checks[f"{workload.name}: {runner.name}"] = first_call.close(call(), expected)
        if runner is OURS:
            result.notes.append(f"{workload.name}: {_what_became_of_it(report)}")
        cases[runner.name] = call
    reader = _reader(workload.weight_bytes) if workload.weight_bytes else None
    if reader is not None:
        kernel, buffers = reader
        cases[FLOOR] = lambda: kernel(buffers)
    timings = measure(cases, rounds, budget_s=0.005)
    floor = timings.pop(FLOOR, None)
    ours, *theirs = timings.values()
    compared = Comparison(workload.name, ours, tuple(theirs), floor)
    result.comparisons.append(compared)
    return compared


def _reader(nbytes: int) -> tuple[SuperKernel, dict[str, Any]]:
    """A super kernel that reads as many bytes with all cores, and does nothing with them."""
    params = ["in:x:float32", "scalar:n:int64", "out:sums:float32"]
    read = SubKernel.from_source(KERNELS, "read_all", block_dim=CORES, params=params)
    weights, sums = aligned_empty((nbytes // 4,), "float32"), aligned_empty((128 * CORES,), "float32")
    weights[:] = 1
    kernel = compile([Op(read, ["x", "n", "sums"])], "read_all", cores=CORES)
    return kernel, {"x": weights, "n": nbytes // 4, "sums": sums}


def _fused_segments(report: Report) -> int:
    return sum(segment.fused for scope in report.scopes for segment in scope.segments)


def _kernel_of(report: Report) -> SuperKernel:
    kernel = next(segment.kernel for scope in report.scopes for segment in scope.segments if segment.fused)
    assert isinstance(kernel, SuperKernel)
    return kernel


def _what_became_of_it(report: Report) -> str:
    segments = [segment for scope in report.scopes for segment in scope.segments]
    return (
        "; ".join(f"segment {i}: ops {len(s.ops)}, {s.launches}" for i, s in enumerate(segments, 1)) or "nothing fused"
    )


def first_calls(result: Result, rounds: int) -> None:
    """The four blocks in fresh processes: first with empty caches, then with what those left."""
    runners = (OURS.backend, INDUCTOR.backend)
    taken: dict[tuple[str, str], list[float]] = {}
    for i in range(rounds):
        for backend in runners if i % 2 == 0 else runners[::-1]:
            with tempfile.TemporaryDirectory(prefix="superkernel-bench-", ignore_cleanup_errors=True) as folder:
                for state in ("cold", "warm"):
                    told = first_call_of(backend, folder)
                    result.checks[f"first results, {state}: {backend}"] = told["right"]
                    for until in ("first", "settled"):
                        taken.setdefault((state + " " + until, backend), []).append(1e6 * told[until])
    rows = {
        "cold first": "first result, caches empty",
        "cold settled": f"{first_call.CALLS} results, caches empty",
        "warm first": "first result, caches warm",
        "warm settled": f"{first_call.CALLS} results, caches warm",
    }
    made = {}
    for key, name in rows.items():
        ours, stock = (summary(backend, taken[key, backend]) for backend in runners)
        made[key] = Comparison(name, ours, (stock,), unit="s")
    result.comparisons += made.values()
    result.figures.append(
        Figure("compiling the four blocks, to Inductor's time", 1 / made["cold first"].ratio, 1.5, False)
    )
    result.figures.append(Figure("first result with warm caches", made["warm first"].ours.median / 1e6, 3, False, "s"))


def first_call_of(backend: str, folder: str) -> dict[str, Any]:
    """What first_call.py says in a process of its own, whose caches are in `folder`."""
    environment = {**os.environ, **caches_in(folder), "OMP_NUM_THREADS": str(CORES)}
    command = [sys.executable, "-P", str(Path(first_call.__file__)), backend]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BuildError(f"the first call with back end {backend!r} failed", command, ended.stderr[-2000:])
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told
