"""bench.compare_peers: a workload in, times of our back end and of every peer out; each result is checked first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...frontend.report import CompileReport
from . import first_call
from .bandwidth import reader
from .measure import Comparison, Result, describe_machine, measure
from .peers import EAGER, OURS, PEERS, TUNED, UNFUSED, Runner, fresh_caches, prepare, threads
from .workloads import Workload

CORES = 2  # the default, for which the figures are promised
BURST_S = 0.05  # of calls in a row, as in text generation: each call finds the caches as the last one left them
FLOOR = "reading weights and caches alone"


@contextmanager
def suite(name: str, quick: bool, cores: int = CORES) -> Iterator[tuple[Result, tuple[Runner, ...]]]:
    """A result to fill in, and the peers; `cores` threads for each, no gradients, empty caches."""
    peers = tuple(peer for peer in PEERS if not (quick and peer is TUNED))
    result = Result(name, describe_machine(cores))
    result.notes += [f"{runner.name}: {runner.what}" for runner in (OURS, UNFUSED, *peers)]
    if quick:
        result.notes.append("quick: without max-autotune, and fewer cases and rounds")
    if (load := os.getloadavg()[0]) > 0.5:
        result.notes.append(
            f"the load was {load:.1f} when it began: if other processes made it, times of several threads mean little"
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
            result.notes.append(f"{workload.name}: {describe_segments(report)}")
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


def describe_segments(report: CompileReport) -> str:
    segments = [segment for scope in report.scopes for segment in scope.segments]
    fused = "; ".join(f"segment {i}: ops {len(s.ops)}, {s.launches}" for i, s in enumerate(segments, 1))
    unfusible = [item.op for scope in report.scopes for item in scope.unfusible]
    return (fused or "nothing fused") + (f"; left to torch: {', '.join(unfusible)}" if unfusible else "")
