"""targets.ranks.rank_records: why a rank has failed, in memory that the other ranks read."""

from __future__ import annotations

from typing import Any

import numpy as np

_BYTES = 1024  # of a rank: the length of the text, then the text
_ROOM = _BYTES - 4


class RankRecords:
    """A text per rank, written once by that rank."""

    def __init__(self, memory: Any) -> None:
        self._texts = memory.reshape(-1, _BYTES)
        self._lengths = memoryview(memory).cast("I")[:: _BYTES // 4]  # read before every round: faster than an array

    @staticmethod
    def nbytes(ranks: int) -> int:
        return ranks * _BYTES

    def write(self, rank: int, reason: str) -> None:
        text = (reason.encode("utf-8", "replace") or b"no reason was given")[:_ROOM]
        self._texts[rank, 4 : 4 + len(text)] = np.frombuffer(text, np.uint8)
        self._texts[rank, :4].view(np.uint32)[0] = len(text)  # last: a reader that sees it has the text

    def failed(self, besides: int) -> tuple[int, str] | None:
        """The first other rank that has failed, and its reason."""
        for rank, length in enumerate(self._lengths):
            if length and rank != besides:
                return rank, self.reason(rank)
        return None

    def reason(self, rank: int) -> str:
        """Why a rank has failed; "": it has not."""
        return bytes(self._texts[rank, 4 : 4 + self._lengths[rank]]).decode("utf-8", "replace")
