"""bench.compared: a workload in, its times by us and by every peer out, each result checked before it is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...frontend.report import CompileReport
from ...model.op import Op
from ...model.subkernel import SubKernel
from ...runtime.compile import compile
from ...runtime.super_kernel import SuperKernel
from ...targets.buffers import aligned_empty
from . import first_call
from .boundary import KERNELS
from .measure import Comparison, Result, describe_machine, measure
from .peers import EAGER, OURS, PEERS, TUNED, UNFUSED, Runner, fresh_caches, prepare, threads
from .workloads import Workload

CORES = 2  # unless others are asked for; those of the promised figures
BURST_S = 0.05  # of calls in a row, as a model that generates text makes them: each finds the caches as it left them
FLOOR = "reading weights and caches alone"


@contextmanager
def suite(name: str, quick: bool, cores: int = CORES) -> Iterator[tuple[Result, tuple[Runner, ...]]]:
    """A result to fill in, and the peers; so many threads for each, no gradients, empty caches."""
    peers = tuple(peer for peer in PEERS if not (quick and peer is TUNED))
    result = Result(name, describe_machine(cores))
    result.notes += [f"{runner.name}: {runner.what}" for runner in (OURS, UNFUSED, *peers)]
    if quick:
        result.notes.append("quick: without max-autotune, and fewer cases and rounds")
    if (load := os.getloadavg()[0]) > 0.5:
        result.notes.append(
            f"the load was {load:.1f} when it began: if others made it, times of several threads mean little"
        )
    torch.manual_seed(0)
    with threads(cores), torch.no_grad(), fresh_caches():
        yield result, peers


def compare(result: Result, workload: Workload, peers: Sequence[Runner], rounds: int) -> Comparison:
    """All runners of one workload, checked, then timed in alternating order."""
    expected = workload.model(*workload.inputs)
    cases: dict[str, Callable[[], object]] = {}
    for runner in (OURS, UNFUSED, *peers):
        call, report = prepare(runner, workload.model, workload.inputs)
        if runner is not EAGER:
            result.checks[f"{workload.name}: {runner.name}"] = first_call.close(call(), expected, workload.tolerance)
        if runner is OURS:
            result.notes.append(f"{workload.name}: {what_became_of_it(report)}")
        cases[runner.name] = call
    if workload.read_bytes:
        kernel, buffers = reader(workload.read_bytes, result.cores)
        cases[FLOOR] = lambda: kernel(buffers)
    timings = measure(cases, rounds, budget_s=BURST_S, lead=1)
    floor = timings.pop(FLOOR, None)
    ours, unfused, *theirs = timings.values()
    compared = Comparison(workload.name, ours, tuple(theirs), floor, unfused=unfused)
    result.comparisons.append(compared)
    result.figures.append(compared.fusion)
    return compared


def reader(nbytes: int, cores: int) -> tuple[SuperKernel, dict[str, Any]]:
    """A super kernel that reads as many bytes with all cores, and does nothing with them."""
    params = ["in:x:float32", "scalar:n:int64", "out:sums:float32"]
    read = SubKernel.from_source(KERNELS, "read_all", block_dim=cores, params=params)
    weights, sums = aligned_empty((nbytes // 4,), "float32"), aligned_empty((128 * cores,), "float32")
    weights[:] = 1
    kernel = compile([Op(read, ["x", "n", "sums"])], "read_all", cores=cores)
    return kernel, {"x": weights, "n": nbytes // 4, "sums": sums}


def what_became_of_it(report: CompileReport) -> str:
    segments = [segment for scope in report.scopes for segment in scope.segments]
    told = "; ".join(f"segment {i}: ops {len(s.ops)}, {s.launches}" for i, s in enumerate(segments, 1))
    unfusible = [item.op for scope in report.scopes for item in scope.unfusible]
    return (told or "nothing fused") + (f"; left to torch: {', '.join(unfusible)}" if unfusible else "")
