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

from ...errors import BuildError
from ...runtime.super_kernel import SuperKernel
from ...targets.cpu.runtime.launch import CpuLoadedKernel
from . import first_call
from .boundary import load_clock
from .measure import Comparison, Figure, Result, burst, summary
from .peers import CORES, INDUCTOR, OURS, Runner, caches_in, compare, prepare, suite
from .workloads import eight_inputs, four_blocks, others

ROWS = (1, 2, 4, 8)
BURST = 50  # calls, of about a millisecond: shorter than a time slice of the scheduler


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 15 if quick else 61
    with suite("torch", quick, cores) as (result, peers):
        host_cost(result, 4 * rounds)
        for rows in ROWS[::2] if quick else ROWS:
            compared = compare(result, four_blocks(rows), peers, rounds)
            result.figures.append(Figure(f"{compared.name}: the best peer's time to ours", compared.ratio, 2, True))
        for workload in others():
            compare(result, workload, peers, rounds)
    first_calls(result, 1 if quick else 3)
    return result


def host_cost(result: Result, rounds: int) -> None:
    """What a call costs beyond Dynamo's guards: one function compiled by us, by Inductor, by a no-op back end."""
    workload = eight_inputs()
    expected = workload.model(*workload.inputs)
    always_fused = Runner(OURS.name, OURS.what, OURS.backend, {"profit_gate": 0})
    guards_only = Runner("dynamo", "a back end whose function returns a tensor that is there", _returns_a_tensor)
    ours, report = prepare(always_fused, workload.model, workload.inputs)
    stock, _ = prepare(INDUCTOR, workload.model, workload.inputs)
    guards, _ = prepare(guards_only, workload.model, workload.inputs)
    result.checks[f"{workload.name}: superkernel"] = first_call.close(ours(), expected)
    result.checks[f"{workload.name}: inductor"] = first_call.close(stock(), expected)
    fused = [segment for scope in report.scopes for segment in scope.segments if segment.fused]
    result.checks[f"{workload.name}: one super kernel"] = len(fused) == 1
    if len(fused) != 1:
        return
    kernel: SuperKernel = fused[0].kernel
    loaded = kernel.loaded
    assert isinstance(loaded, CpuLoadedKernel)
    buffers = {name: np.ones(64, np.float32) for name in kernel.graph.buffers}
    values, sizes = kernel.argument_arrays()
    for index, array in enumerate(buffers.values()):
        values[index], sizes[index] = array.ctypes.data, array.nbytes
    clock = load_clock()
    cases = {
        "a call with 8 inputs, guards only": lambda: burst(guards, BURST),
        "the same with one super kernel": lambda: burst(ours, BURST),
        "the same with Inductor": lambda: burst(stock, BURST),
        "the super kernel alone, from Python": lambda: burst(lambda: kernel.launch_values(values, sizes), BURST),
        "the super kernel alone, from C": lambda: loaded.repeat(buffers, clock.time_launches, BURST),
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


def first_calls(result: Result, rounds: int) -> None:
    """The four blocks in fresh processes: first with empty caches, then with the caches they filled."""
    runners = (OURS.backend, INDUCTOR.backend)
    taken: dict[tuple[str, str], list[float]] = {}
    for i in range(rounds):
        for backend in runners if i % 2 == 0 else runners[::-1]:
            with tempfile.TemporaryDirectory(prefix="superkernel-bench-", ignore_cleanup_errors=True) as folder:
                for state in ("cold", "warm"):
                    outcome = first_call_of(backend, folder, result.cores)
                    result.checks[f"first results, {state}: {backend}"] = outcome["right"]
                    for until in ("first", "settled"):
                        taken.setdefault((state + " " + until, backend), []).append(1e6 * outcome[until])
    rows = {
        "cold first": "first result, caches empty",
        "cold settled": f"{first_call.CALLS} results, caches empty",
        "warm first": "first result, caches warm",
        "warm settled": f"{first_call.CALLS} results, caches warm",
    }
    compared = {}
    for key, name in rows.items():
        ours, stock = (summary(backend, taken[key, backend]) for backend in runners)
        compared[key] = Comparison(name, ours, (stock,), unit="s")
    result.comparisons += compared.values()
    cold, warm = compared["cold first"], compared["warm first"]
    result.figures.append(Figure("compiling the four blocks, to Inductor's time", 1 / cold.ratio, 1.5, False))
    result.figures.append(Figure("first result with warm caches", warm.ours.median / 1e6, 3, False, "s"))


def first_call_of(backend: str, folder: str, cores: int) -> dict[str, Any]:
    """The output of first_call.py in a new process whose caches are in `folder`."""
    environment = {**os.environ, **caches_in(folder), "OMP_NUM_THREADS": str(cores)}
    command = [sys.executable, "-P", str(Path(first_call.__file__)), backend]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BuildError(f"the first call with back end {backend!r} failed", command, ended.stderr[-2000:])
    outcome: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return outcome
