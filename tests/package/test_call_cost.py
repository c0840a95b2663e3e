"""What a call from Python costs beside the run of the model in C: at most 3 microseconds with two inputs."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_package import WEIGHT, write_handmade

import superkernel as sk

pytestmark = [pytest.mark.conformance, pytest.mark.serial]
CALLS, BATCHES = 200, 2000
BAR_US = 3.0


def least_us(function: Callable[[], Any]) -> float:
    """Of many short batches the fastest: other programs disturb only some of them."""
    return min(timeit.repeat(function, number=CALLS, repeat=BATCHES)) / CALLS * 1e6


def test_a_call_costs_little_beside_the_run_in_c(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    y, out = np.full((2, 4), 2, np.float32), np.zeros((2, 4), np.float32)
    with sk.load_model(write_handmade(tmp_path / "hand.sk"), threads=1) as model:
        np.testing.assert_array_equal(model(x, y), x + y * WEIGHT)
        calls = model.forward._calls
        run, version = calls.context.library.run_index, calls.context.library._library["sk_version"]
        prepared = (calls.handle, calls.index, 0, calls.inputs, calls.outputs)
        model(x, y, out=out)
        through_ctypes = least_us(lambda: run(*prepared))
        nothing = least_us(lambda: version(*prepared))
        in_c = max(through_ctypes - nothing, 0)
        figures = {
            "model(x, y)": least_us(lambda: model(x, y)) - in_c,
            "model.forward(x, y)": least_us(lambda: model.forward(x, y)) - in_c,
            "model(x, y, out=out)": least_us(lambda: model(x, y, out=out)) - in_c,
        }
        np.testing.assert_array_equal(out, x + y * WEIGHT)
    shown = ", ".join(f"{name} {cost:.2f} us" for name, cost in figures.items())
    print(f"run in C {in_c:.2f} us; beside it {shown}")
    assert figures["model(x, y)"] <= BAR_US and figures["model.forward(x, y)"] <= BAR_US, shown
