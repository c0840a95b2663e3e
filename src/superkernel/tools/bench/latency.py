"""bench.latency: calls in, the percentiles of their times out; in turns, at a rate, beside busy processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .call_rate import Times, python_calls_at_rate
from .measure import Latency, Timing, ratio_by_round

SETTLE_S = 0.2  # before a runner's calls: threads of the runner before it spin for up to 0.1 s, then they sleep
LEAD = 20  # calls before those that are timed

Key = TypeVar("Key")


@dataclass(frozen=True)
class TimedRunner:
    """A way to run a model with so many threads. `enter` prepares the process for its calls, `leave` ends that."""

    name: str
    threads: int
    call: Callable[[], object]
    enter: Callable[[], None] = lambda: None
    leave: Callable[[], None] = lambda: None
    at_rate: Callable[[int, float, float], Times] | None = None  # calls, rate, seconds; None: `call` is called

    def times_at_rate(self, calls: int, rate: float, seconds: float) -> Times:
        if self.at_rate is not None:
            return self.at_rate(calls, rate, seconds)
        return python_calls_at_rate(self.call, calls, rate, seconds)


def latency_of(workload: str, condition: str, runner: TimedRunner, times: Times) -> Latency:
    p50, p99 = (float(value) for value in np.percentile(times, (50, 99)))
    return Latency(workload, condition, runner.name, runner.threads, len(times), p50, p99, float(times.max()))


def timing_of(runner: str, times: Times) -> Timing:
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return Timing(runner, median, low, high)


def times_in_turns(
    runners: Mapping[str, TimedRunner],
    calls: int,
    rounds: int,
    rate: float | None = None,
    seconds: float = math.inf,
    settle: float = SETTLE_S,
) -> dict[str, Times]:
    """The times of all rounds together; see rounds_in_turns."""
    return together(rounds_in_turns(runners, calls, rounds, rate, seconds, settle=settle))


def together(rounds: Mapping[Key, Sequence[Times]]) -> dict[Key, Times]:
    return {name: np.concatenate(parts) for name, parts in rounds.items()}


def rounds_in_turns(
    runners: Mapping[Key, TimedRunner],
    calls: int,
    rounds: int,
    rate: float | None = None,
    seconds: float = math.inf,
    unlimited: Collection[Key] = (),
    settle: float = SETTLE_S,
) -> dict[Key, list[Times]]:
    """Every runner calls `calls` / `rounds` times a round, in another order each round; `rate`: calls a second.

    A runner that needs more than `seconds` for all makes fewer calls, except those that are `unlimited`.
    """
    taken: dict[Key, list[Times]] = {key: [] for key in runners}
    order = list(runners)
    for index in range(rounds):
        for key in order[index % len(order) :] + order[: index % len(order)]:
            runner = runners[key]
            runner.enter()
            time.sleep(settle)
            for _ in range(LEAD):
                runner.call()
            limit = math.inf if key in unlimited else seconds / rounds
            count = max(1, calls // rounds)
            taken[key].append(
                times_of_calls(runner.call, count, limit) if rate is None else runner.times_at_rate(count, rate, limit)
            )
            runner.leave()
    return taken


def ratio_of_rounds(times: Sequence[Times], others: Sequence[Times]) -> float:
    """The median of the ratios of each round's medians: the machine's speed affects both sides of a round."""
    return ratio_by_round([float(np.median(part)) for part in times], [float(np.median(part)) for part in others])


def tail_of_rounds(rounds: Sequence[Times]) -> float:
    """The median of the rounds' p99 to p50: a round in which the machine was taken away does not decide."""
    return float(np.median([np.percentile(part, 99) / np.median(part) for part in rounds]))


def times_of_calls(call: Callable[[], object], calls: int, seconds: float = math.inf) -> Times:
    """Microseconds of each call. No call begins after so many seconds, except the first."""
    times = np.empty(calls)
    end = time.perf_counter() + seconds
    for index in range(calls):
        begin = time.perf_counter_ns()
        call()
        times[index] = (time.perf_counter_ns() - begin) / 1e3
        if time.perf_counter() >= end:
            return times[: index + 1]
    return times
