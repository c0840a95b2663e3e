"""debug-check=1 through torch.compile: generated and shipped kernels are compiled with checks, and pass them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from frontend.fused import assert_same_bits, compiled
from measured import grows_by
from torch import Tensor, nn

from examples import program
from superkernel.frontend.scope import super_kernel

pytestmark = [pytest.mark.slow, pytest.mark.conformance]

MOST_SLOWER = 20


def in_a_scope(layer: nn.Module, options: str) -> Callable[[Tensor], Tensor]:
    def model(x: Tensor) -> Tensor:
        with super_kernel("checked", options):
            made: Tensor = layer(x)
            return made

    return model


def test_a_layer_of_the_sample_is_checked_and_gives_the_same_in_at_most_twenty_times_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sample = program.load("03_moe_compare.py")
    torch.manual_seed(3)
    layer, x = sample.Experts(sample.KINDS["sk1"]).eval(), sample.inputs()[1]
    with torch.no_grad(), caplog.at_level(logging.WARNING, "superkernel"):
        plain, checked = compiled(in_a_scope(layer, "")), compiled(in_a_scope(layer, "debug-check=1"))
        assert_same_bits(checked(x), plain(x))
        slower = grows_by(lambda: plain(x), lambda: checked(x), MOST_SLOWER)
    assert not [record for record in caplog.records if "given as an object" in record.getMessage()]
    assert slower < MOST_SLOWER
