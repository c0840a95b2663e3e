"""bench.quantized: a decode step with int8 or int4 weights, as torchao writes them, beside the same with float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .measure import Comparison, Figure, Result, measure
from .peers import BURST_S, CORES, EAGER, INDUCTOR, OURS, describe_segments, prepare, suite
from .workloads import UntiedDecoder

WIDTH, GROUP = 1024, 128
FASTER = {"int8": 2.5, "int4": 4.0}  # weights -> the time of float32 to theirs that is promised
TOLERANCE = 1e-3  # of the largest value, against the same quantised model in eager mode


class Int8Linear(nn.Module):
    """A scale per column; the matmul converts the weights."""

    weight: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scales = linear.weight.abs().amax(1) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("weight", (linear.weight / scales[:, None]).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        product = torch.mm(rows, self.weight.t().to(x.dtype)) * self.scales
        return product.reshape(*x.shape[:-1], -1)


class Int4Linear(nn.Module):
    """A scale and a zero point for each group of rows and column; the weights are packed."""

    weight: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        grouped = linear.weight.reshape(linear.out_features, -1, GROUP)
        low, high = grouped.amin(2), grouped.amax(2)
        scales = (high - low).clamp(min=1e-6) / 15
        quantised = ((grouped - low[..., None]) / scales[..., None]).round().int().reshape(linear.weight.shape)
        self.register_buffer("weight", torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantised, 1))
        pairs = torch.stack((scales, low + 8 * scales), dim=2)
        self.register_buffer("scales", pairs.transpose(0, 1).contiguous())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.weight, GROUP, self.scales)
        return product.reshape(*x.shape[:-1], -1)


PEERS = (EAGER, INDUCTOR)
LAYERS = {"int8": Int8Linear, "int4": Int4Linear}


def quantised(model: nn.Module, kind: str) -> nn.Module:
    """A copy of the model whose linear layers have such weights."""
    found = copy.deepcopy(model)
    for module in list(found.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LAYERS[kind](child))
    return found


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 11 if quick else 41
    with suite("quantized", quick, cores) as (result, _):
        model, inputs = UntiedDecoder(WIDTH).eval(), (torch.tensor([[7]]), torch.tensor([130]))
        models = {"float32": model, **{kind: quantised(model, kind) for kind in LAYERS}}
        cases: dict[str, Any] = {}
        for kind, variant in models.items():
            expected = variant(*inputs)
            for runner in (OURS, *PEERS):
                name = f"{kind}, {runner.name}"
                cases[name], report = prepare(runner, variant, inputs)
                if runner is not EAGER:
                    result.checks[name] = _near(cases[name](), expected)
                if runner is OURS:
                    result.notes.append(f"{kind}: {describe_segments(report)}")
        timings = measure(cases, rounds, budget_s=BURST_S, lead=1)
        for kind in models:
            ours, *theirs = (replace(timings[f"{kind}, {runner.name}"], name=runner.name) for runner in (OURS, *PEERS))
            result.comparisons.append(Comparison(f"decode step, hidden {WIDTH}, {kind} weights", ours, tuple(theirs)))
        for kind, limit in FASTER.items():
            ratio = timings[f"float32, {OURS.name}"].median / timings[f"{kind}, {OURS.name}"].median
            result.figures.append(
                Figure(f"decode step, hidden {WIDTH}: float32's time to {kind}'s", ratio, limit, True)
            )
    return result


def _near(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
