"""02 scope: a marked region of a model becomes one kernel.

    x1 --+
         +--> quantised matmul --> dequantise, SwiGLU, quantise --> int8 rows and their scales
    x2 --+

The same model is compiled twice for the back end "superkernel": with fuse=off its kernels are launched one by one, and
with a scope around them they are one super kernel. The results are the same, bit for bit.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

import superkernel as sk

ROWS, DEPTH, COLUMNS = 64, 512, 256


def quant_matmul(x1: Tensor, x2: Tensor, scale: Tensor, pertoken_scale: Tensor) -> Tensor:
    """Whole numbers times whole numbers: exact in float32 as long as the sums stay below 2**24."""
    product = x1.float() @ x2.float().t()
    return (product * scale * pertoken_scale.unsqueeze(1)).to(torch.bfloat16)


def dequant_swiglu_quant(x: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = (x.float() * weight_scale).chunk(2, dim=-1)
    product = torch.nn.functional.silu(gate) * up
    scale = product.abs().amax(-1) / 127
    return (product / scale.unsqueeze(1)).round().to(torch.int8), scale


class ModelOrigin(torch.nn.Module):
    def forward(self, x1: Tensor, x2: Tensor, scale: Tensor, pertoken_scale: Tensor, weight_scale: Tensor) -> tuple:
        product = quant_matmul(x1, x2, scale, pertoken_scale)
        return *dequant_swiglu_quant(product, weight_scale), product


class ModelSuperKernel(torch.nn.Module):
    def forward(self, x1: Tensor, x2: Tensor, scale: Tensor, pertoken_scale: Tensor, weight_scale: Tensor) -> tuple:
        with sk.scope.super_kernel("sp1", ""):
            product = quant_matmul(x1, x2, scale, pertoken_scale)
            return *dequant_swiglu_quant(product, weight_scale), product


def inputs() -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    x1 = torch.randint(-10, 10, (ROWS, DEPTH), dtype=torch.int8, generator=random)
    x2 = torch.randint(-10, 10, (COLUMNS, DEPTH), dtype=torch.int8, generator=random)
    scale = torch.randn(COLUMNS, generator=random)
    pertoken_scale = torch.randn(ROWS, generator=random)
    weight_scale = torch.randn(ROWS, COLUMNS, generator=random)
    return x1, x2, scale, pertoken_scale, weight_scale


def check(expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> list[str]:
    """Which results differ in any bit; none, if all is well."""
    names = ("rows", "scales", "product")
    pairs = zip(names, expected, found, strict=True)
    return [name for name, one, other in pairs if not np.array_equal(_bits(one), _bits(other))]


def _bits(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def main() -> int:
    given = inputs()
    print("-------------------- run no sk ----------------------------")
    unfused = torch.compile(ModelOrigin(), backend="superkernel", dynamic=False, options={"fuse": "off"})
    expected = unfused(*given)

    print("-------------------- run sk -------------------------------")
    fused = torch.compile(ModelSuperKernel(), backend="superkernel", dynamic=False)
    found = fused(*given)
    print(sk.explain(ModelSuperKernel(), *given))

    wrong = check(expected, found)
    if wrong:
        print(f"Precision ====== Failed: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print("Precision ====== Success!!!")
    return 0


if __name__ == "__main__":
    sys.exit(main())
