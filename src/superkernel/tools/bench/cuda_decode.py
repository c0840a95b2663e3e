"""bench.cuda_decode: a 16-layer decode step of a Llama-like model, 9 Triton kernels a layer, as a chain to be timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .cuda_workloads import (
    EPSILON,
    CudaChain,
    GemvConfig,
    make_chain,
    normed,
    random_floats,
    random_weights,
    triton_gemv,
)

HIDDEN, INNER, HEADS, GROUPS, WIDTH = 2048, 8192, 32, 8, 64
TOKENS, POSITION = 128, 100
SILU_BLOCK = 1024


@dataclass(frozen=True)
class DecodeLayer:
    """The weights and the cache of a layer."""

    first_norm: Any
    qkv: Any
    output: Any
    second_norm: Any
    gate_up: Any
    down: Any
    keys: Any
    values: Any


def _layer(torch: Any) -> DecodeLayer:
    cache = (TOKENS, GROUPS, WIDTH)
    return DecodeLayer(
        1 + random_floats(torch, HIDDEN, scale=0.1),
        random_weights(torch, (HEADS + 2 * GROUPS) * WIDTH, HIDDEN),
        random_weights(torch, HIDDEN, HEADS * WIDTH),
        1 + random_floats(torch, HIDDEN, scale=0.1),
        random_weights(torch, 2 * INNER, HIDDEN),
        random_weights(torch, HIDDEN, INNER),
        random_floats(torch, *cache),
        random_floats(torch, *cache),
    )


def decode_chain(torch: Any, configs: dict[int, GemvConfig], layers: int = 16) -> CudaChain:
    """`configs`: by number of columns, how the GEMVs are compiled."""
    from .cuda_kernels import add_rms_norm, attend, gemv, rotate_and_append, silu_mul

    torch.manual_seed(3)
    model = [_layer(torch) for _ in range(layers)]
    x = random_floats(torch, HIDDEN)
    zero = torch.zeros_like(x)
    angles = POSITION / 10000 ** (torch.arange(WIDTH // 2, device=x.device) / (WIDTH // 2))
    cosine, sine = angles.cos(), angles.sin()
    totals = [torch.empty_like(x) for _ in range(2 * layers)]
    normed_inputs = [torch.empty_like(x) for _ in range(2 * layers)]
    attended_out, change = torch.empty_like(x), torch.empty_like(x)
    qkv, gates, inner = x.new_empty((HEADS + 2 * GROUPS) * WIDTH), x.new_empty(2 * INNER), x.new_empty(INNER)
    query, attended = x.new_empty(HEADS * WIDTH), x.new_empty(HEADS * WIDTH)

    def body(waits: bool) -> None:
        before, delta = x, zero
        shape = {"HEADS": HEADS, "GROUPS": GROUPS, "WIDTH": WIDTH, "WAITS": waits}
        norm = {"SIZE": HIDDEN, "WAITS": waits, "num_warps": 4}

        def multiply(matrix: Any, source: Any, target: Any) -> None:
            triton_gemv(gemv, matrix, source, target, configs[matrix.shape[1]], waits)

        for number, layer in enumerate(model):
            first, second = totals[2 * number : 2 * number + 2]
            h, h_inner = normed_inputs[2 * number : 2 * number + 2]
            add_rms_norm[(1,)](before, delta, layer.first_norm, first, h, EPSILON, **norm)
            multiply(layer.qkv, h, qkv)
            rotated = (qkv, cosine, sine, query, layer.keys, layer.values, POSITION)
            rotate_and_append[(HEADS + GROUPS,)](*rotated, **shape, num_warps=1)
            scores = (query, layer.keys, layer.values, attended, 1 / math.sqrt(WIDTH))
            attend[(HEADS,)](*scores, TOKENS=TOKENS, STEP=min(32, TOKENS), **shape, num_warps=4)
            multiply(layer.output, attended, attended_out)
            add_rms_norm[(1,)](first, attended_out, layer.second_norm, second, h_inner, EPSILON, **norm)
            multiply(layer.gate_up, h_inner, gates)
            silu_mul[(INNER // SILU_BLOCK,)](gates, inner, WIDTH=INNER, BLOCK=SILU_BLOCK, WAITS=waits, num_warps=4)
            multiply(layer.down, inner, change)
            before, delta = second, change

    expected = _reference(torch, model, x, cosine, sine)
    matrices = [matrix for layer in model for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    nbytes = sum(matrix.numel() * matrix.element_size() for matrix in matrices)
    long_rows = configs[max(configs)]
    name = f"{9 * layers} kernels of a {layers}-layer decode step, GEMV of long rows with {long_rows}"
    pure = ["gemv", "attend", "silu_mul", "add_rms_norm"]  # rotate_and_append writes a part of the caches
    state = [cache for layer in model for cache in (layer.keys, layer.values)]
    return make_chain(name, body, change, expected, 1e-3, nbytes, state, pure)


def _reference(torch: Any, model: list[DecodeLayer], x: Any, cosine: Any, sine: Any) -> Any:
    """What the last kernel writes, in float64."""
    total, change = x.double(), torch.zeros_like(x, dtype=torch.float64)
    c, s = cosine.double(), sine.double()

    def rotated(heads: Any) -> Any:
        first, second = heads[:, : WIDTH // 2], heads[:, WIDTH // 2 :]
        return torch.cat([first * c - second * s, second * c + first * s], dim=1)

    for layer in model:
        total = total + change
        qkv = (layer.qkv.double() @ normed(total, layer.first_norm)).view(-1, WIDTH)
        query, key, value = qkv[:HEADS], qkv[HEADS : HEADS + GROUPS], qkv[HEADS + GROUPS :]
        keys, values = layer.keys.double(), layer.values.double()
        keys[POSITION], values[POSITION] = rotated(key), value
        keys, values = (cache.repeat_interleave(HEADS // GROUPS, dim=1) for cache in (keys, values))
        scores = torch.einsum("hw,thw->ht", rotated(query), keys) / math.sqrt(WIDTH)
        attended = torch.einsum("ht,thw->hw", scores.softmax(dim=1), values).reshape(-1)
        total = total + layer.output.double() @ attended
        gates = layer.gate_up.double() @ normed(total, layer.second_norm)
        inner = torch.nn.functional.silu(gates[:INNER]) * gates[INNER:]
        change = layer.down.double() @ inner
    return change
