"""bench.package: models compiled ahead of time beside ONNX Runtime, OpenVINO, AOTInductor, torch.compile and eager."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import first_call
from .call_rate import Times
from .latency import (
    SETTLE_S,
    TimedRunner,
    latency_of,
    ratio_of_rounds,
    rounds_in_turns,
    tail_of_rounds,
    times_in_turns,
    timing_of,
    together,
)
from .loaded import busy_processes
from .measure import Comparison, Figure, Result
from .package_costs import cost_of_python, costs_of_loading
from .package_peers import (
    AHEAD_OF_TIME,
    AOT,
    AOT_FROZEN,
    NEEDED,
    ONNX,
    PACKAGE,
    READING,
    CalledFrom,
    Prepared,
    TimedPackage,
    calls_of_the_machine,
    missing,
    prepare_ahead_of_time,
    prepare_package,
    prepare_peers,
    tensors_of,
)
from .package_workloads import PackageWorkload, package_workloads
from .peers import CORES, OURS, prepare, suite

BACK_TO_BACK, BUSY = "back to back", "two busy processes beside"
RATE = 1000.0
TAIL_LIMIT = 2.0  # of an idle machine: one on which the loop that only reads keeps it as well
ROUNDS_AT_RATE, MOST_ROUNDS_AT_RATE = 6, 24


@dataclass(frozen=True)
class Effort:
    """How long a workload is measured. Seconds are those of one runner; slow ones make fewer calls."""

    calls: int = 10_000
    seconds: float = 3.0
    calls_at_rate: int = 3000
    seconds_at_rate: float = 4.0
    seconds_beside_others: float = 3.0
    all_of_ours: bool = True  # our calls are not limited by seconds
    frozen: bool = True  # AOTInductor also with freezing
    rounds: int = 10
    settle: float = SETTLE_S
    peers_at_rate: bool = True
    most_rounds: int = MOST_ROUNDS_AT_RATE  # at a rate, until the machine was idle in some


FULL = Effort()  # all workloads take less than half an hour on two cores
QUICK = Effort(calls=500, calls_at_rate=100, frozen=False, most_rounds=ROUNDS_AT_RATE)


def run(quick: bool = False, cores: int = CORES) -> Result:
    with suite("package", quick, cores) as (result, _), tempfile.TemporaryDirectory() as folder:
        result.notes = [note for note in result.notes if note.startswith("the load")]
        if quick:
            result.notes.append("quick: one workload, fewer calls, AOTInductor without freezing")
        result.notes += missing_peers()
        for index, item in enumerate(package_workloads(quick)):
            place = Path(folder, str(index))
            place.mkdir()
            compare(result, item, place, QUICK if quick else FULL)
            if index == 0:
                result.figures.append(cost_of_python(place / "model.sk", item.workload))
            torch._dynamo.reset()
        if not quick:
            result.figures += costs_of_loading(Path(folder))
    return result


def missing_peers() -> list[str]:
    return [f"{peer} was not measured: not installed: {', '.join(missing(peer))}" for peer in NEEDED if missing(peer)]


def compare(
    result: Result, item: PackageWorkload, folder: Path, effort: Effort, peers: Sequence[Prepared] | None = None
) -> None:
    """Every runner is checked and timed in turns, with one thread and with all; the better counts. None: all peers."""
    name, counts = item.workload.name, sorted({1, result.cores})
    torch.set_num_threads(result.cores)  # an export divides kernels for as many, and the runner before has left its own
    variants = [prepare_package(item.workload, folder / "model.sk", count) for count in counts]
    if peers is None:
        peers = [prepared for count in counts for prepared in prepare_peers(item, folder, count)]
    variants += peers
    if not any(prepared.runner.name == AOT for prepared in variants):
        result.notes.append(f"{name}: {AOT} was not measured: torch's loaders end the process on this machine")
    elif effort.frozen:
        frozen = [prepare_ahead_of_time(item.workload, folder, count, frozen=True) for count in counts]
        variants += [prepared for prepared in frozen if prepared]
    check(result, item, variants)
    runners = {(prepared.runner.name, prepared.runner.threads): prepared.runner for prepared in variants}
    measured = rounds_in_turns(
        runners,
        effort.calls,
        effort.rounds,
        seconds=effort.seconds,
        unlimited=[key for key in runners if effort.all_of_ours and key[0] == PACKAGE],
        settle=effort.settle,
    )
    best = best_threads(measured)
    chosen = {runner: runners[runner, threads] for runner, threads in best.items()}
    rounds = {runner: measured[runner, threads] for runner, threads in best.items()}
    times = together(rounds)
    record(result, name, BACK_TO_BACK, chosen, times)
    ours, *theirs = (timing_of(runner, taken) for runner, taken in times.items())
    compared = Comparison(name, ours, tuple(theirs))
    result.comparisons.append(compared)
    result.figures += ratios(item, {peer: ratio_of_rounds(rounds[peer], rounds[PACKAGE]) for peer in rounds})

    compare_at_rates(result, item, folder, chosen, {timing.name: timing.median for timing in (ours, *theirs)}, effort)
    with busy_processes(2):
        rounds_beside = min(4, effort.rounds)
        seconds = effort.seconds_beside_others
        times = times_in_turns(chosen, effort.calls // 5, rounds_beside, seconds=seconds, settle=effort.settle)
        record(result, name, BUSY, chosen, times)


def compare_at_rates(
    result: Result,
    item: PackageWorkload,
    folder: Path,
    chosen: Mapping[str, TimedRunner],
    medians: Mapping[str, float],
    effort: Effort,
) -> None:
    """Each runner at the promised rate, or at one that leaves it idle gaps; our package from Python, and from C.

    Beside them calls without a model: a machine that was idle for a millisecond adds to any call.
    """
    workload, model = item.workload, folder / "model.sk"
    opened = [TimedPackage(workload, model, chosen[PACKAGE].threads, "balanced", CalledFrom.C)]
    opened += [TimedPackage(workload, model, result.cores, "spin", called_from) for called_from in CalledFrom]
    ours = {PACKAGE: chosen[PACKAGE], **{package.runner.name: package.runner for package in opened}}
    runners = {**ours, **{runner.name: runner for runner in calls_of_the_machine()}}
    runners |= chosen if effort.peers_at_rate else {}
    by_rate: dict[float, dict[str, TimedRunner]] = {}
    for name, runner in runners.items():
        median = medians.get(name, medians[PACKAGE] if name in ours else 0.0)
        by_rate.setdefault(affordable_rate(median), {})[name] = runner
    for rate, group in sorted(by_rate.items(), reverse=True):
        rounds = rounds_in_turns(
            group, effort.calls_at_rate, ROUNDS_AT_RATE, rate, effort.seconds_at_rate, settle=effort.settle
        )
        if rate == RATE and not group.keys().isdisjoint(ours):
            result.figures += tails_on_idle_machine(result, workload.name, ours, group, rounds, effort)
        record(result, workload.name, f"{rate:g} calls a second", group, together(rounds))
    expected = tensors_of(workload.model(*workload.inputs))
    for package in opened:
        result.checks[f"{workload.name}: {package.runner.name}, after calls at a rate"] = all(
            first_call.close(value, right, workload.tolerance)
            for value, right in zip(package.results, expected, strict=True)
        )


def tails_on_idle_machine(
    result: Result,
    workload: str,
    ours: Collection[str],
    runners: Mapping[str, TimedRunner],
    rounds: dict[str, list[Times]],
    effort: Effort,
) -> list[Figure]:
    """Of the rounds in which the machine was idle; more are made and added, without peers, until there are enough."""
    repeated = {name: runners[name] for name in (*ours, READING) if name in runners}
    while len(idle := idle_rounds(rounds[READING])) < ROUNDS_AT_RATE and len(rounds[READING]) < effort.most_rounds:
        share = effort.calls_at_rate // ROUNDS_AT_RATE, effort.seconds_at_rate / ROUNDS_AT_RATE
        more = rounds_in_turns(repeated, share[0], 1, RATE, share[1], settle=effort.settle)
        for name, times in more.items():
            rounds[name] += times
        repeated = dict([*list(repeated.items())[1:], next(iter(repeated.items()))])  # another order
    tried = len(rounds[READING])
    result.notes.append(
        f"{workload}: in {len(idle)} of {tried} rounds at {RATE:g} calls a second the machine was idle"
        + ("" if idle else "; the tails are those of all rounds")
    )
    counted = idle or range(tried)
    return [
        Figure(
            f"{workload}: p99 to p50 at {RATE:g} calls a second, {name}",
            tail_of_rounds([rounds[name][index] for index in counted]),
            TAIL_LIMIT,
            False,
        )
        for name in ours
        if name in runners
    ]


def idle_rounds(reading: Sequence[Times]) -> list[int]:
    """Those in which a loop without a model, which reads as much as a small one, has a tail within the limit."""
    return [index for index, times in enumerate(reading) if tail_of_rounds([times]) <= TAIL_LIMIT]


def check(result: Result, item: PackageWorkload, variants: Sequence[Prepared]) -> None:
    """Against eager; and our package against the bits of the model compiled by our back end."""
    workload = item.workload
    expected = tensors_of(workload.model(*workload.inputs))
    same_bits: list[torch.Tensor] = []
    if any(prepared.runner.name == PACKAGE for prepared in variants):
        torch.set_num_threads(result.cores)
        compiled, _ = prepare(OURS, workload.model, workload.inputs)
        same_bits = tensors_of(compiled())
    for prepared in variants:
        runner = prepared.runner
        found = list(prepared.results())[: len(expected)]
        label = f"{workload.name}: {runner.name}, threads {runner.threads}"
        result.checks[label] = len(found) == len(expected) and all(
            first_call.close(value, right, workload.tolerance) for value, right in zip(found, expected, strict=True)
        )
        if runner.name == PACKAGE:
            result.checks[f"{label}: the bits of torch.compile(backend='superkernel')"] = all(
                torch.equal(value, right) for value, right in zip(found, same_bits, strict=True)
            )


def best_threads(measured: Mapping[tuple[str, int], Sequence[Times]]) -> dict[str, int]:
    """By the name of a runner, the number of threads with the least median of the rounds' medians."""
    medians = {key: float(np.median([np.median(times) for times in rounds])) for key, rounds in measured.items()}
    best: dict[str, int] = {}
    for name, threads in sorted(medians, key=lambda key: medians[key], reverse=True):
        best[name] = threads
    return {name: best[name] for name, _ in measured}


