"""bench.rank_cases: what one rank of the suite collectives does: checks and times, together with the other ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ...errors import LaunchError
from ...model.op import Op
from ...model.subkernel import SubKernel
from ...runtime.compile import compile
from ...targets.buffers import aligned_empty
from ...targets.collectives import CollectiveKind
from ...targets.cpu.runtime.host_library import team_policy
from .boundary import KERNELS, LONG
from .peers import compile_anew
from .rank_chain import ITEM, FusedChain, collective, input_of
from .rank_launch import RankTask
from .rank_timing import Alone, times_of_ranks
from .sharded_decode import sharded_decode

SHORT_CHAIN, LONG_CHAIN = 1, 33
CHAINED = 64 << 10  # bytes: up to here one collective costs what 32 more of them cost
COMPILED = 4  # collectives of a function compiled by Inductor
BUDGET_S = 0.02
WORKLOAD_S = 5.0  # a workload takes about as long
COPY_ADD = "copying and adding"
OURS, EAGER, INDUCTOR = "superkernel", "gloo", "inductor + gloo"

Call = Callable[[torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class CollectiveTask:
    """What is to be measured."""

    sizes: list[int]  # bytes of the larger tensor of a rank
    rounds: int
    small_bytes: int  # of the all_reduce of the figure
    floor_bytes: int  # of the all_reduce that is compared with copying and adding
    width: int  # of the model; 0: no model


@dataclass
class Measured:
    checks: dict[str, bool] = field(default_factory=dict)
    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # workload -> runner -> us per round
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"checks": self.checks, "times": self.times, "notes": self.notes}

    def check(self, name: str, right: bool) -> None:
        """Right on all ranks."""
        said = torch.tensor([int(right)])
        dist.all_reduce(said, dist.ReduceOp.MIN)
        self.checks[name] = bool(said)


def main(words: Sequence[str]) -> int:
    told = RankTask.read(words)
    told.join()
    task, measured = CollectiveTask(**told.task), Measured()
    begin, left_out = time.monotonic(), []
    with torch.no_grad():
        for name, workload in workloads(measured, task, told).items():
            if not told.has_time(WORKLOAD_S):
                left_out.append(name)
                continue
            started = time.monotonic()
            workload()
            now = time.monotonic()
            told.reply(measured.to_dict(), f"{name}: {now - started:.1f} s, {now - begin:.0f} s in all")
    if left_out:
        measured.notes.append(f"not measured, because the time was over: {', '.join(left_out)}")
        told.reply(measured.to_dict(), measured.notes[-1])
    dist.barrier()
    dist.destroy_process_group()
    return 0


def workloads(measured: Measured, task: CollectiveTask, told: RankTask) -> dict[str, Callable[[], None]]:
    """By name, in the order in which they matter: what does not fit into the time is left out.

    What the figures need comes first, then all_reduce in all sizes, then the others by size.
    """
    compiled = {
        kind: compile_anew(_functional_chain(kind, told.ranks), "inductor", {}, dynamic=True) for kind in CollectiveKind
    }

    def latency_of(kind: CollectiveKind, nbytes: int) -> Callable[[], None]:
        return lambda: latency(measured, kind, nbytes, compiled[kind], task, told)

    first = (CollectiveKind.ALL_REDUCE, task.small_bytes)
    by_size = [(kind, nbytes) for nbytes in task.sizes for kind in CollectiveKind if (kind, nbytes) != first]
    others = sorted(by_size, key=lambda workload: workload[0] is not CollectiveKind.ALL_REDUCE)
    found: dict[str, Callable[[], None]] = {workload_name(*first): latency_of(*first)}
    found["boundaries"] = lambda: boundaries(measured, task, told)
    found[f"all_reduce beside {COPY_ADD}"] = lambda: share_of_copying(measured, task, told)
    if task.width:
        found["decode step"] = lambda: decode(measured, task)
    return found | {workload_name(*other): latency_of(*other) for other in others}


def workload_name(kind: CollectiveKind, nbytes: int) -> str:
    return f"{kind} of {size_name(nbytes)}"


def latency(
    measured: Measured, kind: CollectiveKind, nbytes: int, compiled: Call, task: CollectiveTask, told: RankTask
) -> None:
    """A collective of one size: inside a super kernel, by gloo, by gloo in what Inductor compiled."""
    name, chained = workload_name(kind, nbytes), nbytes <= CHAINED
    try:
        chains = [FusedChain(kind, nbytes, n, told.threads) for n in ([SHORT_CHAIN, LONG_CHAIN] if chained else [1])]
    except LaunchError as reason:  # on all ranks alike: no room for the windows
        measured.notes.append(f"{name} was not measured: {reason}")
        return
    for chain in chains:
        measured.check(f"{name}: {OURS}, {chain.length} in one launch", chain.check())
    peer = Peer(kind, chains[0].taken, chains[0].given, told)
    measured.check(f"{name}: {EAGER}", peer.check(peer.eager()))
    measured.check(f"{name}: {INDUCTOR}", peer.check_chain(compiled(peer.source)))
    cases: dict[str, Any] = {f"{OURS} {chain.length}": chain for chain in chains}
    cases[EAGER] = peer.eager
    cases[INDUCTOR] = lambda: compiled(peer.source)
    times = times_of_ranks(cases, task.rounds, BUDGET_S)
    times[INDUCTOR] = [taken / COMPILED for taken in times[INDUCTOR]]
    ours = [times.pop(f"{OURS} {chain.length}") for chain in chains]
    more = chains[-1].length - chains[0].length
    single = [(long - short) / more for short, long in zip(*ours, strict=True)] if chained else ours[0]
    measured.times[name] = {OURS: single, **times}
    for chain in chains:
        chain.close()


class Peer:
    """The same collective of torch.distributed, on tensors of the same values."""

    def __init__(self, kind: CollectiveKind, taken: int, given: int, told: RankTask) -> None:
        self._kind, self._told = kind, told
        self.source = torch.from_numpy(input_of(told.rank, taken))
        self._in_place = self.source.clone()
        self._result = torch.zeros(given)
        inputs = [input_of(rank, taken) for rank in range(told.ranks)]
        self._expected = torch.from_numpy(np.ascontiguousarray(collective(kind, inputs)[told.rank]))

    def eager(self) -> torch.Tensor:
        kind, result = self._kind, self._result
        if kind is CollectiveKind.ALL_REDUCE:
            dist.all_reduce(self._in_place)
            return self._in_place
        if kind is CollectiveKind.BROADCAST:
            dist.broadcast(self._in_place, 0)
            return self._in_place
        if kind is CollectiveKind.ALL_GATHER:
            dist.all_gather_into_tensor(result, self.source)
        elif kind is CollectiveKind.REDUCE_SCATTER:
            dist.reduce_scatter_tensor(result, self.source)
        else:
            dist.all_to_all_single(result, self.source)
        return result

    def check(self, found: torch.Tensor) -> bool:
        return bool(torch.equal(found, self._expected))

    def check_chain(self, found: Sequence[torch.Tensor]) -> bool:
        return all(self.check(result) for result in found)


def _functional_chain(kind: CollectiveKind, ranks: int) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    group = dist.group.WORLD

    def once(x: torch.Tensor) -> torch.Tensor:
        if kind is CollectiveKind.ALL_REDUCE:
            return functional.all_reduce(x, "sum", group)
        if kind is CollectiveKind.BROADCAST:
            return functional.broadcast(x, 0, group)
        if kind is CollectiveKind.ALL_GATHER:
            return functional.all_gather_tensor(x, 0, group)
        if kind is CollectiveKind.REDUCE_SCATTER:
            return functional.reduce_scatter_tensor(x, "sum", 0, group)
        return functional.all_to_all_single(x, None, None, group)

    def chain(x: torch.Tensor) -> list[torch.Tensor]:
        return [functional.wait_tensor(once(x)) for _ in range(COMPILED)]

    return chain


def share_of_copying(measured: Measured, task: CollectiveTask, told: RankTask) -> None:
    """A large all_reduce beside loops that load, add and store as many bytes, all ranks at once and without waits."""
    count = task.floor_bytes // ITEM
    chain = FusedChain(CollectiveKind.ALL_REDUCE, task.floor_bytes, 1, told.threads)
    name = f"all_reduce of {size_name(task.floor_bytes)}, beside {COPY_ADD}"
    measured.check(f"{name}: {OURS}", chain.check())
    cases: dict[str, Any] = {OURS: chain}
    buffers: dict[str, Any] = {key: aligned_empty((count,), "float32") for key in ("x", "slots", "y")}
    buffers["sums"] = aligned_empty((count,), "float32")
    for array in buffers.values():
        array[:] = 1
    params = ["in:x:float32", "inout:slots:float32", "inout:sums:float32", "out:y:float32", "scalar:n", "scalar:ranks"]
    for symbol in ("copy_add", "copy_add_past_caches"):
        kernel = SubKernel.from_source(KERNELS, symbol, block_dim=told.threads, params=params, sync_all=False)
        linked = compile([Op(kernel, ["x", "slots", "sums", "y", count, told.ranks])], symbol, cores=told.threads)
        go = linked.bind(buffers)
        go()
        measured.check(f"{name}: {symbol}", bool((buffers["y"][: count // told.ranks] == told.ranks).all()))
        cases[symbol] = go
    measured.times[name] = times_of_ranks(cases, 2 * task.rounds, 5 * BUDGET_S)
    chain.close()


def boundaries(measured: Measured, task: CollectiveTask, told: RankTask) -> None:
    """A boundary between ranks, beside a boundary between two cores of a launch of the first rank."""
    chains = [FusedChain(CollectiveKind.ALL_REDUCE, told.ranks * ITEM, n, 1) for n in (1, 129)]
    step = SubKernel.from_source(KERNELS, "count_up", block_dim=2, params=["in:x:int64[16]", "out:y:int64[16]"])
    arrays = {"t0": np.zeros(16, np.int64), "t1": np.zeros(16, np.int64)}
    ops = [Op(step, [f"t{i % 2}", f"t{(i + 1) % 2}"]) for i in range(LONG)]
    with team_policy("always"):
        linked = {"long": compile(ops, "cores_long", cores=2), "short": compile(ops[:1], "cores_short", cores=2)}
        bound = {key: kernel.bind(arrays) for key, kernel in linked.items()}
        bound["long"]()
        measured.check("a boundary between cores: counts", bool((arrays["t1"][::8] == LONG).all()))
        for chain in chains:
            measured.check(f"a boundary between ranks: {chain.length}", chain.check())
        cases: dict[str, Any] = {f"ranks {chain.length}": chain for chain in chains}
        cases |= {f"cores {key}": Alone(go) for key, go in bound.items()}
        times = times_of_ranks(cases, 2 * task.rounds, BUDGET_S)
    between_ranks = zip(times["ranks 129"], times["ranks 1"], strict=True)
    between_cores = zip(times["cores long"], times["cores short"], strict=True)
    measured.times["boundary"] = {
        "ranks": [(long - short) / 128 for long, short in between_ranks],
        "cores": [(long - short) / (LONG - 1) for long, short in between_cores],
    }
    for chain in chains:
        chain.close()


def decode(measured: Measured, task: CollectiveTask) -> None:
    """A decode step of six layers, sharded by torch's own API."""
    runners = sharded_decode(task.width)
    for name, right in runners.checks.items():
        measured.check(f"{runners.name}: {name}", right)
    measured.notes += runners.notes
    measured.times[runners.name] = times_of_ranks(runners.cases, task.rounds, 5 * BUDGET_S)


def size_name(nbytes: int) -> str:
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
