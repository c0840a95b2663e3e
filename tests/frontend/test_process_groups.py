"""Process groups of torch as the front end knows them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from frontend.fused import check

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


def test_a_collective_may_change_what_torch_has_returned(tmp_path: Path) -> None:
    """Inductor runs it in place, in memory that a library call has returned."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        run = check(lambda x: functional.all_reduce(torch.cdist(x, x), "sum", world), torch.rand(6, 6))
    finally:
        dist.destroy_process_group()
    (scope,) = run.report.scopes
    assert [entry.op for entry in scope.unfusible] == ["aten::_cdist_forward"]
