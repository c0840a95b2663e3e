"""torch's operator database through the back end: what works under Inductor works, with the same results."""

from __future__ import annotations

import pytest
from conformance.checks import State
from conformance.operators import cases, seeded_outside
from conformance.sweep import sweep

pytestmark = pytest.mark.slow

# Reduction, indexing, library call, random, complex; `make conformance` runs all operators.
FIXED = ("argmax", "index_put", "linalg.inv", "nn.functional.dropout", "fft.ifft")


@pytest.mark.conformance
def test_one_operator_of_each_kind() -> None:
    with seeded_outside():
        done = sweep("op_db-fixed", cases(FIXED), cores=(2,))
    assert not done.failures, done.failures
    # not fused: the matrix inverse; partly: the Fourier transform
    assert [outcome.state for outcome in done.outcomes[2]].count(State.FUSED) == len(FIXED) - 2, done
