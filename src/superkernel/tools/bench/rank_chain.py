"""bench.rank_chain: a kind of collective, a size and a length -> a super kernel of so many dependent collectives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch.distributed as dist

from ...frontend.process_groups import find_process_group
from ...model.collective_digest import collective_digest
from ...model.op import Op
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
        found = find_process_group(dist.group.WORLD.group_name)
        self._group, support = found.group, CpuCollectives()
        ranks = self._group.size
        whole = max(ranks, nbytes // ITEM)
        self._part = whole // ranks
        self._kind, self.length = kind, length
        self.taken, self.given = _sizes(kind, whole, self._part)
        ops: list[Op] = []
        windows: dict[str, int] = {}
        names = ["x", *("ab"[place % 2] for place in range(length))]
        for number in range(length):
            source, result = _tensor(names[number], self.taken), _tensor(names[number + 1], self.given)
            name = f"{kind}_{number}"
            made = support.ops(CollectiveTerms(kind), source, result, self._group, name, threads)
            ops += [*made.start, *made.finish]
            windows |= made.windows
        self.output = names[-1]
        room = max(self.taken, self.given)
        buffers: dict[str, Array] = {name: aligned_empty((room,), "float32") for name in sorted(set(names))}
        for array in buffers.values():
            array[:] = 0
        buffers["x"][:] = input_of(self._group.rank, room)
        self.buffers = buffers
        self.kernel = compile(ops, f"{kind}_{nbytes}", cores=threads)
        stated = collective_digest(self.kernel.graph, self._group.name)
        store, timeout = found.store, found.timeout_s
        self._area = support.area(store, self._group, windows, stated, timeout, lambda: found.is_alive)
        shared = {name: self._area.buffers[name] for name in windows}
        self._go = self.kernel.bind({**buffers, **shared})

    def __call__(self) -> None:
        with self._area.round():
            self._go()

    def check(self) -> bool:
        """One launch gives what numpy gives for all ranks."""
        self()
        rank = self._group.rank
        expected = reference(self._kind, self._group.size, self.taken, self.given, self.length)[rank]
        return bool(np.array_equal(self.buffers[self.output][: self.given], expected[: self.given]))

    def close(self) -> None:
        self.kernel.close()
        self._area.close()


def input_of(rank: int, count: int) -> Array:
    """Small whole numbers, so that sums are exact in any order."""
    return ((np.arange(count) * 7 + rank * 3) % 5).astype(np.float32)


def _sizes(kind: CollectiveKind, whole: int, part: int) -> tuple[int, int]:
    """The elements that a rank gives and gets."""
    if kind is CollectiveKind.ALL_GATHER:
        return part, part * (whole // part)
    if kind is CollectiveKind.REDUCE_SCATTER:
        return part * (whole // part), part
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
