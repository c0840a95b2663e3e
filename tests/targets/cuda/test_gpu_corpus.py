"""On a GPU: every kernel of the corpus in super kernels has the bits that it has alone; early, replicated, mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from targets.cuda import corpus as kernels
from targets.cuda.corpus import Corpus

import superkernel as sk
from superkernel import SubKernel
from superkernel.model.params import Kind
from superkernel.targets.cuda.facts import Atomics, facts_of

pytestmark = pytest.mark.gpu
ARCHITECTURE = 90
_SIZES = {
    "rms_norm": 2048, "rms_norm_bf16": 2048, "softmax": 1000, "layer_norm": 768, "gemv": 1024, "argmax": 1000,
    "cumsum": 1000, "quantise": 1000, "grid_barrier": 1024, "add_1_warp": 512, "split_k": 32, "transpose": 64,
    "descriptor_copy": 64, "matmul": 64, "matmul_8_warps": 64,
}  # fmt: skip
_SCALARS = {"eps": 1e-5, "scale": 0.125, "base": 10000.0, "seed": 3, "a": 0.5, "which": 2}


def scalar(name: str, param: str) -> float:
    if param in _SCALARS:
        return _SCALARS[param]
    if param == "k":
        return 256 if name == "split_k" else 128
    return _SIZES.get(name, 64 if param == "m" else 512 if name in CUDA_NAMES else 4096)


CUDA_NAMES = tuple(kernel.name for kernel in kernels.CUDA_KERNELS if not kernel.refused)


def require_capability() -> None:
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"the kernels are compiled for sm_{ARCHITECTURE}a")
    try:
        torch.cuda.synchronize()
    except RuntimeError as lost:
        pytest.skip(f"an earlier test has lost the CUDA context: {lost}")


def random_buffer(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    kind = getattr(torch, dtype)
    if name == "lengths":
        return torch.full(shape, 100, dtype=kind, device="cuda")
    if name == "places":
        return torch.randperm(shape[0], device="cuda", generator=generator).to(kind)
    if name in ("semaphore", "state", "counts", "total"):
        return torch.zeros(shape, dtype=kind, device="cuda")
    if name == "x" and dtype == "bfloat16" and shape == (512,):  # of bfloat_add: the sum is exact in any order
        return torch.randint(0, 2, shape, device="cuda", generator=generator).to(kind)
    if name == "y" and dtype == "bfloat16" and shape == (4,):
        return torch.zeros(shape, dtype=kind, device="cuda")
    if kind.is_floating_point:
        return torch.randn(shape, device="cuda", generator=generator).to(kind)
    top = 2 if name == "chosen" else 100
    return torch.randint(0, top, shape, device="cuda", generator=generator).to(kind)


def op_of(kernel: SubKernel, name: str, prefix: str, sources: dict[str, str] | None = None) -> sk.Op:
    """An op with buffers of its own, but for `sources`."""
    given = sources or {}
    arguments: list[str | float] = []
    for param in kernel.params:
        if param.kind is Kind.SCALAR:
            value = scalar(name, param.name)
            arguments.append(value if param.dtype in ("float32", "float64") else int(value))
        else:
            arguments.append(given.get(param.name, f"{prefix}_{param.name}"))
    return sk.Op(kernel, arguments, name=prefix)


def launched_twice(ops: Sequence[sk.Op], **more: Any) -> None:
    """Fused and unfused on equal buffers, twice; buffers that an op writes start equal."""
    import torch

    with sk.compile(ops, name="corpus", target="cuda", **more) as kernel:
        types = {}
        for node in kernel.graph.nodes:
            for param, name in node.arguments():
                types[name] = (param.name, param.dtype, param.shape)
        floats = {node.name for node in kernel.graph.nodes if facts_of(node.kernel).atomics is Atomics.FLOAT}
        loose = {name for node in kernel.graph.nodes if node.name in floats for _, name in node.arguments()}
        for turn in range(2):
            buffers = [
                {
                    name: random_buffer(types[name][0], types[name][1], types[name][2], 10 * turn + place)
                    for place, (name, buffer) in enumerate(kernel.graph.buffers.items())
                    if not buffer.scalar
                }
                for _ in range(2)
            ]
            kernel(buffers[0])
            kernel.unfused()(buffers[1])
            kernel.synchronize()
            for name, value in buffers[0].items():
                if name in loose:
                    torch.testing.assert_close(value, buffers[1][name])
                else:
                    same = torch.equal(value.view(torch.uint8), buffers[1][name].view(torch.uint8))
                    assert same, f"{name} in turn {turn}"


@pytest.mark.parametrize("name", [*kernels.names(ARCHITECTURE), *CUDA_NAMES])
def test_a_kernel_has_the_bits_that_it_has_alone(corpus: Corpus, name: str) -> None:
    require_capability()
    kernel = corpus.sub_kernel(name, ARCHITECTURE)
    launched_twice([op_of(kernel, name, "first"), op_of(kernel, name, "second")])


MIXES = {
    "small": ("add", "rms_norm", "silu_mul", "softmax", "layer_norm", "cast_bf16"),
    "mixed_widths": ("rms_norm_bf16", "rotary", "rotary_tables", "add_1_warp", "top_k", "embedding"),
    "tensor_cores": ("matmul", "gemv", "attention_decode", "transpose", "quantise"),
    "grids": ("add_3d", "split_k", "histogram", "cumsum", "dynamic_sum", "tile_sum"),
}


@pytest.mark.parametrize("options", ["", "early-start=0", "stream-fusion=1", "profiling=1"])
@pytest.mark.parametrize("mix", MIXES)
def test_different_kernels_share_a_super_kernel(corpus: Corpus, mix: str, options: str) -> None:
    require_capability()
    ops = [
        op_of(corpus.sub_kernel(name, ARCHITECTURE), name, f"{name}_{turn}") for turn in range(2) for name in MIXES[mix]
    ]
    launched_twice(ops, options=options)


def test_norm_and_gemv_in_turn_with_the_norm_replicated(corpus: Corpus) -> None:
    """A small op between wide ones, as in a decode step: replicated where that pays, with waits inside the GEMV."""
    require_capability()
    norm, gemv = corpus.sub_kernel("rms_norm", ARCHITECTURE), corpus.sub_kernel("gemv", ARCHITECTURE)
    cast = corpus.sub_kernel("silu_mul", ARCHITECTURE)
    ops = []
    for layer in range(4):
        ops.append(op_of(norm, "rms_norm", f"norm{layer}", {"x": "hidden", "w": "weight", "y": f"normed{layer}"}))
        sources = {"gate": f"normed{layer}", "up": f"normed{layer}", "y": "hidden"}
        ops.append(op_of(cast, "silu_mul", f"silu{layer}", sources))
        ops.append(op_of(gemv, "gemv", f"gemv{layer}", {"x": "vector"}))
    launched_twice(ops)


def test_a_chain_of_dependent_small_kernels(corpus: Corpus) -> None:
    """64 ops of one block or four, each after the other."""
    require_capability()
    norm, add = corpus.sub_kernel("rms_norm", ARCHITECTURE), corpus.sub_kernel("add", ARCHITECTURE)
    ops = []
    for turn in range(32):
        ops.append(op_of(norm, "rms_norm", f"norm{turn}", {"x": "a", "w": "w", "y": "b"}))
        ops.append(op_of(add, "add", f"add{turn}", {"x": "b", "y": "c", "z": "a"}))
    launched_twice(ops)
