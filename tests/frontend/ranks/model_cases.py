"""Models that torch's own API shards, and what else reaches the back end with collectives: run by every rank."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from frontend.ranks.cases import Outcome, compiled, digest_of, group, random, segments_of, torch_calls_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import superkernel as sk
from superkernel.frontend.report import collecting

WIDTH, HEADS = 32, 4


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """A decoder layer in the shape of Llama's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        heads = [
            each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(0, 1)
            for each in (self.q(normed), self.k(normed), self.v(normed))
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(attended.transpose(0, 1).flatten(1))
        normed = self.second_norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


_COLWISE = ("q", "k", "v", "gate", "up")


def _mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _sharded_mlp() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    model = Mlp()
    sharded = parallelize_module(copy.deepcopy(model), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, sharded, random(0, 6, WIDTH)


def _sharded_block() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(2)
    model = Block()
    plan: dict[str, Any] = {name: ColwiseParallel() for name in _COLWISE}
    plan |= {"o": RowwiseParallel(), "down": RowwiseParallel()}
    return model, parallelize_module(copy.deepcopy(model), _mesh(), plan), random(0, 6, WIDTH)


class SequenceBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.norm(x))


def _sequence_parallel() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = SequenceBlock()
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "mlp": PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),)),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    return model, parallelize_module(copy.deepcopy(model), _mesh(), plan), random(0, 6, WIDTH)


SHARDED = {"mlp": _sharded_mlp, "block": _sharded_block, "sequence": _sequence_parallel}


def sharded_model(rank: int, name: str) -> Outcome:
    """Equal to one process, and to fuse=off in bits."""
    torch._dynamo.reset()
    model, sharded, x = SHARDED[name]()
    mine = x.chunk(dist.get_world_size())[rank] if name == "sequence" else x
    with torch.no_grad(), collecting() as report:
        found = compiled(sharded)(mine)
    torch._dynamo.reset()
    with torch.no_grad():
        off = compiled(sharded, fuse="off")(mine)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(found, off)
    return Outcome(digest_of(found), segments_of(report), torch_calls_of(report))


def dtensors(rank: int) -> list[dict[str, int]]:
    """Redistribution of DTensors: sharded rows to sharded columns, to partial sums, to all."""
    torch._dynamo.reset()
    mesh = _mesh()
    whole = random(0, 8, 6)

    def function(x: DTensor) -> torch.Tensor:
        y = (x * 2).redistribute(mesh, [Shard(1)]) + 1
        return (y @ y.redistribute(mesh, [Shard(0)]).t()).full_tensor()

    with collecting() as report:
        found = compiled(function)(distribute_tensor(whole, mesh, [Shard(0)]))
    y = whole * 2 + 1
    torch.testing.assert_close(found, y @ y.t(), rtol=1e-4, atol=1e-4)
    return segments_of(report)


def in_place(rank: int) -> list[dict[str, int]]:
    """torch.distributed's own functions inside of compiled code."""
    torch._dynamo.reset()

    def function(
        x: torch.Tensor, y: torch.Tensor, gathered: torch.Tensor, scattered: torch.Tensor, sent: torch.Tensor
    ) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        dist.all_gather_single(gathered, x + 1)
        dist.reduce_scatter_single(scattered, gathered * 2)
        dist.all_to_all_single(sent, gathered + 3)
        return x + y

    def arguments() -> list[torch.Tensor]:
        size = dist.get_world_size()
        return [random(rank, 4), random(rank, 4), torch.zeros(4 * size), torch.zeros(4), torch.zeros(4 * size)]

    eager, own = arguments(), arguments()
    expected = function(*eager)
    with collecting() as report:
        found = compiled(function)(*own)
    torch.testing.assert_close([found, *own], [expected, *eager])
    return segments_of(report)


def scoped(rank: int) -> tuple[list[dict[str, int]], str]:
    """A scope across collectives; the strict check has nothing against them."""
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        with sk.super_kernel("across", "strict-scope-check=abort"):
            y = functional.all_reduce(torch.relu(x), "sum", group("world")) * 3
            z = functional.all_gather_single(y.abs(), 0, group("world")) - 1
        return z.sin()

    x = random(rank, 6)
    with collecting() as report:
        found = compiled(function)(x)
    torch.testing.assert_close(found, function(x))
    torch._dynamo.reset()
    explained = sk.explain(function, x)
    collectives = explained.to_dict()["scopes"][0]["segments"][0]["collectives"]
    assert [each["bytes"] for each in collectives] == [24, 24]
    return segments_of(report), str(explained)


def trained(rank: int) -> None:
    """Gradients through collectives are those of eager mode."""
    torch._dynamo.reset()
    model, sharded, x = _sharded_mlp()
    compiled(sharded)(x).square().sum().backward()
    model(x).square().sum().backward()
    for (name, ours), theirs in zip(sharded.named_parameters(), model.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor), name
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, rtol=1e-4, atol=1e-4)


def shapes_and_modes(rank: int) -> None:
    """New shapes have new memory; inference mode and other modes of torch.compile change nothing."""
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group("world")) + 1

    both = torch.compile(function, backend="superkernel")
    for count in (3, 5, 700, 3, 5):
        x = torch.arange(count).float() + rank
        ranks = dist.get_world_size()
        expected = 2 * (ranks * torch.arange(count).float() + sum(range(ranks))) + 1
        assert torch.equal(both(x), expected)
        with torch.inference_mode():
            assert torch.equal(both(x), expected)
