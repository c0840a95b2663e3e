"""targets.ranks.rank_orders: what each rank knows of the orders of collectives -> all ranks know of all, or an error.

Groups that overlap form chains: a rank of one group learns of the ranks of another through those that are in both. The
ranks tell each other again and again what they know, until what is known of any rank has come to every other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ...errors import LaunchError
from ...model.rank_sequence import RankSequences
from ...model.ranks import RankGroup
from .store_exchange import Missing, Said, Store, StoreExchange


class Talk(Protocol):
    """Ranks of a group that can be told something."""

    def tell(self, subject: str, said: Said) -> list[Said]: ...


@dataclass(frozen=True)
class RankTalk:
    """The ranks of a group, who have met. `ended`: why some of them will never answer; "": nothing is known of that."""

    store: Store
    group: RankGroup
    prefix: str  # of the keys of this talk
    timeout_s: float
    ended: Callable[[Missing], str]

    def tell(self, subject: str, said: Said) -> list[Said]:
        """What all ranks of the group say of a subject; waits for them."""
        if self.group.size == 1:
            return [said]
        exchange = StoreExchange(self.store, self.group, self.prefix, self.timeout_s)
        exchange.say(subject, said)
        return exchange.hear_all(subject, self.ended)


def settle_orders(sequences: RankSequences, groups: Iterable[Talk]) -> None:
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
