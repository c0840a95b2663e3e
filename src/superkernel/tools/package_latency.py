"""tools.package_latency: a package -> percentiles of the times of its calls, back to back or at a fixed rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

from ..errors import LaunchError
from ..package.array_values import numpy_dtype
from ..package.library_functions import ArrayType
from ..package.return_structure import flat_results
from .package_run import CallRequest, chosen_entry, read_values
from .timed_run import Array

_SPIN_NS = 200_000  # the end of a gap is waited for without sleeping: a sleep ends late
_PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True)
class PackageLatency:
    """What `superkernel package bench` answers: microseconds per call, seen from Python."""

    name: str
    entry: str
    calls: int
    rate: float | None  # calls per second; None: back to back
    late: int  # calls that did not begin in time: earlier calls or other programs took too long
    percentiles: tuple[tuple[float, float], ...]
    least: float
    largest: float
    mean: float

    def to_dict(self) -> dict[str, Any]:
        times = {f"p{percentile:g}": time for percentile, time in self.percentiles}
        return {
            "ok": True,
            "name": self.name,
            "entry": self.entry,
            "calls": self.calls,
            "rate": self.rate,
            "late": self.late,
            "us": {**times, "min": self.least, "max": self.largest, "mean": self.mean},
            "check": "the last call gave the bits of the first",
        }

    def __str__(self) -> str:
        pace = "back to back" if self.rate is None else f"at {self.rate:g} calls a second"
        shown = "  ".join(f"p{percentile:g} {time:.1f}" for percentile, time in self.percentiles)
        lines = [
            f"{self.name}.{self.entry}: {self.calls} calls {pace}; the last call gave the bits of the first",
            f"  us  {shown}  max {self.largest:.1f}  mean {self.mean:.1f}",
        ]
        if self.late:
            lines.append(
                f"  {self.late} calls began late: earlier calls, or other programs, took longer than the rate allows"
            )
        return "\n".join(lines)


def measure_package(request: CallRequest, calls: int, rate: float | None) -> PackageLatency:
    """Times single calls from Python, after a tenth as many calls that are not counted."""
    with request.load() as model:
        entry = chosen_entry(model, request.entry)
        given = read_values(entry, request.inputs)
        arguments = [given.get(kind.name, example_input(kind)) for kind in entry.inputs]
        first = _results(entry, arguments)
        for _ in range(max(calls // 10, 1)):
            entry(*arguments)
        times, late = _timed(lambda: entry(*arguments), calls, rate)
        if model.states:
            model.reset()
        for before, after in zip(first, _results(entry, arguments), strict=True):
            if before.tobytes() != after.tobytes():
                raise LaunchError(f"entry {entry.name!r} gives other bits with the same inputs: its times mean nothing")
        percentiles = tuple((each, float(np.percentile(times, each))) for each in _PERCENTILES)
        figures = (float(times.min()), float(times.max()), float(times.mean()))
        return PackageLatency(model.description.name, entry.name, calls, rate, late, percentiles, *figures)


def example_input(kind: ArrayType) -> Array:
    """Numbers from a normal distribution; zeros for integers, which may be indices; bfloat16 ones as their bits."""
    dtype = numpy_dtype(kind.dtype)
    if kind.dtype == "bfloat16":
        return np.full(kind.shape, 0x3F80, dtype)
    if dtype.kind != "f":
        return np.zeros(kind.shape, dtype)
    return np.random.default_rng(0).standard_normal(kind.shape).astype(dtype)


def _results(entry: Any, arguments: Sequence[Any]) -> list[Array]:
    return flat_results(entry.description.returns, entry(*arguments))


def _timed(call: Callable[[], Any], calls: int, rate: float | None) -> tuple[Array, int]:
    """Microseconds of each call, and how many began late."""
    times = np.empty(calls)
    period = 0 if rate is None else int(1e9 / rate)
    late = 0
    due = perf_counter_ns()
    for index in range(calls):
        if period:
            late += perf_counter_ns() > due and index > 0
            _wait_until(due)
            due += period
        begin = perf_counter_ns()
        call()
        times[index] = (perf_counter_ns() - begin) / 1e3
    return times, late


def _wait_until(due: int) -> None:
    left = due - perf_counter_ns() - _SPIN_NS
    if left > 0:
        sleep(left / 1e9)
    while perf_counter_ns() < due:
        pass
