"""02 scope: a marked region of a model becomes one kernel.

    x1 --+
         +--> quantised matmul --> dequantise, SwiGLU, quantise --> int8 rows and their scales
    x2 --+

The same model is compiled twice for the back end "superkernel": with fuse=off its kernels are launched one by one, and
with a scope around them they are one super kernel. The results are the same, bit for bit; with and without a bias.
Pass --small for matrices that take no time.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

import superkernel as sk
from superkernel import ops

FULL = (864, 7168, 4096)  # rows of x1, depth, columns
SMALL = (64, 512, 256)
ALWAYS = {"profit_gate": 0}  # fused in every call, also in those that would be measured unfused


class ModelOrigin(torch.nn.Module):
    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        scale: Tensor,
        offset: Tensor | None,
        bias: Tensor | None,
        pertoken_scale: Tensor,
        weight_scale: Tensor,
    ) -> tuple[Tensor, ...]:
        product = ops.quant_matmul(
            x1, x2, scale, offset=offset, bias=bias, pertoken_scale=pertoken_scale, output_dtype=torch.bfloat16
        )
        return *ops.dequant_swiglu_quant(product, weight_scale=weight_scale), product


class ModelSuperKernel(ModelOrigin):
    def forward(self, *given: Tensor | None) -> tuple[Tensor, ...]:
        with sk.scope.super_kernel("sp1", ""):
            return super().forward(*given)


def inputs(sizes: tuple[int, int, int], with_bias: bool) -> tuple[Tensor | None, ...]:
    m, k, n = sizes
    random = torch.Generator().manual_seed(1)
    x1 = torch.randint(-10, 10, (m, k), dtype=torch.int8, generator=random)
    x2 = torch.randint(-10, 10, (n, k), dtype=torch.int8, generator=random).t()  # a view: nothing is copied
    scale = torch.randn(n, generator=random)
    pertoken_scale = torch.randn(m, generator=random)
    bias = torch.randint(-1, 1, (n,), generator=random).to(torch.bfloat16) if with_bias else None
    weight_scale = torch.randn(m, n, generator=random)
    return x1, x2, scale, None, bias, pertoken_scale, weight_scale


def check(expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> list[str]:
    """Which results differ in any bit; none, if all is well."""
    names = ("rows", "scales", "product")
    pairs = zip(names, expected, found, strict=True)
    return [name for name, one, other in pairs if not np.array_equal(_bits(one), _bits(other))]


def _bits(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def main() -> int:
    sizes = SMALL if "--small" in sys.argv[1:] else FULL
    wrong = []
    for with_bias in (False, True):
        given = inputs(sizes, with_bias)
        variant = "with a bias" if with_bias else "without a bias"
        print(f"-------------------- run no sk, {variant} --------------------")
        unfused = torch.compile(ModelOrigin(), backend="superkernel", dynamic=False, options={"fuse": "off"})
        expected = unfused(*given)

        print(f"-------------------- run sk, {variant} -----------------------")
        fused = torch.compile(ModelSuperKernel(), backend="superkernel", dynamic=False, options=ALWAYS)
        found = fused(*given)
        wrong += [f"{name} {variant}" for name in check(expected, found)]
    print(sk.explain(ModelSuperKernel(), *given, options=ALWAYS))

    if wrong:
        print(f"Precision ====== Failed: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print("Precision ====== Success!!!")
    return 0


if __name__ == "__main__":
    sys.exit(main())
