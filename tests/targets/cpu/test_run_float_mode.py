"""targets.cpu: all cores of a launch round, and treat denormal numbers, as the thread that launches does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from targets.cpu.small import compile_ops

from superkernel import Op, SubKernel, SuperKernel

pytestmark = pytest.mark.slow
SOURCE = """\
#include <superkernel/kernel.h>
extern "C" void halve(const float* x, float* y) {
    sk::sync_all();  // every block has a core of its own
    y[sk::block_idx()] = x[sk::block_idx()] * 0.5f;
}
"""
DENORMAL = np.full(2, 1e-40, np.float32)


def halved(k: SuperKernel) -> list[int]:
    """Their bits: a thread that flushes denormal numbers reads them as zeros."""
    memory = {"x": DENORMAL, "y": np.full(2, -1, np.float32)}
    k(memory)
    bits: list[int] = memory["y"].view(np.int32).tolist()
    return bits


def test_the_mode_of_the_launching_thread_is_that_of_all_cores(tmp_path: Path) -> None:
    path = tmp_path / "halve.cpp"
    path.write_text(SOURCE)
    kernel = SubKernel.from_source(path, "halve", block_dim=2, params=["in:x:float32[2]", "out:y:float32[2]"])
    with compile_ops([Op(kernel, ["x", "y"])], "halving") as k:
        kept = halved(k)  # begins the threads of the team
        assert kept == (DENORMAL * np.float32(0.5)).view(np.int32).tolist()
        assert min(kept) > 0
        if not torch.set_flush_denormal(True):
            pytest.skip("torch cannot flush denormal numbers on this processor")
        try:
            assert halved(k) == [0, 0]
        finally:
            torch.set_flush_denormal(False)
        assert halved(k) == kept
