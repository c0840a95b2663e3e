"""bench.attention: scaled dot-product attention beside its peers: one query over a long cache, and whole prompts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .measure import Result
from .peers import CORES, compare, suite
from .workloads import Workload

HEADS, SIZE = 8, 64
CACHES = (128, 1024, 4096)
PROMPTS = (128, 512)


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 11 if quick else 41
    with suite("attention", quick, cores) as (result, peers):
        for length in CACHES[:1] if quick else CACHES:
            compare(result, decode(length), peers, rounds)
        for length in PROMPTS[:1] if quick else PROMPTS:
            compare(result, prompt(length), peers, rounds)
    return result


def _scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query * 0.5, key, value) * 2


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query * 0.5, key, value, is_causal=True) * 2


def decode(length: int) -> Workload:
    key, value = (torch.randn(1, HEADS, length, SIZE) for _ in range(2))
    name = f"one query, {HEADS} heads of {SIZE}, {length} keys"
    return Workload(name, _scaled, (torch.randn(1, HEADS, 1, SIZE), key, value))


def prompt(length: int) -> Workload:
    tensors = tuple(torch.randn(1, HEADS, length, SIZE) for _ in range(3))
    return Workload(f"causal, {HEADS} heads of {SIZE}, {length} tokens", _causal, tensors)
