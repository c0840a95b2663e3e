"""06 Triton: capture a chain of Triton kernels, link them into one kernel, run it.

    1. capture     the launches of a Python function are recorded, with their grids and tensors
    2. compile     their PTX becomes one persistent kernel
    3. launch      on an NVIDIA GPU; elsewhere the emitted PTX runs on an emulator
    4. check       against torch, and on a GPU against the kernels launched one by one, bit for bit

Needs torch and triton; a GPU is optional.
"""

from __future__ import annotations

import sys

import torch

import superkernel as sk

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    sys.exit("this example needs Triton: pip install triton")

ROWS, WIDTH = 4, 256
BLOCK = 128


@triton.jit
def rms_norm(x, weight, y, epsilon, SIZE: tl.constexpr):
    """One row per program."""
    at = tl.arange(0, SIZE)
    row = tl.program_id(0) * SIZE
    value = tl.load(x + row + at)
    mean = tl.sum(value * value, axis=0) / SIZE
    tl.store(y + row + at, value * tl.rsqrt(mean + epsilon) * tl.load(weight + at))


@triton.jit
def silu_mul(gate, up, y, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    value = tl.load(gate + at, mask=inside)
    tl.store(y + at, value / (1 + tl.exp(-value)) * tl.load(up + at, mask=inside), mask=inside)


@triton.jit
def add(x, y, z, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


Tensors = dict[str, torch.Tensor]


def allocate(device: str) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(device)
    weight = torch.rand(WIDTH, generator=generator).to(device)
    return {"x": x, "weight": weight} | {name: torch.zeros_like(x) for name in ("normed", "gated", "y")}


def block(tensors: Tensors) -> None:
    """y = x + silu(normed) * x, with normed = rms_norm(x). Ordinary Triton code: it knows nothing of a capture."""
    x, weight, normed, gated, y = tensors.values()
    rms_norm[(ROWS,)](x, weight, normed, 1e-6, SIZE=WIDTH)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    silu_mul[grid](normed, x, gated, x.numel(), SIZE=BLOCK)
    add[grid](x, gated, y, x.numel(), SIZE=BLOCK)


def expected(tensors: Tensors) -> torch.Tensor:
    x, weight = tensors["x"].double(), tensors["weight"].double()
    normed = x * (x.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt() * weight
    return x + torch.nn.functional.silu(normed) * x


def check(tensors: Tensors, launched_alone: Tensors | None = None) -> list[str]:
    """What is wrong with y; nothing, if all is well."""
    wrong = []
    if not torch.allclose(tensors["y"].double(), expected(tensors), rtol=1e-5, atol=1e-6):
        wrong.append("y is not what torch computes in float64")
    if launched_alone is not None:
        wrong += [
            f"{name} has other bits than after single launches"
            for name, value in launched_alone.items()
            if not torch.equal(value, tensors[name])
        ]
    return wrong


def main() -> int:
    gpu = torch.cuda.is_available()
    tensors = allocate("cuda" if gpu else "cpu")
    with sk.capture() as ops:
        block(tensors)
    print(f"1. captured: {ops}")
    with sk.compile(ops, name="block", target="cuda") as k:
        print(f"2. compiled:\n{k.graph}")
        if gpu:
            k(ops.buffers)
            torch.cuda.synchronize()
            print("3. launched once")
            alone = allocate("cuda")
            block(alone)
            wrong = check(tensors, alone)
        else:
            wrong = []
            for seed in range(3):
                tensors["y"].zero_()
                k.emulate(ops.buffers, seed=seed)
                wrong += [f"seed {seed}: {text}" for text in check(tensors)]
            print("3. emulated with 3 seeds")
    if wrong:
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print("4. checked")
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
