"""bench.loaded: small models on a machine that others keep busy: two busy processes for every core."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import first_call
from .measure import Comparison, Figure, Result, measure
from .peers import CORES, EAGER, INDUCTOR, OURS, describe_segments, prepare, suite
from .workloads import Workload, control_policy, decode_step, four_blocks, recommender

RUNNERS = (OURS, EAGER, INDUCTOR)
BUDGET_S = 0.1  # of calls in a row: many time slices of the scheduler
LIMIT = 1.1


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 9 if quick else 31
    with suite("loaded", quick, cores) as (result, _):
        for workload in (control_policy(), recommender(), four_blocks(1), decode_step(288)):
            compare(result, workload, rounds)
    return result


def compare(result: Result, workload: Workload, rounds: int) -> None:
    """Compiled and checked first, then timed in alternating order beside the busy processes."""
    expected = workload.model(*workload.inputs)
    cases: dict[str, Callable[[], object]] = {}
    for runner in RUNNERS:
        call, report = prepare(runner, workload.model, workload.inputs)
        result.checks[f"{workload.name}: {runner.name}"] = first_call.close(call(), expected, workload.tolerance)
        if runner is OURS:
            result.notes.append(f"{workload.name}: {describe_segments(report)}")
        cases[runner.name] = call
    with busy_processes(2 * result.cores):
        ours, *peers = measure(cases, rounds, budget_s=BUDGET_S, lead=1).values()
        result.checks[f"{workload.name}: under load"] = first_call.close(
            cases[OURS.name](), expected, workload.tolerance
        )
    compared = Comparison(workload.name, ours, tuple(peers))
    result.comparisons.append(compared)
    result.figures.append(Figure(f"{workload.name}: our time to the best peer's", 1 / compared.ratio, LIMIT, False))


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
