"""Ranks of a process group across machines, in one process: how each divides a graph, and what all of them compute."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Interpreter

from superkernel.frontend import machine_groups, process_groups
from superkernel.frontend.machine_collectives import divide_collectives
from superkernel.frontend.machine_groups import Machines
from superkernel.frontend.process_groups import ProcessGroupRanks
from superkernel.model.ranks import RankGroup
from superkernel.targets.cpu.collectives import CpuCollectives
from superkernel.targets.ranks.rank_session import RankSession

WHOLE = "whole"
FIRST_RANK = 10  # global ranks are not places
_JOINED = {"sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum, "product": torch.mul}
collective = torch.ops._c10d_functional


class DictStore:
    """What all ranks have said; a wait for what is missing fails at once."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.said[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.said[key]

    def wait(self, keys: list[str], limit: timedelta) -> None:
        if missing := [key for key in keys if key not in self.said]:
            raise RuntimeError(f"wait timeout after {limit}, keys: {missing}")


class EmulatedGroup:
    """`hosts` has a letter for the machine of each rank."""

    def __init__(self, hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts, self.store, self.handle = hosts, DictStore(), object()
        self.support, self._session = CpuCollectives(), RankSession("token", (), tuple(hosts))
        self._patch = monkeypatch
        monkeypatch.setattr(process_groups, "_resolved", lambda name: self.handle if name == WHOLE else None)

    def become(self, rank: int) -> ProcessGroupRanks:
        """What the process of one rank knows."""
        ranks = tuple(range(FIRST_RANK, FIRST_RANK + len(self.hosts)))
        found = ProcessGroupRanks(RankGroup(WHOLE, ranks, rank), self.handle, self.store, 1.0)
        self._patch.setattr(process_groups, "_known", {WHOLE: found})
        self._patch.setattr(process_groups, "_sessions", {WHOLE: (self.handle, self._session)})
        self._patch.setattr(machine_groups, "_agreements", Counter())
        return found

    def divide(self, rank: int, module: GraphModule) -> GraphModule | None:
        self.become(rank)
        return divide_collectives(module, self.support)

    def members(self, rank: int, ranks: int) -> list[int]:
        """The places that take part in a collective of so many ranks: all, or those of a machine."""
        machines = Machines.from_hosts(self.hosts, rank)
        return list(range(len(self.hosts))) if ranks == len(self.hosts) else machines.members(machines.of[rank])

    def run(self, modules: Sequence[GraphModule], inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The graph of each rank in a thread."""
        meetings = _Meetings(self)
        results: list[Any] = [None] * len(modules)

        def run(rank: int) -> None:
            try:
                (results[rank],) = _Rank(modules[rank], rank, meetings).run(inputs[rank])
            except BaseException as error:
                results[rank] = error
                meetings.stop()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(modules))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


class _Meetings:
    """Ranks that bring what they have to the n-th collective of a group, and get what all have brought."""

    def __init__(self, group: EmulatedGroup) -> None:
        self._group, self._changed, self._stopped = group, threading.Condition(), False
        self._brought: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self._counts: dict[tuple[tuple[int, ...], int], int] = {}

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def meet(self, rank: int, ranks: int, brought: Any) -> tuple[int, list[Any]]:
        """The place of this rank, and what all have brought, by place."""
        members = name = tuple(self._group.members(rank, ranks))
        with self._changed:
            number = self._counts.get((name, rank), 0)
            self._counts[name, rank] = number + 1
            there = self._brought.setdefault((name, number), {})
            there[rank] = brought
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._stopped or len(there) == len(members), 60) or self._stopped:
                raise RuntimeError(f"rank {rank}: not all ranks came to collective {number} of {name}")
        return members.index(rank), [there[member] for member in members]


class _Rank(Interpreter):
    """A graph as one rank runs it."""

    def __init__(self, module: GraphModule, rank: int, meetings: _Meetings) -> None:
        super().__init__(module)
        self._rank, self._meetings = rank, meetings

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is collective.wait_tensor.default:
            return args[0]
        if target is collective.reduce_scatter_tensor.default:
            given, reduction, ranks, _ = args
            place, brought = self._meetings.meet(self._rank, ranks, (given, reduction))
            assert len(brought) == ranks and all(other[1] == reduction for other in brought)
            parts = [tensor.chunk(ranks)[place].float() for tensor, _ in brought]
            if not given.dtype.is_floating_point:
                parts = [tensor.chunk(ranks)[place] for tensor, _ in brought]
            total = parts[0]
            for part in parts[1:]:
                total = _JOINED[reduction](total, part)
            return (total / ranks if reduction == "avg" else total).to(given.dtype)
        if target is collective.all_gather_into_tensor.default:
            given, ranks, _ = args
            _, brought = self._meetings.meet(self._rank, ranks, given)
            assert len(brought) == ranks
            return torch.cat(brought)
        if target is collective.all_to_all_single.default:
            given, received, sent, _ = args
            place, brought = self._meetings.meet(self._rank, len(sent), (given, sent))
            parts = [tensor.split(splits)[place] for tensor, splits in brought]
            assert [part.shape[0] for part in parts] == list(received)
            return torch.cat(parts)
        return super().call_function(target, args, kwargs)
