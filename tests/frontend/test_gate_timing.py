"""How the profit gate samples alternatives and when one is faster, with a clock that the tests set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from superkernel.frontend.gate_timing import LEAST_GAIN_NS, alternate, is_faster
from superkernel.frontend.part_gate import WITH_LIBRARY_CALLS, decide
from superkernel.frontend.part_verdict import INDUCTOR, PartChoice
from superkernel.frontend.profit_gate import FUSED, ON_ONE_CORE

MS = 1_000_000


class SetClock:
    """Time that passes only while a function runs."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[str] = []

    def __call__(self) -> int:
        return self.now

    def function(self, name: str, *durations: int) -> Callable[[], None]:
        """It takes these times in turn; the last of them ever after."""
        left = list(durations)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_functions_take_turns_and_their_first_runs_do_not_count() -> None:
    clock = SetClock()
    functions = {"a": clock.function("a", 900 * MS, 5 * MS), "b": clock.function("b", 800 * MS, 4 * MS)}
    times = alternate(functions, clock, lambda: clock.calls.append("prepare"))
    assert clock.calls[:6] == ["prepare", "a", "prepare", "b", "prepare", "a"]
    assert times == {"a": [5 * MS] * 15, "b": [4 * MS] * 15}
    assert clock.calls.count("prepare") == len(clock.calls) // 2  # written inputs are restored before each run


def test_a_short_function_runs_twice_per_sample_and_is_sampled_often() -> None:
    clock = SetClock()
    cold_then_warm = [100_000] + [90_000, 10_000] * 15
    times = alternate({"a": clock.function("a", *cold_then_warm)}, clock)
    assert times == {"a": [10_000] * 15}


@pytest.mark.parametrize(("crowded", "samples"), [(False, 3), (True, 14)])
def test_long_functions_are_sampled_less_often(crowded: bool, samples: int) -> None:
    """Not so on a busy machine, where few samples are undisturbed."""
    clock = SetClock()
    times = alternate({"a": clock.function("a", 150 * MS)}, clock, crowded=crowded)
    assert times == {"a": [150 * MS] * samples}


@pytest.mark.parametrize(
    ("candidate", "reference", "crowded", "faster"),
    [
        ([100_000] * 5, [200_000] * 5, False, True),
        ([100_000] * 5, [102_000] * 5, False, False),  # noise
        ([1_000] * 5, [1_000 + LEAST_GAIN_NS - 1] * 5, False, False),  # twice as fast and more, but by little time
        ([100_000] * 5, [140_000] * 5, True, False),  # a busy machine: the difference may be its
        ([100_000] * 5, [160_000] * 5, True, True),
        ([100_000, 900_000, 900_000], [500_000] * 3, True, True),  # there the least time decides
        ([100_000] * 5, [100_000, 300_000, 300_000, 300_000, 300_000], False, False),  # once as fast: it was disturbed
        ([100_000, 900_000, 900_000, 900_000, 900_000], [500_000] * 5, False, False),
    ],
)
def test_faster_means_beyond_noise_in_the_median_and_in_the_least_time(
    candidate: list[int], reference: list[int], crowded: bool, faster: bool
) -> None:
    assert is_faster(candidate, reference, crowded) is faster


@pytest.mark.parametrize(
    ("times", "choice"),
    [
        ({FUSED: 100, INDUCTOR: 200}, PartChoice.SUPER_KERNELS),
        ({FUSED: 200, INDUCTOR: 100}, PartChoice.INDUCTOR),
        ({FUSED: 200, ON_ONE_CORE: 90, INDUCTOR: 100}, PartChoice.SUPER_KERNELS),
        ({FUSED: 200, WITH_LIBRARY_CALLS: 90, INDUCTOR: 100}, PartChoice.LIBRARY_CALLS),
        ({FUSED: 200, WITH_LIBRARY_CALLS: 150, INDUCTOR: 100}, PartChoice.INDUCTOR),
        ({FUSED: 100, WITH_LIBRARY_CALLS: 99, INDUCTOR: 98}, PartChoice.SUPER_KERNELS),
        ({FUSED: 100}, PartChoice.SUPER_KERNELS),
    ],
)
def test_super_kernels_stay_unless_an_alternative_is_faster(times: dict[str, int], choice: PartChoice) -> None:
    assert decide({name: [1000 * us] * 5 for name, us in times.items()}, crowded=False) is choice
