"""Emitted sources of random op lists parse for every class of their launch; words left out of golden ones are found."""

from __future__ import annotations

import pytest
from targets.ascend import source_mistakes
from targets.ascend.conformance.cases import random_case
from targets.ascend.random_emissions import random_emissions
from targets.ascend.test_emit_golden import SCENARIOS

from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.source_check import emitted_findings

CHUNK = 25


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(0, 250, CHUNK))
def test_many_random_lists_parse(first: int) -> None:
    for emitted in random_emissions(200_000 + first, CHUNK):
        assert emitted_findings(emitted) == (), emitted.name


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(0, 250, CHUNK))
def test_many_random_cases_parse(first: int) -> None:
    for seed in range(200_000 + first, 200_000 + first + CHUNK):
        _, emitted, _ = random_case(seed)
        assert emitted_findings(emitted) == (), emitted.name


@pytest.mark.conformance
@pytest.mark.parametrize("kind", source_mistakes.KINDS)
def test_each_word_left_out_of_golden_sources_is_found(kind: str) -> None:
    mistakes = source_mistakes.planted(kind, [emit(scenario()) for scenario in SCENARIOS])
    assert mistakes
    for mistake in mistakes:
        source_mistakes.check(mistake)
