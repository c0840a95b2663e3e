"""targets.ranks.store_exchange: what each rank says, through the store of its group -> what all say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...errors import LaunchError
from ...model.ranks import RankGroup

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
_LIVENESS_PERIOD_S = 0.25

Said = Mapping[str, Any]  # by one rank; JSON
Missing = Sequence[int]  # places of ranks in the group


class Store(Protocol):
    """The part of torch.distributed's Store that is used."""

    def set(self, key: str, value: Any, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class StoreExchange:
    """Messages between the ranks of a group under one prefix, within a time limit."""

    def __init__(self, store: Store, group: RankGroup, prefix: str, timeout_s: float) -> None:
        self._store, self._group, self._prefix = store, group, prefix
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._given_up = False  # a rank did not come within the time limit
        self._said: dict[str, Said] = {}  # by this rank, by subject

    def say(self, subject: str, said: Said) -> None:
        """Publish what this rank has to say of a subject."""
        self._said[subject] = said
        key = self._key(subject, self._group.rank)
        self._ask(self._store.set, key, json.dumps(said))

    def add_error(self, subject: str, error: LaunchError) -> None:
        """Publish why this rank goes no further, beside what it has said."""
        self.say(subject, {**self._said.get(subject, {}), "error": str(error), "given_up": self._given_up})

    def hear(self, subject: str, rank: int, ended: Callable[[Missing], str] = lambda missing: "") -> Said:
        """What the rank at one place of the group says."""
        return self._await(subject, [rank], ended)[0]

    def hear_all(self, subject: str, ended: Callable[[Missing], str] = lambda missing: "") -> list[Said]:
        """What all ranks say, in the order of the group.

        `ended` is asked from time to time for the reason why ranks that are still missing will never answer.
        """
        return self._await(subject, range(self._group.size), ended)

    def _await(self, subject: str, ranks: Sequence[int], ended: Callable[[Missing], str]) -> list[Said]:
        heard: dict[int, Said] = {}
        last_look = time.monotonic()
        while True:
            for rank in ranks:
                key = self._key(subject, rank)
                if rank not in heard and self._ask(self._store.check, [key]):
                    heard[rank] = json.loads(self._ask(self._store.get, key))
            missing = [rank for rank in ranks if rank not in heard]
            if not missing:
                return [heard[rank] for rank in ranks]
            now = time.monotonic()
            if now - last_look > _LIVENESS_PERIOD_S:
                last_look = now
                if reason := ended(missing):
                    raise LaunchError(reason)
            self.pause(missing)

    def pause(self, missing: Missing) -> None:
        """Before the ranks are asked again; each pause is longer than the one before."""
        if time.monotonic() > self._deadline:
            self._given_up = True
            raise LaunchError(
                f"{names_of(self._group, missing)} of group {self._group} did not come within {self._timeout_s:g} s to "
                "prepare the collectives of a super kernel: check that every rank calls the same compiled model, and "
                "that none has ended"
            )
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _key(self, subject: str, rank: int) -> str:
        return f"{self._prefix}/{subject}/{rank}"

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (RuntimeError, OSError) as reason:  # torch's DistError is a RuntimeError
            raise LaunchError(
                f"the store of group {self._group} cannot be reached: {reason}. Its host process may have ended, or "
                "the process group was destroyed; create the process group again"
            ) from reason


def names_of(group: RankGroup, places: Sequence[int]) -> str:
    """The global ranks at some places of a group."""
    ranks = [str(group.ranks[place]) for place in places]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