def record(
    result: Result, workload: str, condition: str, runners: Mapping[str, TimedRunner], times: Mapping[str, Times]
) -> None:
    result.latencies += [latency_of(workload, condition, runners[name], taken) for name, taken in times.items()]


def ratios(item: PackageWorkload, to_ours: Mapping[str, float]) -> list[Figure]:
    """The promised ratios: to the best of those that compile ahead of time; of the convolution net to AOTInductor."""
    ahead = {peer: ratio for peer, ratio in to_ours.items() if peer in AHEAD_OF_TIME}
    name = item.workload.name
    if item.limit is not None:
        best = min(ahead, key=lambda peer: ahead[peer], default=None)
        return [Figure(f"{name}: {best} to ours", ahead[best], item.limit, True)] if best else []
    aot = [ahead[peer] for peer in (AOT, AOT_FROZEN) if peer in ahead]
    figures = [Figure(f"{name}: {AOT} to ours", min(aot), 1.0, True)] if aot else []
    if ONNX in ahead:
        figures.append(Figure(f"{name}: {ONNX} to ours (a goal)", ahead[ONNX], 1.0, True))
    return figures


def affordable_rate(slowest_us: float) -> float:
    """The promised rate, or a round smaller one at which the slowest runner is idle for more than half of the time."""
    rate = RATE
    while rate > 1 and slowest_us * rate > 0.5e6:
        rate /= 10 if rate > 10 else 2
    return rate
