"""Random programs with random scopes: equal to eager, bit-equal to their unfused run, on one core and on two."""

from __future__ import annotations

import pytest
from conformance.programs import write
from conformance.sweep import sweep
from conformance.texts import without_stock

FIXED = range(7)
ALL = range(1000)


def test_some_programs() -> None:
    with without_stock():
        done = sweep("programs-fixed", [write(seed).case() for seed in FIXED], cores=(2,))
    assert not done.failures, done.failures


@pytest.mark.conformance
@pytest.mark.timeout(14400)
def test_a_thousand_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with without_stock():
        done = sweep("programs", [write(seed).case() for seed in ALL], cores=(1, 2))
    path = done.write()
    with capsys.disabled():
        print(f"\n{done}\n{path}")
    assert not done.failures, done.failures
