"""Which cases of a test run in `make test`, and which in `make conformance` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

conformance_only = pytest.mark.conformance


def sampled(rows: Iterable[Any], sample: Iterable[Any]) -> list[Any]:
    """The sample in every run, the other rows in the long one; a row is a value, or a tuple of them."""
    chosen = list(sample)
    assert chosen
    return [row if row in chosen else _in_long_runs(row) for row in rows]


def first_of(rows: Iterable[Any], count: int) -> list[Any]:
    """The first rows in every run, the others in the long one."""
    listed = list(rows)
    return [*listed[:count], *map(_in_long_runs, listed[count:])]


def _in_long_runs(row: Any) -> Any:
    return pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=conformance_only)
