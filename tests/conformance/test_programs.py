"""Random programs with random scopes: equal to eager, bit-equal to their unfused run, on one core and on two."""

from __future__ import annotations

from conformance.programs import write
from conformance.sweep import sweep
from conformance.texts import without_stock

FIXED = range(7)


def test_some_programs() -> None:
    with without_stock():
        done = sweep("programs-fixed", [write(seed).case() for seed in FIXED], cores=(2,))
    assert not done.failures, done.failures
