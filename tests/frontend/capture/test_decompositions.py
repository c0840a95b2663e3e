"""Decompositions of our own compute what torch computes, errors included."""

from __future__ import annotations

import pytest
import torch
from frontend.fused import compiled
from torch import Tensor

from superkernel.errors import LaunchError

DIVIDENDS, DIVISORS = torch.tensor([7, -7, 7, -7, 0, 1, -1, 6, -6]), torch.tensor([2, 2, -2, -2, 5, 3, 3, -3, 3])


def quotient(dividend: Tensor | int, divisor: Tensor | int) -> Tensor:
    return torch.div(dividend, divisor, rounding_mode="trunc")  # type: ignore[arg-type]


def quotients(dividend: Tensor, divisor: Tensor) -> tuple[Tensor, ...]:
    small, unsigned = dividend.to(torch.int8), dividend.abs().to(torch.uint8)
    return (
        *(quotient(dividend, divisor), quotient(small, divisor), quotient(unsigned, divisor.to(torch.int8))),
        *(quotient(100, divisor), quotient(dividend, -3), quotient(dividend, divisor > -9), dividend / divisor),
        *(quotient(dividend.double(), divisor), quotient(unsigned, divisor.abs().to(torch.uint8))),
    )


def test_truncated_quotients_of_integers() -> None:
    found, wanted = compiled(quotients, fullgraph=True)(DIVIDENDS, DIVISORS), quotients(DIVIDENDS, DIVISORS)
    for value, right in zip(found, wanted, strict=True):
        assert value.dtype is right.dtype and value.equal(right)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Inductor of this torch checks no divisor, also of a // b")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_division_by_zero_is_an_error(dtype: torch.dtype) -> None:
    """The instruction of the processor would end the process."""
    function = compiled(quotient, fullgraph=True)
    dividends, divisors = torch.full((9,), 7, dtype=dtype), torch.arange(1, 10, dtype=dtype)
    assert function(dividends, divisors).equal(quotient(dividends, divisors))
    with pytest.raises(LaunchError, match="ZeroDivisionError"):
        function(dividends, divisors - 5)
