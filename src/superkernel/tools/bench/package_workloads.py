"""bench.package_workloads: the models of the suite package, with inputs; where peers keep no state, a form without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convolution_nets import convolution_nets
from .workloads import LENGTH, Decoder, DecoderLayer, Workload, control_policy, decode_step, four_blocks, recommender

ENCODER_WIDTH, ENCODER_LAYERS, ENCODER_TOKENS, ENCODER_HEADS = 192, 4, 12, 4
CHANNELS, STATES, STEP_LAYERS = 128, 16, 4


@dataclass(frozen=True)
class PackageWorkload:
    """`stateless`: the same computation for formats without states: what is kept comes in, what changes goes out."""

    workload: Workload
    limit: float | None  # the promised ratio of the best peer's time to ours
    stateless: Workload | None = None

    @property
    def for_formats_without_states(self) -> Workload:
        return self.stateless or self.workload


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, normalised before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*part.shape[:2], self.heads, -1).transpose(1, 2)
            for part in self.projections(self.first(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


def encoder() -> Workload:
    layers = nn.Sequential(*(EncoderLayer(ENCODER_WIDTH, ENCODER_HEADS) for _ in range(ENCODER_LAYERS))).eval()
    name = f"encoder, {ENCODER_LAYERS} x {ENCODER_WIDTH}, {ENCODER_TOKENS} tokens"
    return Workload(name, layers, (torch.randn(1, ENCODER_TOKENS, ENCODER_WIDTH),))


class StateSpaceLayer(nn.Module):
    """One step of a selective state-space layer: the decay and the inputs of the state depend on the token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS)
        self.enter, self.leave = nn.Linear(CHANNELS, 2 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.selected = nn.Linear(CHANNELS, 2 * STATES)
        self.step = nn.Linear(CHANNELS, CHANNELS)
        self.rates = nn.Parameter(torch.rand(CHANNELS, STATES))
        self.skip = nn.Parameter(torch.ones(CHANNELS))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        values, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        values = F.silu(values)
        step = F.softplus(self.step(values))
        source, reader = self.selected(values).chunk(2, dim=-1)
        decay = torch.exp(-step.unsqueeze(-1) * torch.exp(self.rates))
        state = decay * state + (step * values).unsqueeze(-1) * source.unsqueeze(-2)
        read = (state * reader.unsqueeze(-2)).sum(-1) + self.skip * values
        return x + self.leave(read * F.silu(gate)), state


class StateSpaceStep(nn.Module):
    """All layers on one token; the states come in and go out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StateSpaceLayer() for _ in range(STEP_LAYERS))

    def forward(self, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        changed = []
        for index, layer in enumerate(self.layers):
            x, state = layer(x, states[index])
            changed.append(state)
        return x, torch.stack(changed)


def state_space_step() -> Workload:
    states = torch.randn(STEP_LAYERS, 1, CHANNELS, STATES)
    name = f"state-space step, {STEP_LAYERS} x {CHANNELS} x {STATES}"
    return Workload(name, StateSpaceStep().eval(), (torch.randn(1, CHANNELS), states))


class StatelessDecoder(nn.Module):
    """A decode step that reads the caches as inputs and returns the row that belongs into each.

    The scores of the new token stand beside those of the cache, so that no cache is copied.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decoder = self.decoder
        x = decoder.embedding(token)
        frequency = 10000.0 ** (-torch.arange(0, decoder.size, 2) / decoder.size)
        angle = torch.cat((position * frequency, position * frequency))
        earlier = (torch.arange(LENGTH) < position).view(1, 1, 1, LENGTH)
        new_keys, new_values = [], []
        for index, layer in enumerate(decoder.layers):
            assert isinstance(layer, DecoderLayer)
            x, key, value = self._layer(layer, x, earlier, (angle.cos(), angle.sin()), keys[index], values[index])
            new_keys.append(key)
            new_values.append(value)
        return decoder.logits(decoder.norm(x)), torch.stack(new_keys), torch.stack(new_values)

    @staticmethod
    def _layer(
        layer: DecoderLayer, x: Tensor, earlier: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        def turned(heads: Tensor) -> Tensor:
            left, right = heads.chunk(2, dim=-1)
            return heads * turn[0] + torch.cat((-right, left), dim=-1) * turn[1]

        def heads_of(rows: Tensor) -> Tensor:
            return rows.view(1, 1, layer.heads, -1).transpose(1, 2)

        normal = layer.first(x)
        query, key, value = (
            turned(heads_of(layer.query(normal))), turned(heads_of(layer.key(normal))), heads_of(layer.value(normal))
        )  # fmt: skip
        scale = query.shape[-1] ** -0.5
        cached = (query @ keys.transpose(-2, -1) * scale).masked_fill(~earlier, float("-inf"))
        shares = torch.softmax(torch.cat((cached, (query * key).sum(-1, keepdim=True) * scale), dim=-1), dim=-1)
        mixed = shares[..., :LENGTH] @ values + shares[..., LENGTH:] * value
        x = x + layer.out(mixed.transpose(1, 2).reshape(x.shape))
        normal = layer.second(x)
        return x + layer.down(F.silu(layer.gate(normal)) * layer.up(normal)), key, value


def decode_with_states(width: int) -> PackageWorkload:
    step = decode_step(width)
    decoder: Any = step.model
    caches = (
        torch.stack([layer.keys for layer in decoder.layers]),
        torch.stack([layer.values for layer in decoder.layers]),
    )
    stateless = Workload(step.name, StatelessDecoder(decoder), (*step.inputs, *caches), step.tolerance)
    return PackageWorkload(step, 1.2, stateless)


_WORKLOADS: tuple[Callable[[], PackageWorkload], ...] = (
    lambda: PackageWorkload(control_policy(), 1.5),
    lambda: PackageWorkload(recommender(), 1.5),
    lambda: PackageWorkload(four_blocks(1), 1.5),
    lambda: PackageWorkload(state_space_step(), 1.5),
    lambda: PackageWorkload(encoder(), 1.2),
    lambda: decode_with_states(288),
    lambda: PackageWorkload(convolution_nets()[0], None),
)


WORKLOAD_COUNT = len(_WORKLOADS)


def package_workload(index: int) -> PackageWorkload:
    return _WORKLOADS[index]()


def package_workloads(quick: bool) -> list[PackageWorkload]:
    return [package_workload(index) for index in range(1 if quick else WORKLOAD_COUNT)]
