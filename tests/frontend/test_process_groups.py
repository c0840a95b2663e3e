"""Process groups of torch as the front end knows them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from frontend.fused import check, compiled

import superkernel as sk
from superkernel.errors import UnsupportedError
from superkernel.frontend.process_groups import find_process_group


def test_ranks_wait_for_each_other_as_long_as_the_user_told_torch(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=7))
    try:
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        found = find_process_group(name)
        assert found.timeout_s == 7.0 and found.group.ranks == (0,) and found.is_alive
    finally:
        dist.destroy_process_group()
    assert not found.is_alive
    with pytest.raises(UnsupportedError, match="is not known in this process"):
        find_process_group(name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_a_collective_may_change_what_torch_has_returned(world: Any) -> None:
    """Inductor runs it in place, in memory that a library call has returned."""
    run = check(lambda x: functional.all_reduce(torch.cdist(x, x), "sum", world), torch.rand(6, 6))
    (scope,) = run.report.scopes
    assert [entry.op for entry in scope.unfusible] == ["aten::_cdist_forward"]


def test_what_torch_communicates_is_waited_for_where_operators_come_compiled(world: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", world) + 1

    (scope,) = sk.explain(model, torch.rand(6), options={"target": "ascend"}).scopes
    assert [entry.op.split("::")[1] for entry in scope.unfusible] == ["all_reduce", "wait_tensor"]


def test_what_arrives_is_waited_for_before_it_is_copied_into_the_layout_of_the_trace(world: Any) -> None:
    """Shape inference keeps the order of the dimensions, and torch makes the result contiguous."""
    model = compiled(lambda x: functional.broadcast((x * 2).t(), 0, world) + 1, target="ascend")
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(model(x), x.t() * 2 + 1)
    with torch.profiler.profile() as profile:
        model(x)
    names = [event.name for event in sorted(profile.events(), key=lambda event: event.time_range.start)]
    after = names[names.index("_c10d_functional::broadcast") :]
    assert after.index("_c10d_functional::wait_tensor") < after.index("aten::as_strided")


def test_an_operator_writes_after_what_reads_the_old_value(tmp_path: Path) -> None:
    """Inductor lets it write first, where it keeps the order of the program."""

    @torch.library.custom_op("process_groups::invert", mutates_args=("x",))
    def invert(x: torch.Tensor) -> None:
        x.copy_(~x)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = ~x
        invert(x)
        return before[..., ::2], functional.all_reduce(x, "max", dist.group.WORLD)

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        check(model, torch.tensor([[True, False, True, True]]))
    finally:
        dist.destroy_process_group()
