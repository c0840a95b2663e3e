"""targets.collectives: what a target offers for collectives: their ops, and memory that the ranks of a group share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ..model.collective_digest import CollectiveDigest
from ..model.op import Op
from ..model.rank_sequence import RankSequences
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
    """What the ranks of a group say of a collective. Splits are rows of the first dimension, by place in the group."""

    kind: CollectiveKind
    reduction: str = "sum"  # of all_reduce and reduce_scatter: sum, avg, max, min, product
    root: int = 0  # of a broadcast: a place in the group
    sent: tuple[int, ...] = ()  # of an all_to_all, to each rank; empty: equal parts
    received: tuple[int, ...] = ()


@dataclass(frozen=True)
class CollectiveOps:
    """The ops of a collective. What stands between start and finish runs while other ranks arrive.

    The input must not change before the last op of `finish`: this rank's own contribution is read from there.
    """

    start: tuple[Op, ...]
    finish: tuple[Op, ...]
    windows: Mapping[str, int] = field(default_factory=dict)  # name -> bytes of a slot


class RankArea(Protocol):
    """Memory that the ranks of a group share."""

    def address(self, window: str) -> int: ...
    def round(self) -> AbstractContextManager[None]:
        """Around one execution of the ops that use it. If it fails here, it fails on every rank."""

    def talk(self, store: Any) -> Any:
        """With the ranks of the group, for `settle_orders`; `store` is that of the group."""

    def fail(self, reason: str) -> None:
        """From now on every launch of every rank fails, and quotes the reason."""

    def close(self) -> None: ...


class RankSession(Protocol):
    """One life of a process group, whose ranks have met."""

    @property
    def token(self) -> str: ...  # the same on all ranks, and of no other group
    @property
    def hosts(self) -> tuple[str, ...]: ...  # by place in the group: ranks with equal ids can share memory


class CollectiveSupport(Protocol):
    """Collectives as ops of a super kernel."""

    def meet(self, store: Any, group: RankGroup, timeout_s: float) -> Any:
        """A RankSession for `area`, made once per process group; waits for all ranks of the group."""

    def ops(
        self, terms: CollectiveTerms, source: TensorArg, result: TensorArg, group: RankGroup, name: str, cores: int
    ) -> CollectiveOps:
        """UnsupportedError: it has no kernels for these. `source` and `result` may be the same tensor."""

    def leave_out(self, store: Any, group: RankGroup, session: Any, reason: str) -> None:
        """In place of `area`: torch runs collectives of this rank. Waits for no rank; those that make an area fail."""

    def settle_orders(self, sequences: RankSequences, talks: Sequence[Any]) -> None:
        """All ranks learn of the orders of all; a LaunchError on each of them where they would wait in a circle.

        `talks`: of all areas, in the same order on all ranks.
        """

    def area(
        self,
        store: Any,  # of the process group: set, get and wait by keys
        group: RankGroup,
        session: Any,  # what `meet` returned
        windows: Mapping[str, int],
        stated: CollectiveDigest,
        timeout_s: float,
        group_exists: Callable[[], bool],
        sequences: RankSequences,
    ) -> RankArea:
        """Waits for all ranks of the group; a LaunchError on each of them where their digests differ.

        `sequences`: what this rank knows of the collectives of all ranks; what the others know is added.
        """
