"""Kernels of Triton and nvcc, run alone on the emulator, give what numpy gives, under every order of their warps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from targets.cuda.corpus import Corpus
from targets.cuda.emulator.instruction_cases import from_bf16, to_bf16

from superkernel.model.params import Kind, Param
from superkernel.model.subkernel import SubKernel
from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.facts import complete, facts_of
from superkernel.targets.cuda.reader import read_ptx_file

Array = np.ndarray[Any, Any]
NUMBERS: dict[str, Any] = {
    "n": {"softmax": 1000, "argmax": 1000, "cumsum": 1000, "quantise": 1000, "layer_norm": 768, "gemv": 1024,
          "transpose": 64, "rms_norm": 2048, "rms_norm_bf16": 2048, "matmul": 64, "matmul_8_warps": 64, "split_k": 32,
          "saxpy": 512, "add_1_warp": 512, "grid_barrier": 1024},
    "m": 64, "k": {"matmul": 128, "matmul_8_warps": 128, "split_k": 256}, "eps": np.float32(1e-5),
    "scale": np.float32(0.125), "base": np.float32(10000.0), "seed": 123, "a": np.float32(1.5), "which": 2,
}  # fmt: skip


def arguments(kernel: SubKernel, name: str) -> dict[str, Any]:
    """Random arrays, and numbers, by parameter."""
    random = np.random.default_rng(len(name))
    values: dict[str, Any] = {}
    for param in kernel.params:
        values[param.name] = _argument(param, name, random)
    return values


def _argument(param: Param, name: str, random: np.random.Generator) -> Any:
    if param.kind is Kind.SCALAR:
        chosen = NUMBERS[param.name]
        return chosen.get(name, 4096) if isinstance(chosen, dict) else chosen
    assert param.shape is not None and param.dtype is not None
    shape = param.shape
    special = {"lengths": np.full(shape, 100), "ids": random.integers(0, 100, shape), "position": np.full(shape, 7),
               "places": random.permutation(math.prod(shape)), "chosen": random.integers(0, 2, shape),
               "semaphore": np.zeros(shape), "state": np.zeros(shape), "locks": np.zeros(shape),
               "area": np.zeros(shape)}.get(param.name)  # fmt: skip
    if special is None and param.dtype.startswith(("int", "uint")):
        special = random.integers(0, 200, shape)
    if special is not None:
        return special.astype(param.dtype)
    numbers = random.standard_normal(shape).astype(np.float32)
    return to_bf16(numbers) if param.dtype == "bfloat16" else numbers.astype(param.dtype)


def run(kernel: SubKernel, given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The arrays after a launch of the kernel alone."""
    kernel = complete(kernel)
    facts = facts_of(kernel)
    changed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in given.items()}
    module = read_ptx_file(kernel.binary.path)
    entry = module.entry(facts.symbol)
    assert entry is not None and kernel.grid is not None
    extra = [0] * (len(entry.params) - len(changed))
    resident = math.prod(kernel.grid) if kernel.sync_all else None
    launch_entry(
        module, facts.symbol, [*changed.values(), *extra], grid=kernel.grid, threads=facts.threads,
        shared=facts.dynamic_shared, seed=seed, resident=resident,
    )  # fmt: skip
    return changed


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rms(x: Array, w: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(g: dict[str, Array]) -> Array:
    q, keys, values = (g[name].astype(np.float32) for name in ("q", "keys", "values"))
    scores = np.einsum("hd,htd->ht", q, keys[:, :100]) * 0.125
    return np.einsum("ht,htd->hd", softmax(scores), values[:, :100])


def norm(g: dict[str, Array]) -> Array:
    centred = g["x"] - g["x"].mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * g["w"] + g["b"]


def rotated(g: dict[str, Array]) -> Array:
    first, second = g["x"][:, :64], g["x"][:, 64:]
    return np.concatenate([first * g["cos"] - second * g["sin"], second * g["cos"] + first * g["sin"]], 1)


def product(g: dict[str, Array]) -> Array:
    return g["a"].astype(np.float32) @ g["b"].astype(np.float32)


def scattered(g: dict[str, Array]) -> Array:
    result = g["y"].copy()
    chosen = g["chosen"].astype(bool)
    result[g["places"][chosen]] = g["x"][chosen]
    return result


# kernel -> output, what numpy says it is, relative tolerance
EXPECTED: dict[str, tuple[str, Callable[[dict[str, Any]], Array], float]] = {
    "add": ("z", lambda g: g["x"] + g["y"], 0),
    "add_1_warp": ("z", lambda g: g["x"] + g["y"], 0),
    "add_3d": ("z", lambda g: g["x"] + g["y"], 0),
    "rms_norm": ("y", lambda g: rms(g["x"], g["w"]), 1e-5),
    "rms_norm_bf16": ("y", lambda g: rms(from_bf16(g["x"]), from_bf16(g["w"])), 1e-2),
    "silu_mul": ("y", lambda g: silu(g["gate"]) * g["up"], 1e-5),
    "softmax": ("y", lambda g: softmax(g["x"]), 1e-5),
    "layer_norm": ("y", norm, 1e-4),
    "gemv": ("y", lambda g: g["w"].astype(np.float32) @ g["x"].astype(np.float32), 1e-4),
    "gemv_one_step": ("y", lambda g: g["w"].astype(np.float32) @ g["x"].astype(np.float32), 1e-4),
    "matmul": ("c", product, 2e-3),
    "matmul_8_warps": ("c", product, 2e-3),
    "split_k": ("c", lambda g: g["c"] + product(g), 1e-4),
    "attention_decode": ("out", attention, 1e-4),
    "rotary": ("x", rotated, 1e-5),
    "rotary_tables": ("cos", lambda g: np.cos(7 * np.exp(-np.arange(64) / 64 * np.log(10000.0))), 1e-4),
    "argmax": ("y", lambda g: g["x"].argmax(-1), 0),
    "top_k": ("y", lambda g: np.sort(g["x"], -1)[:, ::-1][:, :8], 0),
    "cumsum": ("y", lambda g: np.cumsum(g["x"].astype(np.float64), -1), 1e-3),
    "embedding": ("y", lambda g: g["table"][g["ids"]], 0),
    "transpose": ("y", lambda g: g["x"].T, 0),
    "histogram": ("counts", lambda g: g["counts"] + np.bincount(g["x"], minlength=256)[:256], 0),
    "sum_atomic": ("total", lambda g: g["total"] + g["x"].sum(), 1e-3),
    "masked_scatter": ("y", scattered, 0),
    "cast_bf16": ("y", lambda g: g["x"], 1e-2),
    "look_back_scan": ("y", lambda g: np.cumsum(g["x"].reshape(-1)).reshape(4, 256), 0),
    "saxpy": ("y", lambda g: 1.5 * g["x"] + g["y"], 1e-6),
    "tile_sum": ("y", lambda g: g["x"].reshape(4, 128).sum(1), 1e-4),
    "dynamic_sum": ("y", lambda g: g["x"].reshape(4, 128).sum(1), 1e-4),
    "sine": ("y", lambda g: np.sin(g["x"]) * np.tile([0.25, 0.5, 0.75, 1.0], 128), 1e-5),
}
NVCC = ("saxpy", "tile_sum", "dynamic_sum", "sine")


def check(name: str, corpus: Corpus, architecture: int, seeds: range) -> None:
    kernel = corpus.sub_kernel(name, architecture)
    given = arguments(kernel, name)
    output, expect, tolerance = EXPECTED[name]
    first: Array | None = None
    for seed in seeds:
        found = run(kernel, given, seed)[output]
        first = found if first is None else first
        if name not in ("split_k", "sum_atomic"):  # sums of floats in any order
            assert np.array_equal(found, first), f"seed {seed} gives other bits"
        numbers = from_bf16(found) if found.dtype == np.uint16 else found
        expected = expect(given)
        scale = max(float(np.abs(expected).max()), 1e-6)
        assert np.abs(numbers.astype(np.float64) - expected).max() <= tolerance * scale


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in NVCC])
def test_triton_kernels_give_what_numpy_gives(name: str, corpus: Corpus) -> None:
    check(name, corpus, 80, range(2))


@pytest.mark.parametrize("name", NVCC)
def test_nvcc_kernels_give_what_numpy_gives(name: str, corpus: Corpus) -> None:
    check(name, corpus, 90, range(3))


@pytest.mark.conformance
@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in NVCC])
def test_triton_kernels_give_the_same_bits_under_many_orders(name: str, corpus: Corpus) -> None:
    check(name, corpus, 80, range(2, 12))
