"""targets.ranks.rank_orders: what each rank knows of the orders of collectives -> all ranks know of all, or an error.

Groups that overlap form chains: a rank of one group learns of the ranks of another through those that are in both. The
ranks tell each other again and again what they know, until what is known of any rank has come to every other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...errors import LaunchError
from ...model.rank_sequence import RankSequences
from .store_exchange import Said


class RankTalk(Protocol):
    """The ranks of a group, who have met."""

    def tell(self, subject: str, said: Said) -> list[Said]:
        """What all ranks of the group say of a subject; waits for them."""


def settle_orders(sequences: RankSequences, groups: Iterable[RankTalk]) -> None:
    """A LaunchError on every rank where they would wait for each other in a circle.

    `groups`: in the same order on all ranks. When they met, the ranks have told what they know once.
    """
    talks, done = list(groups), 1
    while done < sequences.turns:
        for talk in talks:
            for said in talk.tell(f"order{done}", sequences.to_json()):
                sequences.learn(said)
        done += 1
    if circle := sequences.circle():
        raise LaunchError(
            f"the ranks would wait for each other for ever: {circle}. Nothing was run. Groups overlap here, and their "
            "collectives must be in one order on all ranks"
        )
