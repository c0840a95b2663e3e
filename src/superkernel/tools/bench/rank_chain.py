"""bench.rank_chain: a kind of collective, a size and a length -> a super kernel of so many dependent collectives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch.distributed as dist

from ...frontend.collective_match import FusedCollective
from ...frontend.process_groups import find_process_group
from ...frontend.program_rounds import ProgramRounds
from ...frontend.rank_rounds import RankRounds
from ...model.tensor_arg import TensorArg
from ...runtime.compile import compile
from ...targets.buffers import aligned_empty
from ...targets.collectives import CollectiveKind, CollectiveTerms
from ...targets.cpu.collectives import CpuCollectives

ITEM = 4  # bytes: float32
Array = np.ndarray[Any, np.dtype[Any]]


class FusedChain:
    """Collectives in a row, each on what the one before it has made: x -> a -> b -> a -> ..."""

    def __init__(self, kind: CollectiveKind, nbytes: int, length: int, threads: int) -> None:
        """`nbytes`: of the larger tensor of a rank."""
        process_group, support = find_process_group(dist.group.WORLD.group_name), CpuCollectives()
        self._group = process_group.group
        ranks = self._group.size
        whole = max(1, nbytes // ITEM // ranks) * ranks
        self._kind, self.length = kind, length
        self.taken, self.given = _sizes(kind, whole, ranks)
        names = ["x", *("ab"[place % 2] for place in range(length))]
        self.output, room = names[-1], max(self.taken, self.given)
        traced: Any = None  # no program was traced
        collectives = []
        for number, (source, result) in enumerate(pairwise(names)):
            tensors, name = (_tensor(source, self.taken), _tensor(result, self.given)), f"{kind}_{number}"
            terms = CollectiveTerms(kind)
            made = support.ops(terms, *tensors, self._group, name, threads)
            collectives.append(FusedCollective(name, traced, terms, process_group, made, self.taken * ITEM))
        ops = [op for each in collectives for op in (*each.ops.start, *each.ops.finish)]
        self.kernel = compile(ops, f"{kind}_{nbytes}", cores=threads)
        self._rounds = RankRounds(self.kernel.graph, collectives, support)
        self.buffers: dict[str, Array] = {name: aligned_empty((room,), "float32") for name in sorted(set(names))}
        for array in self.buffers.values():
            array[:] = 0
        self.buffers["x"][:] = input_of(self._group.rank, room)
        self._values, self._sizes = self.kernel.argument_arrays()
        ProgramRounds([self._rounds], {}, support).make_areas()
        addresses, sizes = self._rounds.addresses(), self._rounds.window_bytes
        for place, name in enumerate(self.kernel.graph.buffers):
            is_window = name in addresses
            self._values[place] = addresses[name] if is_window else self.buffers[name].ctypes.data
            self._sizes[place] = sizes[name] if is_window else self.buffers[name].nbytes
        self._launch = self._rounds.launching(self.kernel.launch_values)

    def __call__(self) -> None:
        self._launch(self._values, self._sizes)

    def check(self) -> bool:
        """One launch gives what numpy gives for all ranks."""
        self()
        rank = self._group.rank
        expected = reference(self._kind, self._group.size, self.taken, self.given, self.length)[rank]
        return bool(np.array_equal(self.buffers[self.output][: self.given], expected[: self.given]))

    def close(self) -> None:
        self.kernel.close()
        self._rounds.close()


def input_of(rank: int, count: int) -> Array:
    """Small whole numbers, so that sums are exact in any order."""
    return ((np.arange(count) * 7 + rank * 3) % 5).astype(np.float32)


def _sizes(kind: CollectiveKind, whole: int, ranks: int) -> tuple[int, int]:
    """The elements that a rank gives and gets."""
    if kind is CollectiveKind.ALL_GATHER:
        return whole // ranks, whole
    if kind is CollectiveKind.REDUCE_SCATTER:
        return whole, whole // ranks
    return whole, whole


def _tensor(name: str, count: int) -> TensorArg:
    return TensorArg(name, 0, "float32", (count,), (1,))


def reference(kind: CollectiveKind, ranks: int, taken: int, given: int, length: int) -> list[Array]:
    """What the chain leaves in its last buffer on every rank."""
    room = max(taken, given)
    held = [{"x": input_of(rank, room), "a": np.zeros(room, np.float32), "b": np.zeros(room, np.float32)}
            for rank in range(ranks)]  # fmt: skip
    names = ["x", *("ab"[place % 2] for place in range(length))]
    for source, result in pairwise(names):
        made = collective(kind, [each[source][:taken] for each in held])
        for each, values in zip(held, made, strict=True):
            each[result][:given] = values
    return [each[names[-1]] for each in held]


def collective(kind: CollectiveKind, inputs: Sequence[Array]) -> list[Array]:
    """Its results on all ranks, from the inputs of all ranks."""
    ranks = len(inputs)
    total: Array = np.asarray(np.sum(inputs, axis=0, dtype=np.float32))
    if kind is CollectiveKind.ALL_REDUCE:
        return [total] * ranks
    if kind is CollectiveKind.BROADCAST:
        return [inputs[0]] * ranks
    if kind is CollectiveKind.ALL_GATHER:
        return [np.concatenate(inputs)] * ranks
    if kind is CollectiveKind.REDUCE_SCATTER:
        return list(np.split(total, ranks))
    parts = [np.split(each, ranks) for each in inputs]
    return [np.concatenate([parts[other][rank] for other in range(ranks)]) for rank in range(ranks)]
