"""bench.sharded_decode: a width -> a decode step of six layers on the ranks of this group: ours, Inductor's, eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from . import first_call
from .peers import EAGER, INDUCTOR, OURS, Runner, describe_segments, prepare
from .workloads import LAYERS, DecoderLayer, UntiedDecoder

_NAMES = {OURS.name: "superkernel", INDUCTOR.name: "inductor + gloo", EAGER.name: "gloo"}
_COLUMNS, _ROWS = ("query", "key", "value", "gate", "up"), ("out", "down")
TOKEN, POSITION = 7, 130


@dataclass
class ShardedRunners:
    """The step by every runner, each with weights and caches of its own."""

    name: str
    cases: dict[str, Callable[[], Any]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def shard(model: UntiedDecoder) -> None:
    """Heads, inner width and logits are divided between the ranks; each rank keeps its part of the caches."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (ranks,))
    plan = {name: ColwiseParallel() for name in _COLUMNS} | {name: RowwiseParallel() for name in _ROWS}
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        parallelize_module(layer, mesh, plan)
        layer.heads //= ranks
        layer.keys, layer.values = (cache.chunk(ranks, 1)[rank].clone() for cache in (layer.keys, layer.values))
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def sharded_decode(width: int) -> ShardedRunners:
    runners = ShardedRunners(f"tensor-parallel decode step, hidden {width}, {LAYERS} layers")
    inputs = torch.tensor([[TOKEN]]), torch.tensor([POSITION])
    whole = _model(width)
    expected = whole(*inputs)
    for runner in (OURS, INDUCTOR, EAGER):
        model = _model(width)
        shard(model)
        # DTensor weights cannot be copied as plain ones are: the model of this runner is its own already.
        call, report = prepare(Runner(runner.name, runner.what, runner.backend), model.forward, inputs)
        name = _NAMES[runner.name]
        runners.checks[name] = first_call.close(call(), expected)
        runners.cases[name] = call
        if runner is OURS:
            collectives = [item for scope in report.scopes for part in scope.segments for item in part.collectives]
            runners.notes.append(f"{runners.name}: {describe_segments(report)}; {len(collectives)} collectives fused")
    return runners


def _model(width: int) -> UntiedDecoder:
    """The same weights on every rank."""
    torch.manual_seed(0)
    model: UntiedDecoder = UntiedDecoder(width).eval()
    return model
