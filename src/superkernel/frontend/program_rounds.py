"""frontend.program_rounds: the collectives of all segments of a program -> shared memory, made before the first call.

Ranks may have their collectives in other segments: an op that torch runs between two collectives of different groups
need not stand there on another rank. So memory is made by group, and not by segment: ranks that waited for each other
in different groups would not meet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..model.rank_sequence import RankSequences
from ..targets.collectives import CollectiveSupport
from .left_out_collectives import LeftOut, tell_ranks
from .rank_rounds import RankRounds


class ProgramRounds:
    """The rounds of the segments, in order, and the groups of collectives that torch runs between them."""

    def __init__(self, segments: Sequence[RankRounds], left_out: LeftOut, support: CollectiveSupport) -> None:
        self._segments, self._untold, self._support = segments, dict(left_out), support
        self._sequences = RankSequences(*(rounds.graph for rounds in segments))
        self._settled = False  # all ranks have the same order of collectives
        self._lock = threading.Lock()

    def make_areas(self) -> None:
        """The first call waits for all ranks of every group."""
        with self._lock:
            if self._settled:
                return
            talks = []
            for name in sorted({*self._untold, *(name for rounds in self._segments for name in rounds.group_names)}):
                members = [rounds for rounds in self._segments if name in rounds.group_names]
                for rounds in members:
                    rounds.make_area(name, self._sequences)
                if name in self._untold:
                    tell_ranks({name: self._untold.pop(name)}, self._support)
                talks += [rounds.talk(name) for rounds in members[:1]]
            self._support.settle_orders(self._sequences, talks)
            self._settled = True
