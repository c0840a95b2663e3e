"""targets.cpu.collectives: collectives of ranks on one machine: their kernels, and shared memory with its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...model.collective_digest import CollectiveDigest
from ...model.rank_sequence import RankSequences
from ...model.ranks import RankGroup
from ...model.tensor_arg import TensorArg
from ..collectives import CollectiveOps, CollectiveTerms
from ..ranks.rank_orders import RankTalk, settle_orders
from ..ranks.rank_session import RankSession, meet
from ..ranks.store_exchange import Store
from .kernels.collectives import collective_ops
from .runtime.ranks.shared_area import SharedArea, announce_left_out


class CpuCollectives:
    """What the CPU target offers for collectives; see CollectiveSupport."""

    def meet(self, store: Store, group: RankGroup, timeout_s: float) -> RankSession:
        return meet(store, group, timeout_s)

    def ops(
        self, terms: CollectiveTerms, source: TensorArg, result: TensorArg, group: RankGroup, name: str, cores: int
    ) -> CollectiveOps:
        return collective_ops(terms, source, result, group, name, cores)

    def leave_out(self, store: Store, group: RankGroup, session: RankSession, reason: str) -> None:
        announce_left_out(store, group, session, reason)

    def settle_orders(self, sequences: RankSequences, talks: Sequence[RankTalk]) -> None:
        settle_orders(sequences, talks)

    def area(
        self,
        store: Store,
        group: RankGroup,
        session: RankSession,
        windows: Mapping[str, int],
        stated: CollectiveDigest,
        timeout_s: float,
        group_exists: Callable[[], bool],
        sequences: RankSequences,
    ) -> SharedArea:
        return SharedArea(
            store,
            group,
            windows,
            stated.digest,
            stated.listing,
            timeout_s,
            session=session,
            group_exists=group_exists,
            sequences=sequences,
        )
