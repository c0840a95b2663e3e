"""debug-check=1 through torch.compile: generated and shipped kernels are compiled with checks, and pass them."""

from __future__ import annotations

import logging

import pytest
import torch
from frontend.fused import assert_same_bits, compiled
from torch import Tensor, nn

from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow


class Model(nn.Module):
    """A matmul and what Inductor writes around it: a norm over rows, a full reduction."""

    def __init__(self, options: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.options, self.linear = options, nn.Linear(48, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with super_kernel("checked", self.options):
            y = torch.softmax(self.linear(x), -1) + x[:, :32].sin()
            return y, (y * y).sum()


def test_a_model_is_checked_and_gives_the_same(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.linspace(-2, 2, 9 * 48).reshape(9, 48)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "superkernel"):
        wanted = compiled(Model("").eval(), profit_gate=0)(x)
        found = compiled(Model("debug-check=1").eval(), profit_gate=0)(x)
    assert_same_bits(found, wanted)
    assert not [record for record in caplog.records if "given as an object" in record.getMessage()]
