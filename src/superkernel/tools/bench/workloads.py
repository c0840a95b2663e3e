"""bench.workloads: the models that are timed, with inputs: blocks, decode steps, experts, some with little to gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .first_call import WIDTH, blocks

TOKENS, ATTENTION_HEADS = 64, 4
LAYERS, VOCABULARY, LENGTH = 6, 4096, 256
INNER = {288: 768, 512: 1376, 1024: 2816}  # by width
HEADS = {288: 6, 512: 8, 1024: 16}
EXPERTS, CHOSEN = 8, 2


@dataclass(frozen=True)
class Workload:
    name: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    tolerance: float = 1e-4  # of the largest value

    @property
    def weight_bytes(self) -> int:
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else ()
        return sum(parameter.nbytes for parameter in parameters)

    @property
    def read_bytes(self) -> int:
        """What every call reads once: weights, and the caches of a decode step."""
        buffers = self.model.buffers() if isinstance(self.model, nn.Module) else ()
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


class Attention(nn.Module):
    """Projections, scores, softmax and values, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / (WIDTH // ATTENTION_HEADS) ** 0.5
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def _heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], ATTENTION_HEADS, WIDTH // ATTENTION_HEADS).transpose(1, 2)


def eight_inputs() -> Workload:
    return Workload("a call with 8 inputs", sum_of_eight, tuple(torch.randn(64) for _ in range(8)))


class ControlPolicy(nn.Module):
    """A recurrent cell and four linear layers, one row: what a controller calls at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(48, 128)
        self.layers = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in ((128, 128), (128, 64), (64, 64)))
        self.action = nn.Linear(64, 12)

    def forward(self, observation: Tensor, state: Tensor) -> Tensor:
        """The action, then the new state."""
        state = self.cell(observation, state)
        x = state
        for layer in self.layers:
            x = F.elu(layer(x))
        return torch.cat([torch.tanh(self.action(x)), state], dim=1)


class Recommender(nn.Module):
    """Embedded categories and dense features, their pairwise products, and a network over them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 81, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        features = [self.dense(dense), *(table(categories[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(features, dim=1)
        products = (stacked @ stacked.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([features[0], products], dim=1)))


def control_policy() -> Workload:
    return Workload("control policy, GRU cell", ControlPolicy(), (torch.randn(1, 48), torch.randn(1, 128)))


def recommender() -> Workload:
    return Workload("recommender, 8 tables", Recommender(), (torch.randn(4, 13), torch.randint(0, 1000, (4, 8))))


def others() -> list[Workload]:
    """Long kernels, a single kernel, and boundaries beside real work."""
    return [
        Workload("one matmul, 512 x 1024 x 1024", nn.Linear(1024, 1024, bias=False), (torch.randn(512, 1024),)),
        Workload("three pointwise ops, 1024 elements", chain_of_three, (torch.randn(1024),)),
        Workload("softmax, 8 x 50257", softmax, (torch.randn(8, 50257),)),
        Workload("attention, 64 tokens, 4 heads of 64", Attention(), (torch.randn(1, TOKENS, WIDTH),)),
    ]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """Attention over a cache that it writes to, then a gated feed-forward network."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = HEADS[width]
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, INNER[width], bias=False) for _ in range(2))
        self.down = nn.Linear(INNER[width], width, bias=False)
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        cache = torch.randn(1, self.heads, LENGTH, width // self.heads)
        self.register_buffer("keys", cache.clone())
        self.register_buffer("values", cache.clone())

    def forward(self, x: Tensor, position: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        normal = self.first(x)
        query, key = (_turned(self._heads(project(normal)), turn) for project in (self.query, self.key))
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, self._heads(self.value(normal)))
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        normal = self.second(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(1, 1, self.heads, -1).transpose(1, 2)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding."""
    cosine, sine = turn
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class Decoder(nn.Module):
    """Embedding, six layers, logits: batch 1, one token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(LAYERS))
        self.norm = RMSNorm(width)
        self.size = width // HEADS[width]

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.embedding(token)
        frequency = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angle = torch.cat((position * frequency, position * frequency))
        turn = angle.cos(), angle.sin()
        mask = (torch.arange(LENGTH) <= position).view(1, 1, 1, LENGTH)
        for layer in self.layers:
            x = layer(x, position, mask, turn)
        return self.logits(self.norm(x))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding.weight)


class UntiedDecoder(Decoder):
    """A decoder whose logits have weights of their own."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x)


def decode_step(width: int) -> Workload:
    model = Decoder(width).eval()
    return Workload(f"decode step, hidden {width}", model, (torch.tensor([[7]]), torch.tensor([130])))


class ExpertLayer(nn.Module):
    """RMSNorm, gate, softmax, the best two of eight experts; all experts compute, and the gate weighs them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        best, chosen = torch.softmax(self.gate(normal), dim=-1).topk(CHOSEN, dim=-1)
        shares = torch.zeros(x.shape[0], EXPERTS).scatter(1, chosen, best / best.sum(-1, keepdim=True))
        left, right = torch.bmm(normal.expand(EXPERTS, *x.shape), self.up).chunk(2, dim=-1)
        computed = torch.bmm(F.silu(left) * right, self.down)
        return x + (computed * shares.t().unsqueeze(-1)).sum(0)


def expert_layers(width: int, tokens: int) -> Workload:
    model = nn.Sequential(*(ExpertLayer(width) for _ in range(LAYERS))).eval()
    return Workload(f"six MoE layers, hidden {width}, tokens {tokens}", model, (torch.randn(tokens, width),))
