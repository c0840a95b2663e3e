"""Random programs with random scopes: equal to eager, bit-equal to their unfused run, on one core and on two."""

from __future__ import annotations

import random

import pytest
from conformance.checks import State
from conformance.programs import write
from conformance.sweep import sweep
from conformance.texts import without_stock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

FIXED = range(1)


def test_some_programs() -> None:
    with without_stock():
        done = sweep("programs-fixed", [write(seed).case() for seed in FIXED], cores=(2,))
    assert not done.failures, done.failures
    assert {outcome.state for outcome in done.outcomes[2]} <= {State.FUSED, State.PARTLY}, done


@pytest.mark.conformance
@given(st.randoms(use_true_random=False))
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_programs_that_hypothesis_chooses(choose: random.Random) -> None:
    """What fails here is made smaller by hypothesis, statement by statement."""
    with without_stock():
        done = sweep("programs-chosen", [write(0, choose).case()], cores=(2,))
    assert not done.failures, done.failures
