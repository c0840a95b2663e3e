"""Torch calls in a scope: what they return is seen as the program sees it. Nothing here needs a kernel."""

from __future__ import annotations

import torch
from frontend.fused import check

X = torch.linspace(-2, 2, 60).reshape(3, 4, 5)


def test_a_result_may_be_lazily_conjugated() -> None:
    found = check(torch.fft.hfft2, X)
    assert not found.report.scopes[0].segments
    check(lambda x: torch.fft.fft(x).conj(), X)
