"""A program: one rank of a group across machines that are only told apart by name. Prints what the test looks for.

Arguments: rank, number of ranks, ranks of each machine, the file of the store.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import superkernel as sk
from superkernel.targets.ranks import membership, process_identity

ROUNDS = 4


class Model(torch.nn.Module):
    """Collectives that are divided where machines have several ranks, one inside each machine, one that never is."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor, half: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        group = dist.group.WORLD
        near = functional.wait_tensor(functional.all_reduce(counts + 1, "sum", self.inside))
        total = functional.wait_tensor(functional.all_reduce(x * 2, "sum", group))
        mean = functional.wait_tensor(functional.all_reduce(half + 1, "avg", group))
        most = functional.wait_tensor(functional.all_reduce(counts, "max", group))
        every = functional.wait_tensor(functional.all_gather_tensor(total[:5] + x[:5], 0, group))
        first = functional.wait_tensor(functional.broadcast(x - 1, 1, group))
        return total + 1, mean, most, every * 2, first, near


def reference(inputs: list[tuple[torch.Tensor, ...]], rank: int, ranks_each: int) -> tuple[torch.Tensor, ...]:
    """In the order of the ranks of a machine, then of machines; means of 16 bits are rounded once on each."""
    machines = [range(first, first + ranks_each) for first in range(0, len(inputs), ranks_each)]
    sums = [sum((inputs[r][0] * 2 for r in members[1:]), inputs[members[0]][0] * 2) for members in machines]
    total = sum(sums[1:], sums[0])
    most = torch.stack([each[2] for each in inputs]).amax(0)
    mean = torch.stack([each[1].float() + 1 for each in inputs]).mean(0)
    every = torch.cat([total[:5] + each[0][:5] for each in inputs])
    near = torch.stack([inputs[r][2] + 1 for r in machines[rank // ranks_each]]).sum(0)
    return total + 1, mean, most, every * 2, inputs[1][0] - 1, near


def inputs_of(rank: int, number: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    x = torch.randn(1003, generator=generator)
    return x, torch.randn(8, 8, generator=generator).bfloat16(), torch.randint(-99, 99, (7,), generator=generator)


def main(rank: int, ranks: int, ranks_each: int, store: str) -> None:
    torch.set_num_threads(1)

    def host_id(*_: Any) -> str:
        return f"machine {rank // ranks_each}"

    process_identity.host_id = membership.host_id = host_id
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    inside = [dist.new_group(list(range(first, first + ranks_each))) for first in range(0, ranks, ranks_each)]
    model = Model(inside[rank // ranks_each])
    fused, unfused = (
        torch.compile(model, backend="superkernel", fullgraph=True, options={"fuse": fuse}) for fuse in ("auto", "off")
    )
    for number in range(ROUNDS):
        inputs = [inputs_of(other, number) for other in range(ranks)]
        found = fused(*inputs[rank])
        for result, wanted in zip(found, reference(inputs, rank, ranks_each), strict=True):
            exact = result.dtype is not torch.bfloat16 and ranks_each > 1
            torch.testing.assert_close(
                result.float(), wanted.float(), rtol=0 if exact else 0.01, atol=0 if exact else 0.02
            )
        for result in found[:3]:  # the same bits on every rank
            everywhere = [torch.empty_like(result) for _ in range(ranks)]
            dist.all_gather(everywhere, result)
            assert all(torch.equal(other.view(torch.uint8), result.view(torch.uint8)) for other in everywhere)
        if number == 0:
            again = unfused(*inputs[rank])
            assert all(
                torch.equal(one.view(torch.uint8), two.view(torch.uint8)) for one, two in zip(found, again, strict=True)
            )
    report = sk.explain(model, *inputs_of(rank, 0))
    text = str(report)
    fused_collectives = sum(len(segment.collectives) for scope in report.scopes for segment in scope.segments)
    print(f"fused inside: {fused_collectives}; across: {'collective across machines' in text}")
    if rank == 0:
        print(text)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
