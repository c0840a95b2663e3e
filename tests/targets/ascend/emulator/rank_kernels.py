"""Super kernels with collectives for several emulated chips, and what they compute, in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import superkernel as sk
from superkernel.model.ranks import RankGroup
from superkernel.model.tensor_arg import TensorArg
from superkernel.targets.ascend.emulator import Emulation, RankKernel, emulate_ranks
from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.ascend.kernels.collectives import collective_ops
from superkernel.targets.collectives import CollectiveKind, CollectiveTerms
from superkernel.targets.protocol import LaunchInputs

KERNELS = Path(__file__).with_name("rank_kernels.cpp")
Array = np.ndarray[Any, Any]
Arrays = list[Array]
REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lambda a, b: (a + b).astype(a.dtype),
    "max": np.maximum,
    "min": np.minimum,
    "product": lambda a, b: (a * b).astype(a.dtype),
}


def tensor(name: str, count: int, dtype: str = "float32") -> TensorArg:
    return TensorArg(name, 0, dtype, (count,), (1,))


def group(rank: int, ranks: int, name: str = "world") -> RankGroup:
    return RankGroup(name, tuple(range(ranks)), rank)


@dataclass(frozen=True)
class Stage:
    """One collective of a chain: what it reads is what the stage before made, twice and plus one."""

    kind: CollectiveKind
    reduction: str = "sum"
    root: int = 0
    uneven: bool = False  # an all_to_all with given splits

    def splits(self, count: int, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Parts of different sizes; every rank sends and receives `count` elements. Empty: equal parts."""
        if not self.uneven:
            return ()
        cuts = [count * number * (number + 1) // (ranks * (ranks + 1)) for number in range(ranks + 1)]
        parts = [end - begin for begin, end in itertools.pairwise(cuts)]
        return tuple(tuple(parts[(place - rank) % ranks] for place in range(ranks)) for rank in range(ranks))

    def made(self, given: Arrays) -> Arrays:
        """The result of every rank."""
        ranks = len(given)
        if self.kind.reduces:
            total = given[0]
            for array in given[1:]:
                total = REDUCE[self.reduction](total, array)
            return [total] * ranks if self.kind is CollectiveKind.ALL_REDUCE else list(np.split(total, ranks))
        if self.kind is CollectiveKind.ALL_GATHER:
            return [np.concatenate(given)] * ranks
        if self.kind is CollectiveKind.BROADCAST:
            return [given[self.root]] * ranks
        even = (len(given[0]) // ranks,) * ranks
        splits = self.splits(len(given[0]), ranks) or (even,) * ranks
        parts = [np.split(array, np.cumsum(sent)[:-1]) for array, sent in zip(given, splits, strict=True)]
        return [np.concatenate([sent[rank] for sent in parts]) for rank in range(ranks)]

    def size(self, count: int, ranks: int) -> int:
        factor = {CollectiveKind.ALL_GATHER: (ranks, 1), CollectiveKind.REDUCE_SCATTER: (1, ranks)}
        more, less = factor.get(self.kind, (1, 1))
        return count * more // less


@dataclass(frozen=True)
class Chain:
    """Collectives with ops between them; the first stage reads x."""

    stages: tuple[Stage, ...]
    count: int
    ranks: int = 2
    dtype: str = "float32"
    options: str = ""
    cores: tuple[str, ...] = ("vector", "cube")  # of the ops between the stages, in turn

    def ops(self, rank: int) -> list[sk.Op]:
        ops: list[sk.Op] = []
        source, count = "x", self.count
        for number, stage in enumerate(self.stages):
            ops.append(self._between(f"a{number}", source, count, number))
            result = stage.size(count, self.ranks)
            terms = CollectiveTerms(stage.kind, stage.reduction, stage.root)
            made = collective_ops(
                terms,
                tensor(f"a{number}", count, self.dtype),
                tensor(f"r{number}", result, self.dtype),
                group(rank, self.ranks),
                f"c{number}",
                6,
                stage.splits(count, self.ranks),
            )
            ops += made.start
            ops.append(self._between(f"b{number}", source, count, number + 1))  # while the other ranks arrive
            ops += made.finish
            source, count = f"r{number}", result
        return ops

    def _between(self, name: str, source: str, count: int, number: int) -> sk.Op:
        dtype = f"{self.dtype}[{count}]"
        kernel = sk.SubKernel.from_source(
            KERNELS, f"step_{self.dtype}", block_dim=4,
            params=[f"in:x:{dtype}", f"out:y:{dtype}", "scalar:count:int64"],
            core=self.cores[number % len(self.cores)], sync_all=False, early_start=False,
        )  # fmt: skip
        return sk.Op(kernel, [source, name, count], name=f"step_{name}")

    def compiled(self) -> list[sk.SuperKernel]:
        return [sk.compile(self.ops(rank), f"rank{rank}", self.options, "ascend") for rank in range(self.ranks)]

    def inputs(self, seed: int) -> list[dict[str, Array]]:
        random = np.random.default_rng(seed)
        return [{"x": random.integers(1, 4, self.count).astype(self.dtype)} for _ in range(self.ranks)]

    def expected(self, inputs: Sequence[dict[str, Array]]) -> Arrays:
        given = [each["x"] for each in inputs]
        for stage in self.stages:
            given = stage.made([(2 * array + 1).astype(array.dtype) for array in given])
        return given

    @property
    def last(self) -> str:
        return f"r{len(self.stages) - 1}"


def with_sources(
    kernels: Sequence[sk.SuperKernel], buffers: Sequence[dict[str, Array]], sources: dict[int, str]
) -> list[RankKernel]:
    """The kernels of all ranks, some with another text."""
    found = []
    for rank, (kernel, given) in enumerate(zip(kernels, buffers, strict=True)):
        executable = kernel.executable
        assert isinstance(executable, AscendExecutable)
        emitted = executable.emitted
        if rank in sources:
            assert sources[rank] != emitted.source
            emitted = replace(emitted, source=sources[rank])
        found.append(RankKernel(emitted, executable.plan.graph, given, LaunchInputs({}, {})))
    return found


def run(changed: Sequence[RankKernel], seed: int, launches: int) -> list[Emulation]:
    return emulate_ranks(changed, seed=seed, launches=launches)
