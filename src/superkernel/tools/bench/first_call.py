"""bench.first_call: a script for fresh processes: a back end's name in, seconds until a model's results out.

It imports torch and nothing else, so that the imports of a back end count as part of its time; therefore the model is
defined here.
"""

from __future__ import annotations

import json
import sys
import time

import torch

WIDTH, INNER, BLOCKS = 256, 512, 4
CALLS = 20  # the profit gate has decided by then


class Block(torch.nn.Module):
    """LayerNorm, Linear, SiLU, Linear, and the residual around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def blocks() -> torch.nn.Module:
    return torch.nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()


def close(found: torch.Tensor, expected: torch.Tensor, share: float = 1e-4) -> bool:
    """Equal up to this share of the largest value: the rounding of another order of additions."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    most = share * max(1.0, float(expected.abs().max()))
    return bool((found - expected).abs().max() <= most)  # False for NaN


def main(backend: str) -> int:
    began = time.perf_counter()
    model, x = blocks(), torch.randn(1, WIDTH)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        found = [compiled(x)]
        first = time.perf_counter() - began
        found += [compiled(x) for _ in range(CALLS - 1)]
        settled = time.perf_counter() - began
        expected = model(x)
    right = all(close(result, expected) for result in found)
    print(json.dumps({"first": first, "settled": settled, "right": right}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
