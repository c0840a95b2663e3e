"""torch's functional collectives as a serial reference: the bits of all ranks are gathered, then reduced in rank order.

The functions have the names and parameters of `torch.distributed._functional_collectives`, so that one model runs with
either. Floats of 16 bits are reduced in float32.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

_REDUCTIONS = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}
_BOOL_REDUCTIONS = {
    "sum": torch.logical_or,
    "max": torch.logical_or,
    "min": torch.logical_and,
    "product": torch.logical_and,
}


def contributions(tensor: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """The tensor of every rank, bit by bit; their shapes may differ."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, tensor.contiguous(), group)
    return gathered


def reduced(tensors: list[torch.Tensor], reduction: str) -> torch.Tensor:
    first = tensors[0]
    if first.dtype is torch.bool:
        return reduce(_BOOL_REDUCTIONS[reduction], tensors)
    is_short = first.dtype in (torch.float16, torch.bfloat16)
    total = reduce(_REDUCTIONS[reduction], [tensor.float() if is_short else tensor for tensor in tensors])
    if reduction == "avg":
        count = len(tensors)
        total = total / count if first.is_floating_point() else total.div(count, rounding_mode="trunc")
    return total.to(first.dtype)


def all_reduce(tensor: torch.Tensor, reduce_op: str, group: Any) -> torch.Tensor:
    return reduced(contributions(tensor, group), reduce_op)


def all_reduce_coalesced(tensors: list[torch.Tensor], reduce_op: str, group: Any) -> list[torch.Tensor]:
    return [all_reduce(tensor, reduce_op, group) for tensor in tensors]


def all_gather_single(tensor: torch.Tensor, gather_dim: int, group: Any) -> torch.Tensor:
    return torch.cat(contributions(tensor, group), gather_dim)


def all_gather_single_coalesced(tensors: list[torch.Tensor], group: Any) -> list[torch.Tensor]:
    return [all_gather_single(tensor, 0, group) for tensor in tensors]


def reduce_scatter_single(tensor: torch.Tensor, reduce_op: str, scatter_dim: int, group: Any) -> torch.Tensor:
    whole = all_reduce(tensor, reduce_op, group)
    return whole.chunk(dist.get_world_size(group), scatter_dim)[dist.get_rank(group)].contiguous()


def reduce_scatter_single_coalesced(
    tensors: list[torch.Tensor], reduce_op: str, scatter_dim: list[int], group: Any
) -> list[torch.Tensor]:
    return [
        reduce_scatter_single(tensor, reduce_op, dim, group) for tensor, dim in zip(tensors, scatter_dim, strict=True)
    ]


def all_to_all_single(
    tensor: torch.Tensor, output_split_sizes: list[int] | None, input_split_sizes: list[int] | None, group: Any
) -> torch.Tensor:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rows = input_split_sizes or [tensor.shape[0] // size] * size
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, tensor.split(rows), group)
    return torch.cat([parts[rank] for parts in gathered])


def broadcast(tensor: torch.Tensor, src: int, group: Any) -> torch.Tensor:
    return contributions(tensor, group)[src]


def wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
