"""targets.ranks.rank_session: a process group and its store -> what its ranks say when they meet.

A store may still have what an earlier group of the same name has left there, also of the same processes. So each rank
brings a new token and repeats which tokens it has read, until all ranks repeat the same, their own among them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...errors import LaunchError
from ...model.ranks import RankGroup
from . import process_identity
from .process_identity import ProcessIdentity
from .store_exchange import Said, Store, StoreExchange, names_of


@dataclass(frozen=True)
class RankSession:
    """One life of a process group, known by the same token on all of its ranks."""

    token: str
    processes: tuple[ProcessIdentity, ...] = ()  # by place; empty: not known
    hosts: tuple[str, ...] = ()  # by place: ranks with equal ids share memory

    def ended(self, group: RankGroup, places: Sequence[int]) -> str:
        """Which of these ranks have ended, in words; "": none is known to have."""
        gone = [place for place in places if self.processes and self.processes[place].has_ended()]
        if not gone:
            return ""
        return f"collectives of group {group}: {names_of(group, gone)} (pid {self.processes[gone[0]].pid}) has ended"


def meet(store: Store, group: RankGroup, timeout_s: float) -> RankSession:
    """Waits for all ranks of the group. If one cannot share memory, a LaunchError on each."""
    if group.size == 1:
        return RankSession(secrets.token_hex(8), (ProcessIdentity.current(),), ("",))
    exchange = StoreExchange(store, group, f"superkernel/{group.name}/meeting", timeout_s)
    exchange.say("hello", _hello())
    while True:
        hellos = exchange.hear_all("hello")
        tokens = [hello["token"] for hello in hellos]
        exchange.say("tokens", {"tokens": tokens})
        late = [place for place, said in enumerate(exchange.hear_all("tokens")) if said["tokens"] != tokens]
        if not late:
            token = hashlib.sha256("".join(tokens).encode()).hexdigest()[:16]
            processes = tuple(ProcessIdentity(**hello["process"]) for hello in hellos)
            return RankSession(token, processes, _hosts(group, hellos))
        exchange.pause(late)


def _hello() -> dict[str, object]:
    said = {"token": secrets.token_hex(8), "process": asdict(ProcessIdentity.current())}
    try:
        return {**said, "host": process_identity.host_id()}
    except LaunchError as error:
        return {**said, "error": str(error)}


def _hosts(group: RankGroup, hellos: Sequence[Said]) -> tuple[str, ...]:
    for place, hello in enumerate(hellos):
        if "error" in hello:
            raise LaunchError(f"collectives of group {group}: {names_of(group, [place])}: {hello['error']}")
    return tuple(hello["host"] for hello in hellos)
