"""Random super kernels under random interleavings: values, P1 to P7, P10, P13 and P14 of the emitted code."""

from __future__ import annotations

import pytest
from targets.ascend.conformance.checks import check, random_cases

CHUNK = 40  # cases that are compiled together
CASES, MANY_CASES = 320, 1000


def run_chunk(first: int, count: int, seeds_per_case: int, most_blocks: int = 5) -> None:
    for number, ready in enumerate(random_cases(range(first, first + count), most_blocks)):
        for seed in range(seeds_per_case):  # seed 0 disturbs nothing
            check(ready, (first + number) * seed * 7 + seed)


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_cases(first: int) -> None:
    run_chunk(first, CHUNK, 2)


def test_cases_as_large_as_the_chip() -> None:
    run_chunk(50_000, 6, 3, most_blocks=24)


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(100_000, 100_000 + MANY_CASES, 2 * CHUNK))
def test_many_random_cases(first: int) -> None:
    run_chunk(first, 2 * CHUNK, 4)
