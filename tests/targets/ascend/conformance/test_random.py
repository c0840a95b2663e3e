"""Random super kernels under random interleavings: values, P1 to P7, P10, P13 and P14 of the emitted code."""

from __future__ import annotations

import pytest
from targets.ascend.figures import CHUNK, run_cases

CASES, MANY_CASES = 320, 1000


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_cases(first: int) -> None:
    run_cases(first, CHUNK, 2)


def test_cases_as_large_as_the_chip() -> None:
    run_cases(50_000, 6, 3, most_blocks=24)


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(100_000, 100_000 + MANY_CASES, 2 * CHUNK))
def test_many_random_cases(first: int) -> None:
    run_cases(first, 2 * CHUNK, 4)
