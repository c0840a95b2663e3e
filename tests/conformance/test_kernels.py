"""Kernels that are hard to share among cores, and what happens when one of them refuses its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conformance.checks import State, small_chunks
from conformance.kernels import CASES
from conformance.sweep import sweep
from torch import Tensor

from superkernel.errors import LaunchError

pytestmark = pytest.mark.slow

ROWS = torch.linspace(-1, 1, 1200).reshape(40, 30)
PLACES = torch.arange(20)


@pytest.mark.conformance
def test_some_kernels_that_are_hard_to_share() -> None:
    done = sweep("kernels", CASES[::27], cores=(2,))
    assert not done.failures, done.failures
    assert {outcome.state for outcome in done.outcomes[2]} == {State.FUSED}, done


@pytest.mark.conformance
@pytest.mark.timeout(3600)
def test_kernels_on_each_number_of_cores() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        done = sweep("kernels", CASES, cores=(1, 2, 3, 4))
    finally:
        torch.set_num_threads(before)
    assert not done.failures, done.failures


def picked(x: Tensor, places: Tensor) -> Tensor:
    return (x[places] * 2).sum(0)


def divided(x: Tensor, by: Tensor) -> Tensor:
    return x // by + 1


@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.conformance), 2])
@pytest.mark.parametrize(
    ("function", "good", "bad", "reason"),
    [
        (picked, (ROWS, PLACES), (ROWS, PLACES + 30), "index out of bounds"),
        pytest.param(
            divided,
            (PLACES, PLACES + 1),
            (PLACES, PLACES),
            "ZeroDivisionError",
            marks=[
                pytest.mark.conformance,
                pytest.mark.skipif(torch.__version__ < "2.13", reason="older vector code of Inductor divides by zero"),
            ],
        ),
    ],
)
def test_data_that_a_kernel_refuses(
    function: Callable[..., Tensor], good: Any, bad: Any, reason: str, cores: int
) -> None:
    """An error that names scope and op; the next call is right."""
    torch._dynamo.reset()
    options = {"cores": cores, "profit_gate": 0}
    compiled = torch.compile(function, backend="superkernel", dynamic=False, options=options)
    with small_chunks():
        for _ in range(2):
            torch.testing.assert_close(compiled(*good), function(*good))
            with pytest.raises(LaunchError, match=rf"super_kernel_scope 'graph': op 'fused_\w+': .*{reason}"):
                compiled(*bad)
    torch.testing.assert_close(compiled(*good), function(*good))
