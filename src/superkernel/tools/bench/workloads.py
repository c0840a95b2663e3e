"""bench.workloads: the models that are timed, with inputs: the four blocks, and some with little to gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .first_call import WIDTH, blocks

TOKENS, HEADS = 64, 4


@dataclass(frozen=True)
class Workload:
    name: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    tolerance: float = 1e-4  # of the largest value

    @property
    def weight_bytes(self) -> int:
        parameters = self.model.parameters() if isinstance(self.model, torch.nn.Module) else ()
        return sum(parameter.nbytes for parameter in parameters)

    @property
    def read_bytes(self) -> int:
        """What every call reads once: weights, and the caches of a decode step."""
        buffers = self.model.buffers() if isinstance(self.model, torch.nn.Module) else ()
        return self.weight_bytes + sum(int(buffer.nbytes) for buffer in buffers)


def four_blocks(rows: int) -> Workload:
    name = f"four blocks, {rows} row" + ("s" if rows > 1 else "")
    return Workload(name, blocks(), (torch.randn(rows, WIDTH),))


def sum_of_eight(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    return a + b + c + d + e + f + g + h


def chain_of_three(x: Any) -> Any:
    return torch.relu(x * 2 + 1)


def softmax(x: Any) -> Any:
    return torch.softmax(x, dim=-1)


class Attention(torch.nn.Module):
    """Projections, scores, softmax and values, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)


def eight_inputs() -> Workload:
    return Workload("a call with 8 inputs", sum_of_eight, tuple(torch.randn(64) for _ in range(8)))


def others() -> list[Workload]:
    """Long kernels, a single kernel, and boundaries beside real work."""
    return [
        Workload("one matmul, 512 x 1024 x 1024", torch.nn.Linear(1024, 1024, bias=False), (torch.randn(512, 1024),)),
        Workload("three pointwise ops, 1024 elements", chain_of_three, (torch.randn(1024),)),
        Workload("softmax, 8 x 50257", softmax, (torch.randn(8, 50257),)),
        Workload("attention, 64 tokens, 4 heads of 64", Attention(), (torch.randn(1, TOKENS, WIDTH),)),
    ]
