"""frontend.machine_groups: a process group across machines -> the machine of each rank, and those of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..errors import LaunchError
from ..model.ranks import RankGroup
from ..targets.collectives import CollectiveSupport
from .process_groups import ProcessGroupRanks, meet_ranks

_agreements: Counter[str] = Counter()  # by token of a session: how often its ranks have agreed


@dataclass(frozen=True)
class Machines:
    """On which machine each place of a group is; machines have numbers, in the order of their first places."""

    of: tuple[int, ...]
    place: int  # of this rank

    @classmethod
    def from_hosts(cls, hosts: Sequence[str], place: int) -> Machines:
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        return cls(tuple(numbers[host] for host in hosts), place)

    @property
    def count(self) -> int:
        return max(self.of) + 1

    @property
    def ranks_each(self) -> int:
        """0: machines have different numbers of ranks."""
        counts = {self.of.count(machine) for machine in range(self.count)}
        return counts.pop() if len(counts) == 1 else 0

    def members(self, machine: int) -> list[int]:
        """The places on a machine."""
        return [place for place, other in enumerate(self.of) if other == machine]

    @property
    def index(self) -> int:
        """Of this rank among those of its machine."""
        return self.members(self.of[self.place]).index(self.place)

    def partners(self, index: int) -> list[int]:
        """The places that have an index among those of their machine, by machine."""
        return [self.members(machine)[index] for machine in range(self.count)]

    def received(self, index: int) -> list[int]:
        """By machine: the position of its part in what a rank with an index gets from its partners."""
        partners = self.partners(index)
        return [sorted(partners).index(partner) for partner in partners]


def machines_of(found: ProcessGroupRanks, support: CollectiveSupport) -> Machines:
    """The first call for a group waits for all of its ranks."""
    return Machines.from_hosts(meet_ranks(found, support).hosts, found.group.rank)


def machine_group(found: ProcessGroupRanks, machines: Machines) -> ProcessGroupRanks:
    """The ranks of the group that are on this machine, as a group of their own.

    Its name differs from machine to machine, and with it the keys by which its ranks meet in the store of the group.
    """
    number, group = machines.of[machines.place], found.group
    ranks = tuple(group.ranks[place] for place in machines.members(number))
    inside = RankGroup(f"{group.name} on machine {number}", ranks, machines.index)
    return ProcessGroupRanks(inside, found.handle, found.store, found.timeout_s, found)


def agree(found: ProcessGroupRanks, support: CollectiveSupport, statement: str) -> None:
    """All ranks of a group say the same before its collectives are divided among machines; a LaunchError otherwise.

    A rank that ran such a collective as one would exchange other messages than the others expect.
    """
    group, token = found.group, meet_ranks(found, support).token
    number = _agreements[token]
    _agreements[token] += 1
    said = _exchange(found, f"superkernel/{token}/divided/{number}", statement)
    for rank, other in zip(group.ranks, said, strict=True):
        if other != statement:
            raise LaunchError(
                f"collectives of the group {group}: ranks {group.global_rank} and {rank} divide them among machines "
                f"differently: {statement!r} here and {other!r} there; all ranks must compile the same model"
            )


def _exchange(found: ProcessGroupRanks, prefix: str, said: str) -> tuple[str, ...]:
    """What each rank of the group says, by its place."""
    group, store = found.group, found.store
    keys = [f"{prefix}/{rank}" for rank in group.ranks]
    try:
        store.set(keys[group.rank], said)
        store.wait(keys, timedelta(seconds=found.timeout_s))
        return tuple(store.get(key).decode() for key in keys)
    except RuntimeError as failure:  # what stores raise: unreachable, or no answer in time
        raise LaunchError(
            f"collectives of the group {group}: rank {group.global_rank} cannot learn from the store of the group "
            f"how a collective is divided among machines: {failure}; each rank must compile the model with this back "
            "end, and the store must be reachable"
        ) from failure
