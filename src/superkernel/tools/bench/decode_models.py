"""bench.decode_models: one decode step of a Llama-like model, and six layers of experts, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workloads import Workload

LAYERS, VOCABULARY, LENGTH = 6, 4096, 256
INNER = {288: 768, 512: 1376, 1024: 2816}  # by width
HEADS = {288: 6, 512: 8, 1024: 16}
EXPERTS, CHOSEN = 8, 2


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
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
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
        return F.linear(self.norm(x), self.embedding.weight)


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
