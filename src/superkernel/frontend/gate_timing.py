"""frontend.gate_timing: functions that compute the same -> their times in alternating order, and which is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from ..runtime.turns import MARGIN

CROWDED_MARGIN = 1.5  # where other programs keep the machine busy, only a difference as clear as this counts
LEAST_GAIN_NS = 10_000  # a smaller difference per call is not worth another compilation
_FEWEST, _MOST = 3, 15  # samples of each function
_SAMPLING_NS = 300_000_000  # how long sampling may take, where this allows the fewest samples
_CROWDED_SAMPLING_NS = 2_000_000_000  # the same on a busy machine, where few samples are undisturbed
_REPEATED_BELOW_NS = 2_000_000  # a function this short runs twice per sample: the first run fills the caches

Clock = Callable[[], int]  # nanoseconds
Times = Mapping[str, Sequence[int]]  # nanoseconds by function, one per sample


def alternate(
    functions: Mapping[str, Callable[[], object]],
    clock: Clock,
    prepare: Callable[[], object] = lambda: None,
    crowded: bool = False,
) -> dict[str, list[int]]:
    """Times of the functions, sampled in turns. `prepare` runs before each call and is not timed.

    The first call of each function warms it up and does not count.
    """

    def timed(function: Callable[[], object]) -> int:
        prepare()
        begin = clock()
        function()
        return clock() - begin

    runs = {name: 2 if timed(function) < _REPEATED_BELOW_NS else 1 for name, function in functions.items()}
    limit, spent = _CROWDED_SAMPLING_NS if crowded else _SAMPLING_NS, 0
    times: dict[str, list[int]] = {name: [] for name in functions}
    for sample in range(_MOST):
        if sample >= _FEWEST and spent >= limit:
            break
        for name, function in functions.items():
            durations = [timed(function) for _ in range(runs[name])]
            spent += sum(durations)
            times[name].append(durations[-1])
    return times


def least_gain(time: float, crowded: bool) -> float:
    """How much faster than this time an alternative must be: beyond noise, and enough to matter."""
    return max(LEAST_GAIN_NS, time - time / (CROWDED_MARGIN if crowded else MARGIN))


def is_faster(candidate: Sequence[int], reference: Sequence[int], crowded: bool) -> bool:
    """Whether the candidate saves that much, by its median and by its least time.

    On a busy machine most runs are disturbed: there the least time alone decides.
    """
    return all(
        statistic(reference) - statistic(candidate) >= least_gain(statistic(reference), crowded)
        for statistic in ((min,) if crowded else (median, min))
    )


def microseconds(times: Times, crowded: bool) -> dict[str, float]:
    """The times to show: medians, on a busy machine least times."""
    return {name: (min if crowded else median)(samples) / 1000 for name, samples in times.items() if samples}
