"""targets.collectives: what a target offers for collectives: their ops, and memory that the ranks of a group share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ..model.op import Op
from ..model.ranks import RankGroup
from ..model.tensor_arg import TensorArg


class CollectiveKind(StrEnum):
    """What the ranks of a group compute together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"

    @property
    def reduces(self) -> bool:
        return self in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True)
class CollectiveTerms:
    """A collective on one tensor, as every rank of the group says it. Splits are numbers of elements, by rank."""

    kind: CollectiveKind
    reduction: str = "sum"  # of all_reduce and reduce_scatter: sum, avg, max, min, product
    root: int = 0  # of a broadcast: a place in the group
    input_splits: tuple[int, ...] = ()  # of all_to_all; empty: equal parts
    output_splits: tuple[int, ...] = ()


@dataclass(frozen=True)
class CollectiveOps:
    """The ops of a collective: `start` publishes what this rank has, `finish` needs what all ranks have published."""

    start: tuple[Op, ...]
    finish: tuple[Op, ...]
    windows: Mapping[str, int]  # name of a buffer that all ranks share -> bytes that each rank stores there


class RankArea(Protocol):
    """Memory that the ranks of a group share. A round is one execution of the ops that use it."""

    def address(self, window: str) -> int: ...
    def begin_round(self) -> None:
        """Before every round; a LaunchError where the area cannot be used: by a second thread, after a failure."""

    def fail(self, reason: str) -> None: ...  # this rank cannot complete its round: the others are told
    def close(self) -> None: ...


class CollectiveSupport(Protocol):
    """Collectives as ops of a super kernel."""

    def host_id(self) -> str: ...  # processes with equal ids can share memory
    def ops(
        self, terms: CollectiveTerms, source: TensorArg, result: TensorArg, group: RankGroup, name: str, cores: int
    ) -> CollectiveOps:
        """UnsupportedError: it has no kernels for these. `source` and `result` may be the same tensor."""

    def area(
        self,
        store: Any,  # of the process group: set, get and wait by keys
        group: RankGroup,
        windows: Mapping[str, int],
        digest: str,
        listing: Sequence[str],
        timeout_s: float,
    ) -> RankArea:
        """Waits for all ranks of the group; a LaunchError on each of them where their digests differ."""
